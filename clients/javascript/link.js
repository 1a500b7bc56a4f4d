// The ways to the nodes: the home, and straight to the leaders; what was asked over them, and which shards are joined.
//
// There is one rule of recovery. A session ends by RESET, by a refusal that says so, by silence or by a lost connection. Then the
// client joins the shard again: it sends HELLO, each publisher and subscription greets the shard anew, and requests without an
// answer are sent again. The client connects straight to the leader of a shard if it knows the leader. Otherwise, or if the leader
// does not answer, its first node (the home) forwards.

import { createHmac, randomBytes } from "node:crypto";
import { setMaxListeners } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { Dealer } from "zeromq";
import { addressOf, failed, nameIn, withAddress } from "./names.js";
import { GossipqError, BYE, CONFIRM, DELIVER, HELLO, HOME, PING, REFUSED, RESET, SHARE, SUBSCRIBED, WELCOME, frame, parse } from "./protocol.js";

const PING_MS = 1_000;
const SILENT_MS = 3_000; // after this silence the node, or the network to it, counts as down
const DIRECT_MS = 1_000, DETOUR_MS = 1_000, DETOUR_MS_MAX = 30_000, REDIAL_MS = 100, ROUTES_MS = 250, DOOR_STEP = 100;
const FRAME_BYTES_MAX = 17_899_520; // PROTOCOL.md section 14
export const AGAIN_MS = 50;
const HELLO_AGAIN_MS = 1_000;
const OVER = new Set(["no_session", "no_subscription", "not_leader"]);
const AWAY = new Set(["not_leader", "busy", "joining"]); // of a node that the others do not hear, for as long as that lasts
const LATER = new Set([...AWAY, ...OVER]);
export { isHere };
/** Monotonic time in ms, for durations. */
export const nowMs = () => performance.now();
export const LOST = Symbol("the connection is lost");

/** A shard as this client knows it. `tenants` have something there: `joined()` is called when it is joined (again). */
class Shard {
  constructor(number) {
    this.number = number;
    this.joined = false;
    this.joining = null;
    this.ended = false; // since it was begun to join it
    this.term = 0;
    this.heard = nowMs();
    this.awayMs = 0; // since when all answers say that its leader cannot be reached
    this.patientMs = 0; // until when it is not joined again, since it refused that
    this.tenants = new Set();
    this.way = null; // over which it is joined
    this.endpoint = ""; // of its leader, as far as that is known,
    this.routeTerm = 0;
    this.detourMs = this.detourForMs = 0; // and until when it is not gone straight to, since that has failed
  }

  detour() {
    this.detourForMs = Math.min(2 * this.detourForMs || DETOUR_MS, DETOUR_MS_MAX);
    this.detourMs = nowMs() + this.detourForMs;
  }
}

/** A connection. Its socket is new: an old one would send what it has queued before HELLO. */
class Way {
  #outbox = [];
  #sending = false;
  #address = ""; // to which its host's name led

  constructor(endpoint, curve, hear, lost) {
    this.endpoint = endpoint;
    this.heardMs = this.madeMs = nowMs();
    this.socket = new Dealer({ linger: 0, ipv6: endpoint.includes("["), immediate: true, maxMessageSize: FRAME_BYTES_MAX, sendHighWaterMark: 0, receiveHighWaterMark: 0, ...curve });
    const name = nameIn(endpoint);
    for (const event of ["disconnect", "connect:retry"]) {
      this.socket.events.on(event, () => {
        if (name) failed(name, this.#address);
        setImmediate(lost, this);
      });
    }
    if (name) this.#connectByName(name, curve, lost);
    else this.#connect(endpoint, curve);
    this.#receive(hear);
  }

  #connect(endpoint, curve) {
    try {
      this.socket.connect(curve ? atDoor(endpoint) : endpoint);
    } catch (error) {
      this.socket.close();
      throw new GossipqError("bad_request", `${endpoint} is no address: ${error.message}`);
    }
  }

  async #connectByName(name, curve, lost) {
    try {
      this.#address = await addressOf(name);
      if (!this.socket.closed) this.#connect(withAddress(this.endpoint, this.#address), curve);
    } catch {
      lost(this); // nobody knows the name now: the next server, or the same one later
    }
  }

  get idle() {
    return !this.#outbox.length && !this.#sending;
  }

  send(frames) {
    this.#outbox.push(frames);
    if (!this.#sending) this.#drain();
  }

  async #drain() {
    this.#sending = true;
    try {
      while (this.#outbox.length && !this.socket.closed) await this.socket.send(this.#outbox.shift()).catch(() => {});
    } finally {
      this.#sending = false;
    }
  }

  async #receive(hear) {
    try {
      for await (const frames of this.socket) {
        this.heardMs = nowMs();
        hear(this, frames);
      }
    } catch {
      // closed
    }
  }

  close(linger = 0) {
    this.#outbox = [];
    if (this.socket.closed) return;
    this.socket.linger = linger;
    this.socket.close();
  }
}

export class Link {
  #servers;
  #version;
  #options;
  #home = null;
  #ways = new Map(); // endpoint -> to a worker
  #number = 0;
  #asked = new Map(); // request -> {shard, way, resolve, sentMs}
  #shards = new Map();
  #routesMs = -Infinity;
  #timer = null;
  #closed = false;
  #ending = new AbortController(); // one signal for as many pauses as there are: Node warns of more than ten
  #key = randomBytes(32);

  /** options: token (32 bytes, or empty), insecure, curve, forward. */
  constructor(servers, version, options) {
    this.#servers = [...servers];
    this.#version = version;
    this.#options = options;
    setMaxListeners(0, this.#ending.signal);
    this.session = hmac(this.#key, "session").subarray(0, 16);
    this.session[0] |= 0x80;
    this.#dial();
    this.#timer = setInterval(() => this.#look(), PING_MS);
  }

  get closed() {
    return this.#closed;
  }

  producerName(number) {
    const name = Buffer.alloc(16);
    name.writeUInt32BE(number);
    hmac(this.#key, Buffer.concat([Buffer.from("producer"), name.subarray(0, 4)])).copy(name, 4, 0, 12);
    return name;
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
      await this.#again(GossipqError.of(answer.fields), number, signal);
    }
  }

  /** Says something without waiting; `heard` gets the message that answers it, or nothing more if the connection goes. */
  say(verb, number, fields, body, heard) {
    const request = ++this.#number;
    const way = (number !== HOME && this.shard(number).way) || this.#home;
    if (heard) this.#asked.set(request, { shard: number, way, resolve: heard, sentMs: nowMs() });
    way.send(body === undefined ? [frame(verb, number, request, fields)] : [frame(verb, number, request, fields), body]);
    return request;
  }

  /** Until the shard is joined. */
  async join(number, signal) {
    const shard = this.shard(number);
    while (!shard.joined) {
      this.#check(signal);
      shard.joining ??= this.#join(shard).catch((error) => this.#joinRefused(shard, error)).finally(() => (shard.joining = null));
      await until(shard.joining, signal);
    }
  }

  #joinRefused(shard, error) {
    shard.patientMs = nowMs() + HELLO_AGAIN_MS;
    throw error;
  }

  /** After a refusal by a shard, wait a moment before asking it again, so that a user's loop does not ask in each turn. */
  async patience(number, signal) {
    const ms = this.shard(number).patientMs - nowMs();
    if (ms > 0) await until(this.#pause(ms), signal);
  }

  /** The session in the shard has ended. */
  over(number) {
    const shard = this.shard(number);
    if (!shard.joined) return;
    shard.joined = false;
    for (const tenant of shard.tenants) tenant.ended?.(number);
    for (const [request, asked] of this.#asked) {
      if (asked.shard === number) this.#drop(request, asked);
    }
    this.rejoin(number);
  }

  /** Begins to join it, unless that goes on already. */
  rejoin(number) {
    const shard = this.shard(number);
    if (shard.joined || shard.joining || !shard.tenants.size || this.#closed) return;
    this.join(number).catch((error) => this.#failed(shard, error));
  }

  /** The shard refused to be joined again: pass the error to every user of the shard. */
  #failed(shard, error) {
    if (!this.#closed) for (const tenant of [...shard.tenants]) tenant.fail(error);
  }

  /** Does that then, if the client is not closed by then. */
  later(ms, run) {
    this.#pause(ms).then(() => this.#closed || run());
  }

  /** Wait for `ms`, or until the client is closed. */
  #pause(ms) {
    return sleep(ms, undefined, { signal: this.#ending.signal }).catch(() => {});
  }

  /** The node that was asked no longer leads the shard. */
  notLeader(number) {
    const shard = this.shard(number);
    if (shard.way && shard.way !== this.#home && shard.way.endpoint === shard.endpoint) shard.detour();
    this.over(number);
  }

  /** Note the leader of a shard, as a node has reported it. Requests in flight through the home stay there. */
  #learn(number, term, endpoint) {
    const shard = this.shard(number);
    if (!endpoint || term < shard.routeTerm) return;
    if (endpoint !== shard.endpoint) shard.detourMs = shard.detourForMs = 0;
    shard.endpoint = endpoint;
    shard.routeTerm = term;
    if (shard.joined && shard.way === this.#home && this.#mayGoStraight(shard)) this.over(number);
  }

  /** True if the client may connect straight to the leader. A token does not leave this machine unencrypted. */
  #mayGoStraight(shard) {
    const { forward, token, insecure } = this.#options;
    if (forward || !shard.endpoint || nowMs() < shard.detourMs) return false;
    return !token.length || insecure || isHere(shard.endpoint);
  }

  /** The connection straight to the leader; null: it has to be forwarded. */
  #straight(shard) {
    if (!this.#mayGoStraight(shard)) return null;
    let way = this.#ways.get(shard.endpoint);
    try {
      if (!way) this.#ways.set(shard.endpoint, (way = this.#call(shard.endpoint, this.#options.curve)));
    } catch {
      shard.detour(); // it is no address
      return null;
    }
    return way;
  }

  #call(endpoint, curve) {
    return new Way(endpoint, curve, (way, frames) => this.#received(way, frames), (way) => this.#lost(way));
  }

  /** A connection is lost, or could not be made. */
  #lost(way) {
    if (this.#closed) return;
    if (way === this.#home) {
      setTimeout(() => way === this.#home && !this.#closed && this.#dial(), Math.max(0, way.madeMs + REDIAL_MS - nowMs()));
    } else if (this.#ways.get(way.endpoint) === way) {
      for (const shard of this.#shards.values()) if (shard.way === way) shard.detour();
      this.#leave(way);
    }
  }

  #leave(way) {
    if (!way) return;
    if (this.#ways.get(way.endpoint) === way) this.#ways.delete(way.endpoint);
    way.close();
    for (const shard of this.#shards.values()) {
      if (shard.way !== way) continue;
      shard.way = null;
      this.over(shard.number);
    }
    for (const [request, asked] of this.#asked) if (asked.way === way) this.#drop(request, asked);
  }

  async close() {
    if (this.#closed) return;
    this.#closed = true;
    clearInterval(this.#timer);
    this.#ending.abort();
    for (const shard of this.#shards.values()) if (shard.joined) this.say(BYE, shard.number, []);
    const ways = [this.#home, ...this.#ways.values()];
    for (let i = 0; i < 20 && !ways.every((way) => way.idle); i++) await sleep(10);
    for (const [request, asked] of this.#asked) this.#drop(request, asked);
    for (const way of ways) way.close(200);
  }

  #check(signal) {
    signal?.throwIfAborted();
    if (this.#closed) throw new GossipqError("closed", "this client is closed");
  }

  async #again(error, number, signal) {
    if (!LATER.has(error.code)) throw error;
    if (error.code === "not_leader") this.notLeader(number);
    else if (OVER.has(error.code)) this.over(number);
    await until(this.#pause(error.retryAfterMs || AGAIN_MS), signal);
  }

  #hello() {
    return [this.session, "javascript", this.#version, this.#options.token, "", this.#key, true];
  }

  /** Asks the home who leads what, but not each time something is tried again. */
  async #askRoutes() {
    if (this.#options.forward || nowMs() - this.#routesMs < ROUTES_MS) return;
    const answer = await this.#once(HELLO, HOME, this.#hello());
    if (answer === LOST) return;
    this.#routesMs = nowMs();
    if (answer.verb === REFUSED) {
      const error = GossipqError.of(answer.fields);
      if (!LATER.has(error.code)) throw error;
    }
  }

  async #join(shard) {
    shard.way = null;
    for (const tenant of shard.tenants) tenant.ended?.(shard.number);
    await this.patience(shard.number);
    await this.#askRoutes();
    if (this.#closed) return;
    const direct = this.#straight(shard);
    const way = (shard.way = direct ?? this.#home);
    shard.ended = false;
    for (const [verb, fields] of this.#greetings(shard)) {
      const answer = await this.#once(verb, shard.number, fields, undefined, undefined, direct && verb === HELLO ? DIRECT_MS : 0);
      if (answer === LOST || shard.way !== way) {
        if (shard.way === direct) shard.detour();
        return;
      }
      if (answer.verb === REFUSED) {
        const error = GossipqError.of(answer.fields);
        if (verb === HELLO || LATER.has(error.code)) {
          if (!LATER.has(error.code)) throw error;
          if (direct) shard.detour(); // it leads no more
          await this.#pause(error.retryAfterMs || AGAIN_MS);
          return;
        }
        shard.patientMs = nowMs() + AGAIN_MS;
        for (const tenant of shard.tenants) tenant.refused?.(fields, error);
      }
    }
    if (shard.ended) return;
    shard.joined = true;
    shard.heard = nowMs();
    if (direct) shard.detourForMs = 0;
    for (const tenant of shard.tenants) tenant.joined?.(shard.number);
  }

  /** Yield the frames that join a shard: HELLO, then those of each tenant that still exists when its turn comes. */
  *#greetings(shard) {
    yield [HELLO, this.#hello()];
    for (const tenant of shard.tenants) if (tenant.greeting) yield* tenant.greeting(shard.number);
  }

  /** Send one request and return its answer. Returns LOST if the connection ends, or if no answer came within `withinMs` (0: no limit). */
  async #once(verb, number, fields, body, signal, withinMs = 0) {
    if (this.#closed) return LOST;
    return new Promise((resolve, reject) => {
      let timer = null;
      const abort = () => (this.#asked.delete(request), reject(signal.reason));
      const request = this.say(verb, number, fields, body, (answer) => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", abort);
        resolve(answer);
      });
      if (withinMs) timer = setTimeout(() => this.#asked.has(request) && this.#drop(request, this.#asked.get(request)), withinMs);
      signal?.addEventListener("abort", abort, { once: true });
    });
  }

  #drop(request, asked) {
    this.#asked.delete(request);
    asked.resolve(LOST);
  }

  // --- the socket

  #dial() {
    let failed = null;
    for (const address of [...this.#servers]) {
      this.#servers.push(this.#servers.shift());
      try {
        const old = this.#home;
        this.#home = this.#call(address, this.#options.curve);
        this.#routesMs = -Infinity;
        return this.#leave(old);
      } catch (error) {
        failed = error; // the next one, then
      }
    }
    if (!this.#home) throw failed;
  }

  #received(way, frames) {
    try {
      this.#hear(way, parse(frames));
    } catch (error) {
      if (error.code !== "wrong_version") return; // of somebody who is no node
      for (const [request, asked] of this.#asked) {
        if (asked.way === way && (!error.request || error.request === request)) {
          this.#answer(request, { verb: REFUSED, fields: [error.code, error.message] });
        }
      }
    }
  }

  #hear(way, message) {
    const { verb, shard: number, request, term, fields } = message;
    const shard = this.#shards.get(number);
    if (shard && shard.way === way) {
      shard.heard = nowMs();
      if (verb === REFUSED && AWAY.has(fields[0])) shard.awayMs ||= nowMs();
      else if (verb !== REFUSED && verb !== WELCOME) shard.awayMs = 0;
      if (term && term < shard.term && verb !== CONFIRM && verb !== REFUSED) return; // from an old leader
      if (term > shard.term) shard.term = term;
    }
    if (verb === WELCOME && number === HOME) {
      for (const [each, newest, endpoint] of fields[6] ?? []) this.#learn(each, newest, endpoint);
    } else if (verb === REFUSED && shard && term > shard.routeTerm) {
      this.#learn(number, term, fields[5]);
    }
    if (verb === RESET) {
      for (const each of fields[0]) {
        const of = this.#shards.get(each);
        if (of?.way !== way) continue;
        of.ended = true;
        this.over(each);
      }
    } else if (verb === CONFIRM) {
      const runs = new Map(fields[3] ?? []);
      for (const row of fields[0]) this.#answer(row[0], { verb, fields: [row, runs.get(row[0])], term });
      this.#learn(number, term, fields[2]);
    } else if (request) {
      if (verb === SUBSCRIBED && shard?.way === way) for (const tenant of shard.tenants) tenant.accepted?.(fields);
      this.#answer(request, message);
      if (verb === SUBSCRIBED) this.#learn(number, term, fields[3]);
    } else if (verb === DELIVER && shard && shard.way === way) {
      for (const tenant of shard.tenants) if (tenant.heard?.(message)) break;
    } else if (verb === SHARE && shard && shard.way === way) {
      for (const tenant of shard.tenants) tenant.share?.(fields);
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
    const now = nowMs();
    if (now - this.#home.heardMs > SILENT_MS || this.#cutOff(now)) this.#dial();
    this.say(PING, HOME, []);
    for (const shard of this.#shards.values()) {
      if (shard.joined && shard.tenants.size) {
        if (now - shard.heard > SILENT_MS) this.notLeader(shard.number);
        else this.say(PING, shard.number, [], undefined, (answer) => this.#pinged(shard, answer));
      }
    }
    for (const [request, asked] of this.#asked) {
      const joining = asked.shard === HOME || !this.shard(asked.shard).joined;
      if (now - asked.sentMs > SILENT_MS && joining) this.#drop(request, asked);
      else if (now - asked.sentMs > 3 * SILENT_MS) this.#drop(request, asked);
    }
  }

  /** True if the home has not reached the leader of some shard for a long time: it may be cut off from the others. */
  #cutOff(now) {
    const shards = [...this.#shards.values()];
    if (this.#servers.length === 1 || !shards.some((each) => each.way === this.#home && each.awayMs && now - each.awayMs > SILENT_MS)) {
      return false;
    }
    for (const each of shards) each.awayMs = 0;
    return true;
  }

  #pinged(shard, answer) {
    if (answer !== LOST && answer.verb === REFUSED && OVER.has(answer.fields[0])) this.over(shard.number);
  }
}

/** Encrypted, a node answers 100 above each of its ports. */
function atDoor(endpoint) {
  return endpoint.replace(/:(\d+)$/, (_, port) => `:${Number(port) + DOOR_STEP}`);
}

function isHere(endpoint) {
  return /^(tcp:\/\/(127\.\d+\.\d+\.\d+|localhost|\[::1\]):|ipc:)/.test(endpoint);
}

function hmac(key, text) {
  return createHmac("sha256", key).update(text).digest();
}

export async function until(promise, signal) {
  if (!signal) return promise;
  signal.throwIfAborted();
  let abort;
  const aborted = new Promise((_, reject) => signal.addEventListener("abort", (abort = () => reject(signal.reason)), { once: true }));
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}
