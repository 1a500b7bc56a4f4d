// The way to the nodes: one socket, what was asked over it, and which shards are joined.
//
// There is one rule of recovery. What has ended (RESET, a refusal that says so, no sign of life) is joined again: HELLO to
// the shard, then whatever has something there says it anew. What has no answer is asked again.

import { createHmac, randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { Dealer } from "zeromq";
import { GossipqError, BYE, CONFIRM, HELLO, HOME, PING, REFUSED, RESET, frame, parse } from "./protocol.js";

const PING_MS = 1_000;
const SILENT_MS = 3_000; // no sign of life for so long: it is gone, or the way to it
export const AGAIN_MS = 50;
const OVER = new Set(["no_session", "no_subscription", "not_leader"]);
const LATER = new Set(["busy", "joining", ...OVER]);
export const LOST = Symbol("the connection is lost");

/** A shard as this client knows it. `tenants` have something there: `joined()` is called when it is joined (again). */
class Shard {
  constructor(number) {
    this.number = number;
    this.joined = false;
    this.joining = null;
    this.term = 0;
    this.heard = Date.now();
    this.tenants = new Set();
  }
}

export class Link {
  #servers;
  #version;
  #socket = null;
  #outbox = [];
  #sending = false;
  #number = 0;
  #asked = new Map(); // request -> {shard, resolve, sentMs}
  #shards = new Map();
  #heardMs = 0;
  #timer = null;
  #closed = false;
  #key = randomBytes(32);

  constructor(servers, version) {
    this.#servers = [...servers];
    this.#version = version;
    this.session = hmac(this.#key, "session").subarray(0, 16);
    this.session[0] |= 0x80;
    this.#dial();
    this.#timer = setInterval(() => this.#look(), PING_MS);
  }

  get closed() {
    return this.#closed;
  }

  shard(number) {
    let shard = this.#shards.get(number);
    if (!shard) this.#shards.set(number, (shard = new Shard(number)));
    return shard;
  }

  /** The fields of the answer, however long it takes. Rejects with GossipqError when it is refused for good, and with the
   * signal's reason. */
  async ask(verb, number, fields, body, signal) {
    for (;;) {
      this.#check(signal);
      await this.join(number, signal);
      const answer = await this.#once(verb, number, fields, body, signal);
      if (answer === LOST) continue;
      if (answer.verb !== REFUSED) return answer.fields;
      await this.#again(GossipqError.of(answer.fields), number);
    }
  }

  /** Says something without waiting; `heard` gets the message that answers it, or nothing more if the connection goes. */
  say(verb, number, fields, body, heard) {
    const request = ++this.#number;
    if (heard) this.#asked.set(request, { shard: number, resolve: heard, sentMs: Date.now() });
    this.#outbox.push(body === undefined ? [frame(verb, number, request, fields)] : [frame(verb, number, request, fields), body]);
    this.#send();
    return request;
  }

  /** Until the shard is joined. */
  async join(number, signal) {
    const shard = this.shard(number);
    while (!shard.joined) {
      this.#check(signal);
      shard.joining ??= this.#join(shard).finally(() => (shard.joining = null));
      await until(shard.joining, signal);
    }
  }

  /** What was there has ended. */
  over(number) {
    const shard = this.shard(number);
    if (!shard.joined) return;
    shard.joined = false;
    for (const tenant of shard.tenants) tenant.ended?.(number);
    for (const [request, asked] of this.#asked) {
      if (asked.shard === number) this.#drop(request, asked);
    }
    if (shard.tenants.size && !this.#closed) this.join(number).catch(() => {});
  }

  async close() {
    if (this.#closed) return;
    this.#closed = true;
    clearInterval(this.#timer);
    for (const shard of this.#shards.values()) if (shard.joined) this.say(BYE, shard.number, []);
    for (let i = 0; i < 100 && this.#outbox.length; i++) await sleep(10);
    for (const [request, asked] of this.#asked) this.#drop(request, asked);
    if (this.#socket) {
      this.#socket.linger = 200;
      this.#socket.close();
    }
  }

  #check(signal) {
    signal?.throwIfAborted();
    if (this.#closed) throw new GossipqError("closed", "this client is closed");
  }

  async #again(error, number) {
    if (!LATER.has(error.code)) throw error;
    if (OVER.has(error.code)) this.over(number);
    await sleep(error.retryAfterMs || AGAIN_MS);
  }

  async #join(shard) {
    const hello = [this.session, "javascript", this.#version, Buffer.alloc(0), "", this.#key, true];
    const asks = [[HELLO, hello]];
    for (const tenant of shard.tenants) if (tenant.greeting) asks.push(...tenant.greeting(shard.number));
    for (const [verb, fields] of asks) {
      const answer = await this.#once(verb, shard.number, fields);
      if (answer === LOST) return;
      if (answer.verb === REFUSED) {
        const error = GossipqError.of(answer.fields);
        if (verb === HELLO || LATER.has(error.code)) {
          if (!LATER.has(error.code)) throw error;
          await sleep(error.retryAfterMs || AGAIN_MS);
          return;
        }
        for (const tenant of shard.tenants) tenant.refused?.(fields, error);
      }
    }
    shard.joined = true;
    shard.heard = Date.now();
    for (const tenant of shard.tenants) tenant.joined?.(shard.number);
  }

  #once(verb, number, fields, body, signal) {
    return new Promise((resolve, reject) => {
      const abort = () => (this.#asked.delete(request), reject(signal.reason));
      const request = this.say(verb, number, fields, body, (answer) => {
        signal?.removeEventListener("abort", abort);
        resolve(answer);
      });
      signal?.addEventListener("abort", abort, { once: true });
    });
  }

  #drop(request, asked) {
    this.#asked.delete(request);
    asked.resolve(LOST);
  }

  // --- the socket

  #dial() {
    this.#socket?.close();
    const address = this.#servers.shift();
    this.#servers.push(address);
    // a new one for each connection: an old one would send what it has queued before HELLO
    const socket = (this.#socket = new Dealer({ linger: 0, immediate: true, sendHighWaterMark: 0, receiveHighWaterMark: 0 }));
    socket.connect(address);
    this.#outbox = [];
    this.#heardMs = Date.now();
    this.#receive(socket);
    const asked = [...this.#asked];
    for (const number of this.#shards.keys()) this.over(number);
    for (const [request, each] of asked) if (this.#asked.has(request)) this.#drop(request, each);
  }

  async #send() {
    if (this.#sending) return;
    this.#sending = true;
    try {
      while (this.#outbox.length) {
        const socket = this.#socket;
        const frames = this.#outbox.shift();
        await socket.send(frames).catch(() => {});
      }
    } finally {
      this.#sending = false;
    }
  }

  async #receive(socket) {
    try {
      for await (const frames of socket) {
        if (socket !== this.#socket) return;
        this.#heardMs = Date.now();
        let message;
        try {
          message = parse(frames);
        } catch (error) {
          this.trouble?.(error);
          continue;
        }
        this.#hear(message);
      }
    } catch {
      // closed
    }
  }

  #hear(message) {
    const { verb, shard: number, request, term, fields } = message;
    const shard = this.#shards.get(number);
    if (shard) {
      shard.heard = Date.now();
      if (term && term < shard.term && verb !== CONFIRM && verb !== REFUSED) return; // from an old leader
      if (term > shard.term) shard.term = term;
    }
    if (verb === RESET) {
      for (const each of fields[0]) if (this.#shards.has(each)) this.over(each);
    } else if (verb === CONFIRM) {
      const runs = new Map(fields[3] ?? []);
      for (const row of fields[0]) this.#answer(row[0], { verb, fields: [row, runs.get(row[0])], term });
    } else if (request) {
      this.#answer(request, message);
    } else if (shard) {
      for (const tenant of shard.tenants) if (tenant.heard?.(message)) break;
    }
  }

  #answer(request, message) {
    const asked = this.#asked.get(request);
    if (!asked) return;
    this.#asked.delete(request);
    asked.resolve(message);
  }

  /** Once a second: who is there? */
  #look() {
    const now = Date.now();
    if (now - this.#heardMs > SILENT_MS) {
      this.#dial();
      return;
    }
    this.say(PING, HOME, []);
    for (const shard of this.#shards.values()) {
      if (shard.joined && shard.tenants.size) {
        if (now - shard.heard > SILENT_MS) this.over(shard.number);
        else this.say(PING, shard.number, [], undefined, (answer) => this.#pinged(shard, answer));
      }
    }
    for (const [request, asked] of this.#asked) {
      if (now - asked.sentMs > SILENT_MS && !this.shard(asked.shard).joined) this.#drop(request, asked); // of a join
      else if (now - asked.sentMs > 3 * SILENT_MS) this.#drop(request, asked);
    }
  }

  #pinged(shard, answer) {
    if (answer !== LOST && answer.verb === REFUSED && OVER.has(answer.fields[0])) this.over(shard.number);
  }
}

function hmac(key, text) {
  return createHmac("sha256", key).update(text).digest();
}

async function until(promise, signal) {
  if (!signal) return promise;
  let abort;
  const aborted = new Promise((_, reject) => signal.addEventListener("abort", (abort = () => reject(signal.reason)), { once: true }));
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}
