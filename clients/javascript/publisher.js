// Records on their way: packed and sealed by partition, numbered, kept until they are confirmed.

import { encode } from "@msgpack/msgpack";
import { crc32 } from "node:zlib";
import { DEFAULT_PRIORITY, Opened, restamped, seal } from "./batch.js";
import { AGAIN_MS, LOST } from "./link.js";
import { GossipqError, PUBLISH, REFUSED, text, wholeMs } from "./protocol.js";

const BATCH_RECORDS = 4096;
const BATCH_BYTES = 256 * 1024; // a larger record travels alone
const IN_FLIGHT = 64; // batches of a partition without a confirm; a leader remembers 128
const WAITING_BYTES = 64 * 1024 * 1024; // of a client: then publish() rejects
const RECORD_BYTES = 16; // about what a record takes beside its bytes
const VALUE_MAX = 16 << 20, KEY_MAX = 4096, ID_MAX = 1024, HEADERS_MAX = 65_536, ROUTE_MAX = 255, FLOW_MAX = 64, PRIORITY_MAX = 9;
const LATER = new Set(["busy", "joining", "not_leader", "no_session", "no_subscription", "out_of_sequence"]);
const NOTHING = Buffer.alloc(0);
let producers = 0; // numbers of the producers of this process: each starts from sequence 1

/** Records that go together: of one route and delay. */
class Packing {
  constructor(route, delayMs) {
    Object.assign(this, { route, delayMs });
    this.values = [];
    this.keys = this.headers = this.ids = this.ttls = this.flows = this.priorities = null;
    this.bytes = 0;
    this.waiters = []; // {count, resolve, reject}: who asked for so many of the records, which have one key
    this.flushes = [];
  }

  fits(route, delayMs, bytes) {
    return (
      this.values.length < BATCH_RECORDS &&
      this.bytes + bytes <= BATCH_BYTES &&
      this.route === route &&
      this.delayMs === delayMs
    );
  }

  add(value, { key, packed: headers, id, ttlMs, flow, priority }) {
    const before = this.values.length;
    this.values.push(value);
    this.keys = column(this.keys, before, key);
    this.headers = column(this.headers, before, headers);
    this.ids = column(this.ids, before, id);
    if (ttlMs || this.ttls) (this.ttls ??= new Array(before).fill(0)).push(ttlMs);
    this.flows = column(this.flows, before, flow);
    if (priority !== DEFAULT_PRIORITY || this.priorities) (this.priorities ??= new Array(before).fill(DEFAULT_PRIORITY)).push(priority);
    this.bytes += value.length + key.length + headers.length + id.length + flow.length + RECORD_BYTES;
  }
}

/** A column begins with the first record that has something for it. */
function column(items, before, item) {
  if (!items) {
    if (!item.length) return null;
    items = new Array(before).fill(NOTHING);
  }
  items.push(item);
  return items;
}

/** One partition. Its batches go out in order, and again in order until each is confirmed; the leader stores a sequence of
 * a producer once. */
class Lane {
  constructor(publisher, topic, partition) {
    this.publisher = publisher;
    this.topic = topic;
    this.key = topic.id * 65536 + partition;
    this.number = topic.shards[partition];
    this.partition = partition;
    this.open = null; // being packed
    this.batches = []; // sent or to be sent, oldest first
    this.unsent = 0; // of them, those before it are on their way
    this.stalled = false;
    this.unknown = false; // its leader does not know the topic: it is looked up again
    this.packing = false;
    this.#number();
    publisher.link.shard(this.number).tenants.add(this);
  }

  #number() {
    this.producer = producers++;
    this.name = this.publisher.link.producerName(this.producer);
    this.sequence = 0;
  }

  /** The packing that has space for a record of `bytes` bytes. */
  packingFor(route, delayMs, bytes) {
    if (this.open && !this.open.fits(route, delayMs, bytes)) this.close();
    this.open ??= new Packing(route, delayMs);
    if (!this.packing) {
      this.packing = true;
      setImmediate(() => ((this.packing = false), this.close(), this.pump()));
    }
    return this.open;
  }

  /** Seals what is open. */
  close() {
    const packing = this.open;
    if (!packing) return;
    this.open = null;
    const sequence = ++this.sequence, body = seal(packing, this.name, sequence);
    const { waiters, flushes, route, delayMs, bytes, values } = packing;
    this.batches.push({ body, waiters, flushes, route, delayMs, bytes, count: values.length, sequence, sealedMs: performance.now(), before: false, say: 0 });
    this.publisher.turned(this);
  }

  /** Sends what may go out now. */
  pump() {
    if (this.stalled || this.unknown || this.unsent >= this.batches.length) return;
    if (!this.publisher.link.shard(this.number).joined) {
      this.publisher.link.join(this.number).catch((error) => this.fail(error));
      return;
    }
    while (this.unsent < Math.min(this.batches.length, IN_FLIGHT)) this.#say(this.batches[this.unsent++]);
  }

  joined() {
    this.#resend();
  }

  #say(batch) {
    const say = ++batch.say;
    const fields = [this.key, "stored", Math.floor(performance.now() - batch.sealedMs)];
    this.publisher.link.say(PUBLISH, this.number, fields, batch.body, (answer) => {
      if (answer !== LOST && answer.verb !== REFUSED) this.#stored(batch, answer.fields);
      else if (say === batch.say) this.#not(batch, answer === LOST ? null : GossipqError.of(answer.fields));
    });
  }

  #drop(batch) {
    const at = this.batches.indexOf(batch);
    if (at < 0) return false;
    this.batches.splice(at, 1);
    if (at < this.unsent) this.unsent--;
    this.publisher.settled(batch);
    return true;
  }

  #stored(batch, [row, runs]) {
    const [, offset, copies, duplicate] = row;
    const place = (at, again) => ({ topic: this.topic.name, partition: this.partition, offset: at, copies, duplicate: again });
    const places = [];
    for (const [count, first, , , again] of runs ?? []) {
      for (let i = 0; i < count && places.length < batch.count; i++) places.push(place(first < 0 ? -1 : first + i, Boolean(again)));
    }
    for (let i = places.length; i < batch.count; i++) places.push(place(offset < 0 ? -1 : offset + i, duplicate));
    if (!this.#drop(batch)) return;
    let at = 0;
    for (const { count, resolve, many } of batch.waiters) {
      resolve(many ? places.slice(at, at + count) : places[at]);
      at += count;
    }
    this.pump();
  }

  #reject(batch, error) {
    if (this.#drop(batch)) for (const waiter of batch.waiters) waiter.reject(error);
  }

  #not(batch, error) {
    const link = this.publisher.link;
    if (error === null) {
      batch.before = true; // it may be stored: joined() sends it again
      if (link.shard(this.number).joined) this.#stall(AGAIN_MS);
    } else if (error.code === "out_of_sequence" && this.batches[0] && error.detail < this.batches[0].sequence) {
      this.#partWithProducer("the leader has forgotten this producer");
    } else if (LATER.has(error.code)) {
      batch.before ||= error.code === "not_leader"; // it may be stored
      if (error.code === "not_leader") link.notLeader(this.number);
      else if (error.code === "no_session") link.over(this.number);
      this.#stall(error.retryAfterMs || AGAIN_MS);
    } else if (error.code === "unknown_topic" || error.code === "wrong_shard") {
      this.unknown = true;
      this.publisher.renew(this.topic, error); // it may be made anew, under another id
    } else if (batch.before) { // an earlier sending may be stored, and has its sequence then
      this.#partWithProducer(error.message);
    } else {
      const at = this.batches.indexOf(batch); // what is before it may be stored already: under another producer it would be twice
      this.#reject(batch, error);
      this.#renumber(at, batch.sequence);
      this.pump();
    }
  }

  /** End batches that were sent over an earlier connection as "may be stored", and send the rest under a new producer. */
  #partWithProducer(why) {
    const error = new GossipqError("not_confirmed", `${why}: it was sent before, and may be stored`);
    for (const batch of this.batches.filter((each) => each.before)) this.#reject(batch, error);
    this.#anew();
  }

  /** Send all batches under a new producer. */
  #anew() {
    this.#number();
    this.#renumber(0, 1);
    this.#resend();
  }

  /** Give new sequences to the batch at that place and to those behind it. Not one of them is stored yet. */
  #renumber(from, sequence) {
    this.sequence = sequence - 1;
    this.unsent = Math.min(this.unsent, from);
    for (const batch of this.batches.slice(from)) {
      batch.sequence = ++this.sequence;
      batch.before = false;
      batch.say++; // what is still said of the last sending does not count
      batch.body = restamped(batch.body, this.name, batch.sequence);
    }
  }

  #stall(ms) {
    if (this.stalled) return;
    this.stalled = true;
    this.publisher.link.later(ms, () => this.#resend());
  }

  #resend() {
    this.stalled = false;
    this.unsent = 0;
    this.pump();
  }

  /** The topic was made anew: these batches go on there. */
  leave() {
    this.close();
    this.publisher.link.shard(this.number).tenants.delete(this);
    for (const batch of this.batches) batch.say++; // what is still said of it here does not count
    return this.batches.splice(0);
  }

  /** Refuse all batches. A batch that was sent over an earlier connection may be stored nevertheless. */
  fail(error) {
    this.close();
    this.unknown = false;
    const unsure = new GossipqError("not_confirmed", `it was sent before, and may be stored; now: ${error.message}`);
    for (const batch of [...this.batches]) this.#reject(batch, batch.before ? unsure : error);
    if (this.publisher.link.closed) this.publisher.link.shard(this.number).tenants.delete(this);
    this.#anewIfIdle();
  }

  #anewIfIdle() {
    if (!this.batches.length) this.#number();
  }
}

export class Publisher {
  #lanes = new Map(); // topic -> lanes by partition
  #bytes = 0;
  #turn = 0; // where the next records without key and id go: a batch to each partition in turn

  /** `lookUp` resolves with the topic of a name as it is now. */
  constructor(link, lookUp) {
    this.link = link;
    this.lookUp = lookUp;
  }

  /** Resolves when the record is stored. `given` is what readRecords() gave. */
  publish(topic, given) {
    try {
      this.#room(given.size);
      const lane = this.#put(topic, given, given.values, given.size);
      return new Promise((resolve, reject) => lane.open.waiters.push({ count: 1, resolve, reject, many: false }));
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** Resolves when all values are stored: their places. */
  publishMany(topic, given) {
    const { values, each } = given, parts = [];
    try {
      this.#room(given.size); // for all, or for none
    } catch (error) {
      return Promise.reject(error);
    }
    for (let at = 0; at < values.length; ) {
      let end = at, size = 0;
      while (end < values.length && end - at < BATCH_RECORDS && (end === at || size + each + values[end].length <= BATCH_BYTES)) {
        size += each + values[end++].length;
      }
      const count = end - at, lane = this.#put(topic, given, values.slice(at, end), size);
      parts.push(new Promise((resolve, reject) => lane.open.waiters.push({ count, resolve, reject, many: true })));
      lane.close();
      lane.pump();
      at = end;
    }
    return parts.length === 1 ? parts[0] : Promise.all(parts).then((found) => found.flat());
  }

  #room(size) {
    if (this.link.closed) throw new GossipqError("closed", "this client is closed");
    if (this.#bytes && this.#bytes + size > WAITING_BYTES) {
      const text = `${this.#bytes} bytes wait for their confirm`;
      throw new GossipqError("backpressure", text, "await some of what was published before");
    }
  }

  /** Puts values, of `size` bytes with all that they have, into the batch of their partition, and returns its lane. */
  #put(topic, how, values, size) {
    const { key, id, flow, route, delayMs } = how, chooser = key.length ? key : flow.length ? flow : id;
    const place = chooser.length ? crc32(chooser) : this.#turn;
    const lane = this.#lane(topic, place % topic.shards.length);
    const packing = lane.packingFor(route, delayMs, size);
    for (const each of values) packing.add(each, how);
    this.#bytes += size;
    return lane;
  }

  #lane(topic, partition) {
    let lanes = this.#lanes.get(topic);
    if (!lanes) this.#lanes.set(topic, (lanes = []));
    return (lanes[partition] ??= new Lane(this, topic, partition));
  }

  /** A batch was sealed: records without a key go to the next partition. */
  turned(lane) {
    if (this.#turn % lane.topic.shards.length === lane.partition) this.#turn = lane.partition + 1;
  }

  settled(batch) {
    this.#bytes -= batch.bytes;
    for (const resolve of batch.flushes) resolve();
  }

  /** Look up a topic again that its leader does not know. Batches that cannot move to the new topic fail. */
  async renew(topic, error) {
    if (topic.renewing) return;
    topic.renewing = true;
    const failed = await this.lookUp(topic).then(() => error, (each) => each);
    topic.renewing = false;
    for (const lane of this.#lanes.get(topic) ?? []) if (lane?.unknown) lane.fail(failed);
  }

  /** A topic is known by another id than before: all goes on there, in the same order, each record in the partition of its key. */
  move(from, to) {
    const lanes = this.#lanes.get(from) ?? [];
    this.#lanes.delete(from);
    for (const lane of lanes) for (const batch of lane?.leave() ?? []) this.#repack(batch, to);
  }

  /** Nothing of it is stored. */
  #repack(batch, topic) {
    const rows = rowsOf(batch), packings = new Set(), { route, flushes } = batch;
    const delayMs = Math.max(0, batch.delayMs - Math.floor(performance.now() - batch.sealedMs));
    this.#bytes -= batch.bytes;
    for (const waiter of batch.waiters) {
      const mine = rows.splice(0, waiter.count), values = mine.map(({ value }) => value), [how] = mine;
      const size = values.reduce((sum, each) => sum + each.length + eachBytes(how), 0);
      const { open } = this.#put(topic, { ...how, route, delayMs }, values, size);
      open.waiters.push(waiter);
      packings.add(open);
    }
    const ends = [...packings].map((each) => flushes.length && new Promise((resolve) => each.flushes.push(resolve)));
    Promise.all(ends).then(() => flushes.forEach((resolve) => resolve()));
  }

  /** Until all that was published by now is confirmed, or has failed. */
  async flush() {
    const waits = [];
    for (const lanes of this.#lanes.values()) {
      for (const lane of lanes) {
        if (!lane) continue;
        lane.close();
        lane.pump();
        for (const batch of lane.batches) waits.push(new Promise((resolve) => batch.flushes.push(resolve)));
      }
    }
    await Promise.all(waits);
  }

  close() {
    const error = new GossipqError("not_confirmed", "the client was closed before this was confirmed: it may be stored");
    for (const lanes of this.#lanes.values()) for (const lane of lanes) lane?.fail(error);
  }
}

/** The records of a batch, as they were put. */
function rowsOf({ body, count }) {
  const opened = new Opened(body);
  const row = (i) => ({
    value: opened.at("values", i),
    key: opened.at("keys", i),
    packed: opened.at("headers", i),
    id: opened.at("ids", i),
    flow: opened.at("flows", i),
    ttlMs: opened.ttlMs(i),
    priority: opened.priority(i),
  });
  return Array.from({ length: count }, (_, i) => row(i));
}

/** Check the arguments of a publish and copy them, because they are sealed later. With `sealed`, values are sealed in the same call and
 * are not copied. */
export function readRecords(given, { key, headers, id, flow, priority, route = "", delayMs, ttlMs } = {}, sealed = false) {
  if (!Array.isArray(given)) throw new TypeError("values must be an array");
  const read = {
    key: key === undefined ? NOTHING : bytes(key, "key"),
    id: id === undefined ? NOTHING : bytes(id, "id"),
    flow: flow === undefined ? NOTHING : Buffer.from(text(flow, "flow")),
    priority: priority === undefined ? DEFAULT_PRIORITY : readPriority(priority),
    packed: NOTHING,
    route: route === "" ? route : text(route, "route"),
    delayMs: delayMs === undefined ? 0 : wholeMs(delayMs, "delayMs"),
    ttlMs: ttlMs === undefined ? 0 : wholeMs(ttlMs, "ttlMs"),
    values: new Array(given.length),
    each: 0, // what a record takes beside its value
    size: 0,
  };
  if (headers && Object.keys(headers).length) read.packed = Buffer.from(encode(readHeaders(headers)));
  bound("key", read.key.length, KEY_MAX);
  bound("id", read.id.length, ID_MAX);
  bound("flow", read.flow.length, FLOW_MAX);
  bound("headers", read.packed.length, HEADERS_MAX);
  if (route) bound("route", Buffer.byteLength(read.route), ROUTE_MAX);
  read.each = eachBytes(read);
  for (let i = 0; i < given.length; i++) {
    const value = (read.values[i] = bytes(given[i], "value", sealed));
    bound("value", value.length, VALUE_MAX);
    read.size += value.length + read.each;
  }
  return read;
}

/** About what a record takes beside its value. */
function eachBytes({ key, id, flow, packed }) {
  return key.length + id.length + flow.length + packed.length + RECORD_BYTES;
}

function readPriority(priority) {
  if (Number.isInteger(priority) && priority >= 0 && priority <= PRIORITY_MAX) return priority;
  throw new GossipqError("bad_request", `priority = ${priority}: not a whole number from 0 to ${PRIORITY_MAX}`);
}

function readHeaders(headers) {
  const read = Object.create(null); // so that __proto__ is a name like others
  for (const [name, value] of Object.entries(headers)) {
    read[name.toWellFormed()] = typeof value === "string" ? value.toWellFormed() : bytes(value, "a header");
  }
  return read;
}

function bound(what, size, most) {
  if (size > most) throw new GossipqError("too_large", `${what} of ${size} bytes; at most ${most} are allowed`);
}

/** The bytes of an argument; a copy, unless `lent` is true. */
function bytes(given, what, lent = false) {
  if (typeof given === "string") return Buffer.from(given);
  if (given instanceof Uint8Array) return lent ? given : Buffer.from(given);
  throw new TypeError(`${what} must be a string or a Uint8Array, not ${given === null ? "null" : typeof given}`);
}
