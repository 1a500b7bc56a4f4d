// Subscriptions: records that were delivered and wait, records that the user has, and acks in flight.

import { AGAIN_MS, LOST, nowMs } from "./link.js";
import { ACK, GossipqError, NACK, REFUSED, STARTED, SUBSCRIBE, UNSUBSCRIBE, text, unpack, whole, wholeMs } from "./protocol.js";
import { Opened } from "./batch.js";

const TIMER_MS_MAX = 0x7fffffff;
const TURN_MS = 5; // taking records lets the event loop turn after this time
const REASON_MAX = 2048;
const BEGUN_MS = 5, SLOW_MS = 10, QUIET_ATTEMPTS = 2; // when the leader hears which records are begun
const RANGES_MAX = 1000;
const SHOWN = 10; // records in the text of an error
const HOLDING_MAX = 16_384; // more ranges are refused; records of the others are redelivered
const RELEASED = JSON.stringify([-1, false]);
let numbers = 0;

/** A record. `ack()` when it is done. */
export class Message {
  #part;

  #opened;
  #index;
  #headers = null;
  #name;

  constructor(part, { key, first, attempt, opened }, index) {
    this.#part = part;
    this.#opened = opened;
    this.#index = index;
    this.topic = part.topic.name;
    this.partition = key % 65536;
    this.offset = first + index;
    this.attempt = attempt;
    this.value = opened.at("values", index);
    this.route = opened.route;
    this.timeMs = opened.timeMs;
    this.#name = `${this.partition}/${this.offset}`;
  }

  static nameOf(message) {
    return message.#name;
  }

  get key() {
    return this.#opened.at("keys", this.#index);
  }

  get id() {
    return this.#opened.at("ids", this.#index);
  }

  get headers() {
    return (this.#headers ??= readHeaders(this.#opened.at("headers", this.#index)));
  }

  /** Resolves when that is stored: true, or false if others have the record by now. */
  ack() {
    return this.#part.settle(this, ACK, "");
  }

  /** Mark the record as failed, with a reason. It is redelivered after `delayMs`; -1: by the policy of the group. */
  async nack(reason = "", options) {
    const { delayMs = -1 } = options ?? {};
    return this.#part.settle(this, NACK, JSON.stringify([wholeMs(delayMs, "delayMs", -1), true, reasonOf(reason)]));
  }

  /** Make the record a dead letter; it is not redelivered. */
  reject(reason = "") {
    return this.#part.settle(this, NACK, JSON.stringify([-1, true, reasonOf(reason), "rejected"]));
  }

  /** It is redelivered at once, to any consumer. That is an attempt, and no failure. */
  release() {
    return this.#part.settle(this, NACK, RELEASED);
  }
}

/** The outcome of an ack or nack. An error goes to the user who awaits it; otherwise flush() and close() report it. */
class Outcome extends Promise {
  isAwaited = false;

  static get [Symbol.species]() {
    return Promise;
  }

  then(...heard) {
    this.isAwaited = true;
    return super.then(...heard);
  }

  /** Resolves when it is known, and does not count as awaiting it. */
  known() {
    return new Promise((resolve) => super.then(resolve, resolve));
  }
}

/** The part of a subscription that lies in one shard. */
class Part {
  constructor(subscription, topic, shard, partitions) {
    this.subscription = subscription;
    this.topic = topic;
    this.shard = shard;
    this.number = ++numbers;
    this.held = new Map(); // "key/offset" -> {message, sinceMs, isSettled}, that the user has
    this.high = new Map(); // key -> the end of what has come
    this.again = new Map(); // "key/offset" -> what came again of what the user has: it waits for what becomes of that
    this.next = new Map(partitions.map((partition) => [topic.id * 65536 + partition, null])); // of a reader
    this.pending = new Map(); // what of NACK, or "" -> [{message, resolve}]
    this.flushing = false;
    this.accepting = false; // SUBSCRIBED has come since it was said last: what was delivered before comes again
    this.live = false;
    this.said = false; // SUBSCRIBE, so it may go on there
    this.gone = false;
    this.failed = null; // why nothing is subscribed any more
    this.begun = []; // of `held`, in the order of time: the leader has not heard that these have begun
    this.telling = null; // timer
  }

  /** The SUBSCRIBE frame for a shard that was joined. */
  greeting() {
    if (this.failed) return [];
    if (this.subscription.over) return [[UNSUBSCRIBE, [this.number]]]; // it has not heard that yet
    this.live = this.accepting = false;
    this.said = true;
    return [[SUBSCRIBE, this.#subscribe()]];
  }

  #subscribe() {
    const { group, start, credit, creditBytes, options, routes } = this.subscription;
    const starts = [...this.next].map(([key, offset]) => (offset === null ? startAt(key, start) : [key, "offset", offset]));
    const here = [...[...this.held.values()].map(({ message }) => this.#range(message)), ...this.subscription.waiting(this)];
    const holding = group ? joined(here).slice(0, HOLDING_MAX) : null;
    const auto = true, plain = false, shares = Boolean(group);
    return [this.number, group, starts, credit, creditBytes, options, false, holding, routes, true, [], auto, plain, shares];
  }

  /** Withdraw the credit from the shard, because the user will not take more records. */
  borrowNoMore() {
    if (this.live) this.subscription.link.say(SUBSCRIBE, this.shard, this.#subscribe());
  }

  joined() {
    if (this.failed || this.subscription.over) return this.leave();
    this.live = true;
    this.#tellHeld();
    this.flush();
  }

  /** The shard has heard that the subscription is over. */
  leave() {
    this.live = false;
    this.subscription.link.shard(this.shard).tenants.delete(this);
  }

  ended() {
    this.live = this.accepting = false;
    this.again.clear();
    this.begun = [];
    this.subscription.drop(this);
  }

  accepted([number, , ends]) {
    if (number !== this.number) return;
    this.accepting = true;
    if (this.subscription.group || this.subscription.start !== "new") return;
    for (const [key, offset] of ends ?? []) if (this.next.get(key) === null) this.next.set(key, offset); // a reader goes on where it began
  }

  refused(fields, error) {
    if (fields[0] !== this.number) return;
    this.failed = error;
    this.fail(error);
  }

  /** The shard refuses this client, for ever or for now: fail the requests that wait for its answer. */
  fail(error) {
    const pending = [...this.pending.values()];
    this.pending.clear();
    for (const { waiters } of pending) for (const waiter of waiters) this.#tell(waiter, false, error);
    this.subscription.fail(error, this.failed !== null);
  }

  /** Joins again what was refused. */
  rejoin() {
    if (!this.failed && !this.gone) this.subscription.link.rejoin(this.shard);
  }

  heard({ fields: [number, slices], body }) {
    if (number !== this.number) return false;
    if (this.subscription.over || !this.accepting) return true;
    let at = 0;
    for (const [key, first, count, attempt, size, , , , again = false] of slices) {
      const raw = body.subarray(at, (at += size));
      let opened;
      try {
        opened = new Opened(raw);
      } catch {
        continue; // broken on its way: it comes again
      }
      if (opened.count !== count) continue;
      const high = this.high.get(key) ?? 0;
      this.high.set(key, Math.max(high, first + count));
      this.subscription.push({ part: this, key, first, attempt, again, opened, taken: 0, end: count, repeats: first < high, settled: null });
    }
    return true;
  }

  /** Its subscription is over: what was not acked is in other hands. */
  left() {
    this.gone = true;
    this.held.clear();
    this.again.clear();
    this.begun = [];
    for (const { waiters } of this.pending.values()) for (const waiter of waiters) this.#tell(waiter, false, null);
    this.pending.clear();
  }

  has(message) {
    return this.held.has(name(message));
  }

  taken(message, again, sinceMs) {
    if (this.subscription.group) {
      const entry = { message, sinceMs, isSettled: false };
      this.held.set(name(message), entry);
      this.#begin(entry, again);
    } else this.next.set(this.#range(message)[0], message.offset + 1);
  }

  /** The user gets a record. If it might kill its consumer, or takes long, the leader hears of that before; else after 5 ms, if the user still has
   * it then. */
  #begin(entry, again) {
    const { tookMs } = this.subscription;
    if (again || entry.message.attempt > QUIET_ATTEMPTS || tookMs === null || tookMs >= SLOW_MS) return this.#tellBegun([entry.message]);
    this.begun.push(entry);
    this.#tellLater();
  }

  #tellLater() {
    this.telling ??= setTimeout(() => this.#tellOld(), BEGUN_MS).unref();
  }

  #tellOld() {
    this.telling = null;
    const old = [], end = nowMs() - BEGUN_MS + 1;
    let at = 0;
    for (; at < this.begun.length && this.begun[at].sinceMs <= end && old.length < RANGES_MAX; at++) {
      if (!this.begun[at].isSettled) old.push(this.begun[at].message);
    }
    this.begun.splice(0, at);
    this.#tellBegun(old);
    if (this.begun.length) this.#tellLater();
  }

  /** A leader that was joined just now may not know which records the user has. */
  #tellHeld() {
    const here = [...this.held.values()].filter((entry) => !entry.isSettled).map(({ message }) => message);
    for (let i = 0; i < here.length; i += RANGES_MAX) this.#tellBegun(here.slice(i, i + RANGES_MAX));
  }

  #tellBegun(messages) {
    if (this.live && messages.length) this.subscription.link.say(STARTED, this.shard, [this.number, joined(messages.map((each) => this.#range(each)))]);
  }

  /** Another consumer of the group is idle: give it the records that wait here, except for the first `keep`. */
  share([number, keep]) {
    if (number !== this.number || !this.live) return;
    const ranges = this.subscription.cut(this, Math.max(0, keep - this.held.size));
    for (let i = 0; i < ranges.length; i += RANGES_MAX) {
      this.subscription.link.say(NACK, this.shard, [this.number, ranges.slice(i, i + RANGES_MAX), -1, false], undefined, (answer) => {
        if (answer !== LOST && answer.verb === REFUSED) this.subscription.link.over(this.shard); // the leader hears anew what is held here
      });
    }
  }

  settle(message, verb, how) {
    const entry = this.held.get(name(message));
    if (entry?.message !== message && this.subscription.group) return Promise.resolve(false); // settled before
    if (this.failed) return Promise.reject(this.failed);
    this.#end(entry, how);
    const index = `${verb}${how}`, waiter = { message, verb, outcome: null, resolve: null, reject: null };
    waiter.outcome = new Outcome((resolve, reject) => {
      waiter.resolve = resolve;
      waiter.reject = reject;
    });
    this.subscription.unsettled.add(waiter);
    if (!this.pending.has(index)) this.pending.set(index, { verb, how, waiters: [] });
    this.pending.get(index).waiters.push(waiter);
    if (!this.flushing) {
      this.flushing = true;
      setImmediate(() => ((this.flushing = false), this.flush()));
    }
    return waiter.outcome;
  }

  /** The user is through with a record. */
  #end(entry, how) {
    if (!entry || entry.isSettled) return;
    entry.isSettled = true;
    this.subscription.tookMs = nowMs() - entry.sinceMs;
    if (how === RELEASED && this.begun.includes(entry)) this.#tellBegun([entry.message]); // else it would count as never begun
  }

  /** Tells the user what became of a record. */
  #tell(waiter, stored, error) {
    const { outcome, message: { topic, partition, offset } } = waiter;
    this.subscription.unsettled.delete(waiter);
    if (waiter.verb === ACK && !stored && !outcome.isAwaited) {
      this.subscription.untold.push({ outcome, error, record: { topic, partition, offset } });
      outcome.known(); // a refusal that nobody awaits ends no program: flush() and close() tell it
    }
    if (error) waiter.reject(error);
    else waiter.resolve(stored);
  }

  /** Send the acks and nacks since the last call. Those without an answer are sent again when the shard is joined. */
  flush() {
    if (!this.live) return this.rejoin();
    const pending = [...this.pending.values()];
    this.pending.clear();
    for (const { verb, how, waiters } of pending) {
      for (let i = 0; i < waiters.length; i += 1000) this.#say(verb, how, waiters.slice(i, i + 1000));
    }
  }

  #say(verb, how, waiters) {
    const ranges = joined(waiters.map(({ message }) => this.#range(message)));
    const fields = [this.number, ranges, ...(how ? JSON.parse(how) : [])];
    this.subscription.link.say(verb, this.shard, fields, undefined, (answer) => {
      const error = answer !== LOST && answer.verb === REFUSED ? GossipqError.of(answer.fields) : null;
      if (answer === LOST || (error && AGAIN.has(error.code))) {
        if (this.gone || this.failed) return waiters.forEach((waiter) => this.#tell(waiter, false, this.gone ? null : this.failed));
        const index = `${verb}${how}`;
        const before = this.pending.get(index)?.waiters ?? [];
        this.pending.set(index, { verb, how, waiters: [...waiters, ...before] });
        if (error?.code === "not_leader") this.subscription.link.notLeader(this.shard);
        else if (error?.code === "no_session" || error?.code === "no_subscription") this.subscription.link.over(this.shard);
        else this.subscription.link.later(error?.retryAfterMs || AGAIN_MS, () => this.flush());
        return;
      }
      const stored = waiters.filter(({ message }) => !error && !lost(answer.fields[0], this.#range(message)));
      this.subscription.settled(this, stored);
      const settled = new Set(stored);
      for (const waiter of waiters) this.#settled(waiter, settled.has(waiter), error);
    });
  }

  /** A redelivery that arrived meanwhile shares the outcome of the delivery that the user had. If that failed, the user gets it. */
  #settled(waiter, stored, error) {
    if (error) return this.#tell(waiter, false, error); // the user has it still
    const index = name(waiter.message), again = this.again.get(index);
    this.held.delete(index);
    this.again.delete(index);
    if (again && !stored) this.subscription.push(again);
    this.#tell(waiter, stored, null);
  }

  #range(message) {
    return [this.topic.id * 65536 + message.partition, message.offset, message.offset + 1];
  }
}

const AGAIN = new Set(["busy", "joining", "not_leader", "no_session", "no_subscription"]);

/** Records of a topic, for a group or (without one) a reader. An AsyncIterable; it ends by `close`, `break`, or its signal. */
export class Subscription {
  #waiting = [];
  #repeats = false; // what waits may have come before
  #wakes = new Set(); // of those that wait in next()
  #error = null;
  #refused = null; // error of a shard that refused this client: raised once, then the client tries again
  #taken = []; // records of a reader whose credit is not returned yet: {part, message}
  #closing = null;
  #turnedMs = 0; // last known time at which the event loop turned
  tookMs = null; // how long the user had the record that was settled last
  unsettled = new Set(); // acks and nacks whose outcome is not known
  untold = []; // failed acks, which flush() and close() report unless the user awaits them
  over = false;

  /** `options` are what readSubscribe() gave. */
  constructor(link, topic, options) {
    Object.assign(this, { link, topic, ...options });
    const shards = new Map();
    topic.shards.forEach((shard, i) => shards.set(shard, [...(shards.get(shard) ?? []), i]));
    this.parts = [...shards].map(([shard, partitions]) => new Part(this, topic, shard, partitions));
    this.onAbort = () => this.close().catch(() => {});
    this.signal?.addEventListener("abort", this.onAbort, { once: true });
  }

  async open() {
    try {
      await Promise.all(this.parts.map((part) => this.link.patience(part.shard, this.signal)));
      for (const part of this.parts) {
        this.link.shard(part.shard).tenants.add(part);
        this.link.over(part.shard);
      }
      await Promise.all(this.parts.map((part) => this.link.join(part.shard, this.signal)));
      if (this.#error) throw this.#error;
    } catch (error) {
      this.close().catch(() => {}); // parts of it may take records
      throw error;
    }
    return this;
  }

  /** The next message; null when none comes within `waitMs`, or the subscription is closed. */
  async next(waitMs = Infinity) {
    this.#lendAgain();
    const began = nowMs(), end = began + waitMs;
    let waited = false;
    if (began - this.#turnedMs > TURN_MS) await this.#turn();
    for (;;) {
      const stretch = this.#waiting[0];
      if (!stretch) {
        if (this.#error) throw this.#error;
        const refused = this.#refused;
        this.#refused = null;
        if (refused) throw refused;
        if (this.over || end <= nowMs()) return null;
        for (const part of this.parts) part.rejoin();
        this.#lendAgain(); // others may have taken what there was
        await this.#woken(end);
        waited = true;
        continue;
      }
      const { part } = stretch, index = stretch.taken++, message = new Message(part, stretch, index);
      if (stretch.taken === stretch.end) this.#waiting.shift();
      if (stretch.settled?.has(message.offset)) continue;
      if (part.has(message)) { // its lease has ended, or its ack was not heard, and the user still has it
        part.again.set(name(message), { ...stretch, taken: index, end: index + 1, settled: null });
        continue;
      }
      part.taken(message, stretch.again, waited ? nowMs() : began);
      if (!this.group) this.#taken.push({ part, message });
      return message;
    }
  }

  #lendAgain() {
    for (const { part, message } of this.#taken.splice(0)) part.settleReader(message);
  }

  /** Lets acks and signs of life leave: a program that never waits for anything else would hold them back. */
  async #turn() {
    await new Promise((resolve) => setImmediate(resolve));
    this.#turnedMs = nowMs();
  }

  /** Until something has changed, or then. */
  #woken(end) {
    return new Promise((resolve) => {
      const left = end - nowMs();
      const wake = () => (clearTimeout(timer), this.#wakes.delete(wake), resolve());
      const timer = Number.isFinite(left) ? setTimeout(wake, Math.min(left, TIMER_MS_MAX)) : null;
      this.#wakes.add(wake);
    });
  }

  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        const message = await this.next();
        if (message === null) return;
        yield message;
      }
    } finally {
      await this.close();
    }
  }

  push(stretch) {
    if (this.over || this.#error) return;
    this.#waiting.push(stretch);
    this.#repeats ||= stretch.repeats;
    this.#wake();
  }

  #wake() {
    for (const wake of [...this.#wakes]) wake();
  }

  /** Ranges of the waiting records of that part. */
  waiting(part) {
    return this.#waiting.filter((each) => each.part === part).map(({ key, first, taken, end }) => [key, first + taken, first + end]);
  }

  /** Remove the waiting records of that part behind the first `kept`, and return their ranges. */
  cut(part, kept) {
    const ranges = [];
    for (const each of this.#waiting) {
      if (each.part !== part) continue;
      const end = Math.min(each.end, each.taken + kept);
      if (end < each.end) ranges.push([each.key, each.first + end, each.first + each.end]);
      kept -= end - each.taken;
      each.end = end;
    }
    this.#waiting = this.#waiting.filter((each) => each.taken < each.end);
    return ranges;
  }

  /** Drop the waiting records of that part. The leader redelivers them. */
  drop(part) {
    this.#waiting = this.#waiting.filter((each) => each.part !== part);
  }

  /** The user does not see an acked record again, and sees a failed one only after its pause. A new leader may redeliver a record before
   *  it receives the ack, because the client resends acks after a takeover. */
  settled(part, stored) {
    if (!this.#repeats) return;
    const waiting = this.#waiting.filter((each) => each.repeats);
    this.#repeats = waiting.length > 0;
    for (const stretch of waiting) {
      if (stretch.part !== part) continue;
      for (const { message: { partition, offset } } of stored) {
        if (partition !== stretch.key % 65536 || offset < stretch.first || offset >= stretch.first + stretch.end) continue;
        (stretch.settled ??= new Set()).add(offset);
      }
    }
  }

  fail(error, forGood) {
    if (this.over) return;
    if (!forGood) this.#refused = error;
    else if (!this.#error) {
      this.#error = error;
      this.credit = this.creditBytes = 0;
      for (const part of this.parts) part.borrowNoMore();
    }
    this.#wake();
  }

  /** Resolves when all acks are stored. Rejects if some are not and the program does not await them: with lease_lost, whose `records` say
   * which ones others have by now, or with the refusal of the first. */
  async flush() {
    await Promise.all([...this.unsettled].map(({ outcome }) => outcome.known()));
    this.#tellLost();
  }

  #tellLost() {
    const told = this.untold.splice(0).filter(({ outcome }) => !outcome.isAwaited);
    const refused = told.find(({ error }) => error);
    if (refused) throw refused.error;
    if (told.length) throw leaseLost(told.map(({ record }) => record));
  }

  /** Ends it. Records that the user has can still be acked before this resolves; the others go back. Rejects as flush() does. */
  close() {
    return (this.#closing ??= this.#close());
  }

  async #close() {
    this.over = true;
    this.signal?.removeEventListener("abort", this.onAbort);
    this.#waiting = [];
    this.#wake();
    await Promise.all(this.parts.map((part) => this.#leave(part)));
    this.onOver?.();
    this.#tellLost();
  }

  async #leave(part) {
    if (!part.said) return part.leave();
    part.flush();
    if (!this.link.closed && part.live) {
      const answer = await new Promise((resolve) => this.link.say(UNSUBSCRIBE, part.shard, [part.number], undefined, resolve));
      if (answer !== LOST && answer.verb !== REFUSED) part.leave();
      else this.link.over(part.shard); // it may go on there: that is said when the shard is joined again
    } else if (!this.link.closed) {
      this.link.say(UNSUBSCRIBE, part.shard, [part.number]); // it may be subscribed, and not say so yet
    }
    part.left();
  }
}

Part.prototype.settleReader = function (message) {
  // a reader's ack only returns the credit of the record; if the ack gets lost, the next SUBSCRIBE grants the credit anew
  if (this.live) this.subscription.link.say(ACK, this.shard, [this.number, [[this.topic.id * 65536 + message.partition, message.offset, message.offset + 1]]]);
};

/** Check the options of a subscription before anything is sent. */
export function readSubscribe({ group = "", start = group ? "first" : "new", mode = null, credit = mode === "exclusive" ? 1 : 1000, creditBytes = 8 << 20, leaseMs = null, routes = [], signal }) {
  if (!Array.isArray(routes)) throw new TypeError("routes must be an array of strings");
  if (!group && (mode ?? leaseMs) !== null) throw new GossipqError("bad_request", "mode or leaseMs without a group", "name one");
  if (typeof start === "number") whole(start, "start", 0);
  else if (start instanceof Date) whole(start.getTime(), "start", 0);
  else text(start, "start");
  return {
    group: text(group, "group"),
    start,
    credit: whole(credit, "credit", 1),
    creditBytes: whole(creditBytes, "creditBytes", 1),
    routes: routes.map((each) => text(each, "a route")),
    signal,
    options: [mode === null ? mode : text(mode, "mode"), leaseMs === null ? leaseMs : wholeMs(leaseMs, "leaseMs", 1)],
  };
}

function startAt(key, start) {
  if (typeof start === "number") return [key, "offset", start];
  if (start instanceof Date) return [key, "time", start.getTime()];
  return [key, start];
}

/** Of a failure, for people: an error says what it is. As much as is kept of it, or more. */
function reasonOf(given) {
  return String(given ?? "").slice(0, REASON_MAX).toWellFormed();
}

function leaseLost(records) {
  const some = records.slice(0, SHOWN).map(({ topic, partition, offset }) => `${topic}/${partition}/${offset}`).join(", ");
  const more = records.length > SHOWN ? ` and ${records.length - SHOWN} more` : "";
  const error = new GossipqError("lease_lost", `the acks of these records are not stored, others may have them: ${some}${more}`);
  return Object.assign(error, { records });
}

const name = Message.nameOf;

function lost(ranges, [key, first]) {
  return (ranges ?? []).some(([partition, low, high]) => partition === key && low <= first && first < high);
}

/** Ranges side by side as one. */
function joined(ranges) {
  ranges.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const found = [];
  for (const [key, first, end] of ranges) {
    const last = found[found.length - 1];
    if (last && last[0] === key && last[2] === first) last[2] = end;
    else found.push([key, first, end]);
  }
  return found;
}

/** Decode headers. Invalid headers become one header with their bytes, because nodes do not check them. */
function readHeaders(raw) {
  if (!raw.length) return {};
  try {
    const read = unpack(raw);
    if (areHeaders(read)) return read;
  } catch {
    // no msgpack
  }
  return { "gossipq-unreadable-headers": raw };
}

function areHeaders(read) {
  if (typeof read !== "object" || read === null || Object.getPrototypeOf(read) !== Object.prototype) return false;
  return Object.values(read).every((each) => typeof each === "string" || each instanceof Uint8Array);
}
