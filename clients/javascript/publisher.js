// Records on their way: packed by partition, numbered, kept until they are confirmed.

import { encode } from "@msgpack/msgpack";
import { crc32 } from "node:zlib";
import { AGAIN_MS, LOST } from "./link.js";
import { GossipqError, PUBLISH_PLAIN, REFUSED } from "./protocol.js";

const BATCH_RECORDS = 500;
const BATCH_BYTES = 256 * 1024; // a larger record travels alone
const IN_FLIGHT = 16; // batches of a partition without a confirm; a leader remembers 128
const WAITING_BYTES = 64 * 1024 * 1024; // of a client: then publish() rejects
const LATER = new Set(["busy", "joining", "not_leader", "no_session", "no_subscription", "out_of_sequence"]);
let producers = 0; // numbers of the producers of this process: each starts from sequence 1

/** One partition. Its batches go out in order, and again in order until each is confirmed; the leader stores a sequence of
 * a producer once. */
class Lane {
  constructor(publisher, topic, partition) {
    this.publisher = publisher;
    this.key = topic.id * 65536 + partition;
    this.number = topic.shards[partition];
    this.place = { topic: topic.name, partition };
    this.waiting = []; // records not packed yet
    this.batches = []; // sent or to be sent, oldest first
    this.producer = producers++;
    this.sequence = 0;
    this.stalled = false;
    this.packing = false;
    publisher.link.shard(this.number).tenants.add(this);
  }

  add(record) {
    this.waiting.push(record);
    if (!this.packing) {
      this.packing = true;
      setImmediate(() => ((this.packing = false), this.pump()));
    }
  }

  /** Packs and sends what may go out now. */
  pump() {
    while (this.waiting.length && this.batches.length < IN_FLIGHT) this.batches.push(this.#pack());
    if (this.stalled || !this.batches.length) return;
    if (!this.publisher.link.shard(this.number).joined) {
      this.publisher.link.join(this.number).catch((error) => this.#fail(error));
      return;
    }
    for (const batch of this.batches) if (!batch.sent) this.#say(batch);
  }

  joined() {
    this.#resend();
  }

  #pack() {
    const { how } = this.waiting[0];
    let bytes = 0, count = 0;
    while (count < this.waiting.length && count < BATCH_RECORDS && this.waiting[count].how === how) {
      bytes += this.waiting[count].bytes;
      if (count && bytes > BATCH_BYTES) break;
      count++;
    }
    const records = this.waiting.splice(0, count);
    const body = Buffer.from(encode(records.map((each) => each.fields)));
    return { records, body, how: JSON.parse(how), sequence: ++this.sequence, sent: false, before: false, say: 0 };
  }

  #say(batch) {
    batch.sent = true;
    const say = ++batch.say;
    const [route, delayMs, ttlMs] = batch.how;
    const fields = [this.key, "stored", route, delayMs, ttlMs, this.producer, batch.sequence];
    this.publisher.link.say(PUBLISH_PLAIN, this.number, fields, batch.body, (answer) => {
      if (answer !== LOST && answer.verb !== REFUSED) this.#stored(batch, answer.fields);
      else if (say === batch.say) this.#not(batch, answer === LOST ? null : GossipqError.of(answer.fields));
    });
  }

  #stored(batch, [row, runs]) {
    const at = this.batches.indexOf(batch);
    if (at < 0) return;
    this.batches.splice(at, 1);
    const [, offset, copies, duplicate] = row;
    const places = [];
    for (const [count, first, , , again] of runs ?? []) {
      for (let i = 0; i < count; i++) places.push([first < 0 ? -1 : first + i, Boolean(again)]);
    }
    batch.records.forEach((record, i) => {
      const [place, again] = places[i] ?? [offset < 0 ? -1 : offset + i, duplicate];
      this.publisher.done(record);
      record.resolve({ ...this.place, offset: place, copies, duplicate: again });
    });
    this.pump();
  }

  #not(batch, error) {
    if (error === null) {
      batch.before = true; // it may be stored: joined() sends it again
      if (this.publisher.link.shard(this.number).joined) this.#stall(AGAIN_MS);
    } else if (error.code === "out_of_sequence" && this.batches[0] && error.detail < this.batches[0].sequence) {
      this.#forgotten();
    } else if (LATER.has(error.code)) {
      if (error.code === "no_session") this.publisher.link.over(this.number);
      this.#stall(error.retryAfterMs || AGAIN_MS);
    } else {
      this.batches.splice(this.batches.indexOf(batch), 1);
      for (const record of batch.records) this.publisher.failed(record, error);
      this.#anew();
    }
  }

  /** The leader does not know this producer any more: what was sent over an earlier connection may be stored. */
  #forgotten() {
    const doubtful = this.batches.filter((batch) => batch.before);
    this.batches = this.batches.filter((batch) => !batch.before);
    const error = new GossipqError("not_confirmed", "the leader has forgotten this producer: it may be stored");
    for (const batch of doubtful) for (const record of batch.records) this.publisher.failed(record, error);
    this.#anew();
  }

  /** Sequences behind one that is not stored can never be: the rest goes on under another producer, from 1. */
  #anew() {
    this.producer = producers++;
    this.sequence = 0;
    for (const batch of this.batches) {
      batch.sequence = ++this.sequence;
      batch.before = false;
    }
    this.#resend();
  }

  #stall(ms) {
    if (this.stalled) return;
    this.stalled = true;
    setTimeout(() => this.#resend(), ms);
  }

  #resend() {
    this.stalled = false;
    for (const batch of this.batches) batch.sent = false;
    this.pump();
  }

  #fail(error) {
    for (const record of [...this.batches.flatMap((batch) => batch.records), ...this.waiting]) {
      this.publisher.failed(record, error);
    }
    this.batches = [];
    this.waiting = [];
  }

  closed(error) {
    this.#fail(error);
  }
}

export class Publisher {
  #lanes = new Map();
  #bytes = 0;
  #keyless = 0; // records without key and id: a batch to each partition in turn
  #unconfirmed = new Set();

  constructor(link) {
    this.link = link;
  }

  /** Resolves when the record is stored. */
  publish(topic, value, { key, headers, id, route = "", delayMs = 0, ttlMs = 0 } = {}) {
    const raw = bytes(value, "value"), name = bytes(id ?? "", "id"), of = bytes(key ?? "", "key");
    const place = of.length || name.length ? crc32(of.length ? of : name) : Math.floor(this.#keyless++ / BATCH_RECORDS);
    const partition = place % topic.shards.length;
    const size = raw.length + of.length + name.length + 16;
    if (this.#bytes && this.#bytes + size > WAITING_BYTES) {
      const text = `${this.#bytes} bytes wait for their confirm`;
      return Promise.reject(new GossipqError("backpressure", text, "await some of what was published before"));
    }
    const index = `${topic.id}/${partition}`;
    let lane = this.#lanes.get(index);
    if (!lane) this.#lanes.set(index, (lane = new Lane(this, topic, partition)));
    return new Promise((resolve, reject) => {
      const record = { fields: [raw, of, headers ?? {}, name], how: JSON.stringify([route, delayMs, ttlMs]), bytes: size, resolve, reject };
      this.#bytes += size;
      this.#unconfirmed.add(record);
      lane.add(record);
    });
  }

  done(record) {
    if (this.#unconfirmed.delete(record)) this.#bytes -= record.bytes;
  }

  failed(record, error) {
    this.done(record);
    record.reject(error);
  }

  /** A topic was removed: its lanes are not used again. */
  forget(topic) {
    for (const index of this.#lanes.keys()) if (index.startsWith(`${topic.id}/`)) this.#lanes.delete(index);
  }

  /** Until all is confirmed, or has failed. */
  async flush() {
    while (this.#unconfirmed.size) await new Promise((resolve) => setTimeout(resolve, 5));
  }

  close() {
    const error = new GossipqError("not_confirmed", "the client was closed before this was confirmed: it may be stored");
    for (const lane of this.#lanes.values()) lane.closed(error);
  }
}

/** Bytes of what a user gave. */
export function bytes(given, what) {
  if (typeof given === "string") return Buffer.from(given);
  if (given instanceof Uint8Array) return given;
  throw new TypeError(`${what} must be a string or a Uint8Array, not ${given === null ? "null" : typeof given}`);
}
