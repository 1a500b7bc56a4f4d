// The client of gossipq. See README.md, and index.d.ts for all of it with types.

import { setMaxListeners } from "node:events";
import { readFileSync, statSync } from "node:fs";
import { curveKeyPair } from "zeromq";
import { Link, isHere, until } from "./link.js";
import { GossipqError, HOME, RESOLVE, text } from "./protocol.js";
import { Publisher, readRecords } from "./publisher.js";
import { Message, Subscription, readSubscribe } from "./subscription.js";

export { GossipqError, Message, Subscription };
export const VERSION = "0.2.0";
const SERVER = "tcp://127.0.0.1:7700";
const MOVED = new Set(["unknown_topic", "wrong_shard"]); // by a topic that is known from before

/** A client of the nodes at these addresses; one address is enough. The default is $GOSSIPQ_SERVER, or this host's node.
 * Options are credentials, token, door, insecure and forward: see index.d.ts. */
export function connect(servers = process.env.GOSSIPQ_SERVER ?? SERVER, options = {}) {
  const addresses = (Array.isArray(servers) ? servers : String(servers).split(",")).map(address);
  if (!addresses.length) throw new GossipqError("bad_request", "no address of a node");
  return new Client(addresses, options);
}

/** The token to show, and the key of the nodes: 32 bytes, or none. */
function keysOf({ credentials = process.env.GOSSIPQ_CREDENTIALS, token, door }) {
  if (!token && !credentials) return { token: Buffer.alloc(0), door: key("door_", door ? [door] : []) };
  if (!token && statSync(credentials).isFile() && statSync(credentials).mode & 0o077) {
    throw new GossipqError("bad_request", `other users of this machine may read ${credentials}`, `chmod 600 ${credentials}`);
  }
  const lines = token ? [token] : readFileSync(credentials, "utf8").split(/\s+/);
  const found = { token: key("gq_", lines), door: key("door_", door ? [door] : lines) };
  if (!found.token.length) {
    throw new GossipqError("bad_request", `${token ? "what was given" : credentials} holds no token`, "one begins with gq_");
  }
  return found;
}

function key(name, lines) {
  const line = lines.find((each) => each.startsWith(name));
  if (line && !/^[a-z]+_[0-9a-f]{64}$/.test(line)) throw new GossipqError("bad_request", `no key: ${name} and 64 hexadecimal digits`);
  return Buffer.from(line ? line.slice(name.length) : "", "hex");
}

/** Options of a CURVE connection: the key of the nodes, and a fresh key pair of this client. */
function curveOf(door) {
  if (!door.length) return null;
  const pair = curveKeyPair();
  return { curveServerKey: z85(door), curvePublicKey: pair.publicKey, curveSecretKey: pair.secretKey };
}

const Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

function z85(raw) {
  let text = "";
  for (let at = 0; at < raw.length; at += 4) {
    let number = raw.readUInt32BE(at), part = "";
    for (let i = 0; i < 5; i++, number = Math.floor(number / 85)) part = Z85[number % 85] + part;
    text += part;
  }
  return text;
}

function address(text) {
  text = text.trim();
  const full = text.includes("://") ? text : `tcp://${text}`;
  return /:\d+$/.test(full) || full.startsWith("ipc://") ? full : `${full}:7700`;
}

export class Client {
  #link;
  #publisher;
  #topics = new Map(); // by name, as far as they are known
  #asked = new Map(); // name -> promise of the topic, until it is known
  #waiting = new Set(); // what is published and waits for its topic
  #subscriptions = new Set();

  constructor(servers, options = {}) {
    const { token, door } = keysOf(options), insecure = Boolean(options.insecure || door.length);
    if (token.length && !insecure && !servers.every(isHere)) {
      throw new GossipqError("bad_request", "the token would cross a network in the clear, where others may read it", "insecure: true, if that network is yours");
    }
    this.#link = new Link(servers, VERSION, { token, insecure, curve: curveOf(door), forward: Boolean(options.forward) });
    this.#publisher = new Publisher(this.#link, (topic) => this.#lookUp(topic));
  }

  /** Resolves when the record is stored: {topic, partition, offset, copies, duplicate}. Many may be under way at a time;
   * records of one key are stored in the order in which they were published. */
  publish(topic, value, options) {
    return this.#put(topic, [value], options, false, (found, records) => this.#publisher.publish(found, records));
  }

  /** The same for many values with the same options: resolves with the place of each when all are stored. */
  publishMany(topic, values, options) {
    return this.#put(topic, values, options, true, (found, records) => this.#publisher.publishMany(found, records));
  }

  /** Records to a topic that is asked for wait in line: what knows it by then does not go before them. */
  #put(topic, values, options, many, publish) {
    const signal = signalOf(options), known = this.#asked.has(topic) ? undefined : this.#known(topic);
    try {
      text(topic, "topic");
      signal?.throwIfAborted();
      const records = readRecords(values, options ?? {}, many && known !== undefined);
      if (known) return raced(publish(known, records), signal);
      const found = this.#resolve(topic, true).then((each) => (signal?.throwIfAborted(), publish(each, records)));
      const stored = raced(found, signal);
      this.#waiting.add(stored);
      return stored.finally(() => this.#waiting.delete(stored));
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** A subscription: messages for a group, each to be acked. Iterate it with `for await`. */
  async subscribe(topic, options) {
    const { create = true } = options ?? {}, signal = signalOf(options), read = readSubscribe(options ?? {});
    text(topic, "topic");
    for (let again = true; ; again = false) {
      const known = this.#known(topic), found = await until(this.#resolve(topic, create), signal);
      const subscription = new Subscription(this.#link, found, read);
      this.#subscriptions.add(subscription);
      subscription.onOver = () => this.#subscriptions.delete(subscription);
      try {
        return await subscription.open();
      } catch (error) {
        if (!MOVED.has(error.code)) throw error;
        found.stale = true; // it may be made anew, under another id
        if (!again || found !== known) throw error;
      }
    }
  }

  /** The same as an AsyncIterable that need not be awaited first. */
  async *consume(topic, options) {
    yield* await this.subscribe(topic, options);
  }

  /** Resolves when all that was published by now is confirmed, or has failed, and all acks are stored. Rejects if acks are lost, as
   * Subscription.flush() does. */
  async flush() {
    await allOf([this.#confirmed(), ...[...this.#subscriptions].map((each) => each.flush())]);
  }

  async #confirmed() {
    await Promise.all([this.#publisher.flush(), Promise.allSettled(this.#waiting)]);
  }

  /** Confirms what is on its way, gives back what was not acked, and ends. Rejects if acks are lost, as flush() does. */
  async close({ flush = true } = {}) {
    if (this.#link.closed) return;
    if (flush) await this.#confirmed();
    try {
      await allOf([...this.#subscriptions].map((each) => each.close()));
    } finally {
      this.#publisher.close();
      await this.#link.close();
    }
  }

  async [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")]() {
    await this.close();
  }

  /** The topic of that name. Several may wait for the same answer. */
  #resolve(name, create) {
    const asked = this.#asked.get(name);
    if (asked) return asked;
    const known = this.#known(name);
    if (known) return Promise.resolve(known);
    if (name.includes("*")) return Promise.reject(new GossipqError("bad_name", `${name} is a pattern`, "name the topic")); // any that fits would be the answer
    const found = this.#link.ask(RESOLVE, 0, [[text(name, "topic")], create]).then(([topics]) => this.#learn(name, topics?.[0]));
    if (create) this.#asked.set(name, found); // who does not make it has no answer for who does
    const settled = () => create && this.#asked.delete(name);
    found.then(settled, settled);
    return found;
  }

  #learn(name, info) {
    if (!info) throw new GossipqError("unknown_topic", `no topic ${name}`, `gossipq topic create ${name}`);
    const isShard = (each) => Number.isInteger(each) && each >= 0 && each < HOME;
    if (!Number.isInteger(info[0]) || !Array.isArray(info[4]) || !info[4].every(isShard)) throw new GossipqError("protocol", "the node's answer cannot be read");
    const topic = { id: info[0], name, shards: info[4], stale: false }, known = this.#topics.get(name);
    if (!topic.shards.length) throw new GossipqError("bad_request", `${name} is a virtual topic`, "name the real ones");
    if (known?.id === topic.id) { // what is under way there has its order
      known.stale = false;
      return known;
    }
    this.#topics.set(name, topic);
    if (known) this.#publisher.move(known, topic);
    return topic;
  }

  #known(name) {
    const topic = this.#topics.get(name);
    return topic?.stale ? undefined : topic;
  }

  #lookUp(topic) {
    topic.stale = true;
    return this.#resolve(topic.name, false);
  }
}

/** When all have an outcome: rejects with the first error. */
async function allOf(promises) {
  const failed = (await Promise.allSettled(promises)).find(({ status }) => status === "rejected");
  if (failed) throw failed.reason;
}

/** One signal may end as many calls as there are: Node warns of more than ten. */
function signalOf(options) {
  const signal = options?.signal;
  if (signal instanceof EventTarget) setMaxListeners(0, signal);
  return signal;
}

/** Resolves like the promise, or rejects with the signal's reason if that comes first. */
function raced(promise, signal) {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}
