// The client of gossipq. See README.md, and index.d.ts for all of it with types.

import { readFileSync, statSync } from "node:fs";
import { curveKeyPair } from "zeromq";
import { Link, isHere, until } from "./link.js";
import { GossipqError, RESOLVE } from "./protocol.js";
import { Publisher } from "./publisher.js";
import { Message, Subscription } from "./subscription.js";

export { GossipqError, Message, Subscription };
export const VERSION = "0.2.0";
const SERVER = "tcp://127.0.0.1:7700";

/** A client of the nodes at these addresses, one of which is enough. Without any: $GOSSIPQ_SERVER, or this host's node.
 * options: credentials, token, door, insecure, forward; see index.d.ts. */
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

/** Of what is said over CURVE: the key of the nodes, and a fresh pair of this client. */
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
  #topics = new Map();
  #subscriptions = new Set();

  constructor(servers, options = {}) {
    const { token, door } = keysOf(options), insecure = Boolean(options.insecure || door.length);
    if (token.length && !insecure && !servers.every(isHere)) {
      throw new GossipqError("bad_request", "the token would cross a network in the clear, where others may read it", "insecure: true, if that network is yours");
    }
    this.#link = new Link(servers, VERSION, { token, insecure, curve: curveOf(door), forward: Boolean(options.forward) });
    this.#publisher = new Publisher(this.#link, (topic) => this.#topics.get(topic.name) === topic && this.#topics.delete(topic.name));
  }

  /** Resolves when the record is stored: {topic, partition, offset, copies, duplicate}. Many may be under way at a time;
   * records of one key are stored in the order in which they were published. */
  publish(topic, value, options) {
    if (options?.signal?.aborted) return Promise.reject(options.signal.reason);
    const known = this.#topics.get(topic);
    if (!known || known instanceof Promise) return this.#later(topic, options, (found) => this.#publisher.publish(found, value, options));
    const stored = this.#publisher.publish(known, value, options);
    return options?.signal ? raced(stored, options.signal) : stored;
  }

  /** The same for many values with the same options: resolves with the place of each when all are stored. */
  publishMany(topic, values, options) {
    return this.#later(topic, options, (found) => this.#publisher.publishMany(found, values, options));
  }

  async #later(topic, options, publish) {
    const known = this.#topics.get(topic);
    const found = !known || known instanceof Promise ? await this.#resolve(topic, true, options?.signal) : known;
    options?.signal?.throwIfAborted();
    const stored = publish(found);
    return options?.signal ? raced(stored, options.signal) : stored;
  }

  /** A subscription: messages for a group, each to be acked. Iterate it with `for await`. */
  async subscribe(topic, options) {
    const { create = true, signal } = options ?? {};
    const subscription = new Subscription(this.#link, await this.#resolve(topic, create, signal), options);
    this.#subscriptions.add(subscription);
    subscription.onOver = () => this.#subscriptions.delete(subscription);
    return subscription.open();
  }

  /** The same as an AsyncIterable that need not be awaited first. */
  async *consume(topic, options) {
    yield* await this.subscribe(topic, options);
  }

  /** Resolves when all that was published is confirmed, or has failed. */
  flush() {
    return this.#publisher.flush();
  }

  /** Confirms what is on its way, gives back what was not acked, and ends. */
  async close({ flush = true } = {}) {
    if (this.#link.closed) return;
    if (flush) await this.flush();
    await Promise.all([...this.#subscriptions].map((each) => each.close()));
    this.#publisher.close();
    await this.#link.close();
  }

  async [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")]() {
    await this.close();
  }

  /** Several may wait for the same answer, each with a signal of its own. */
  #resolve(name, create, signal) {
    const known = this.#topics.get(name);
    if (known) return until(known, signal);
    const asked = this.#link.ask(RESOLVE, 0, [[name], create]).then(
      ([found]) => {
        const info = found?.[0];
        if (!info) throw new GossipqError("unknown_topic", `no topic ${name}`, `gossipq topic create ${name}`);
        if (!Array.isArray(info[4])) throw new GossipqError("protocol", "the node's answer cannot be read");
        const topic = { id: info[0], name: info[1], shards: info[4] };
        if (!topic.shards.length) throw new GossipqError("bad_request", `${name} is a virtual topic`, "name the real ones");
        this.#topics.set(name, topic);
        return topic;
      },
      (error) => {
        this.#topics.delete(name);
        throw error;
      },
    );
    this.#topics.set(name, asked);
    asked.catch(() => this.#topics.delete(name));
    return until(asked, signal);
  }
}

function raced(promise, signal) {
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}
