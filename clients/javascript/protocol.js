// Frames and verbs of the gossipq protocol, version 2, as far as this client speaks it. PROTOCOL.md has them all.

import { decode, encode } from "@msgpack/msgpack";

export const HELLO = 1, WELCOME = 2, PING = 3, BYE = 5, REFUSED = 6, RESET = 7, PUBLISH = 16, CONFIRM = 17;
export const SHARE = 31, STARTED = 45, SUBSCRIBE = 32, SUBSCRIBED = 33, UNSUBSCRIBE = 34, DELIVER = 36, ACK = 37, NACK = 39, RESOLVE = 64;
export const HOME = 0xffff; // in place of a shard: the frontdoor itself
const VERSION = 2, HEADER_BYTES = 24, RETRY_MS_MAX = 60_000;

/** One message as it came. Numbers are Numbers: all that a node says to this client is below 2^53. */
export function parse(frames) {
  const [control, body] = frames;
  if (control.length < HEADER_BYTES || control.toString("latin1", 0, 2) !== "GQ") {
    throw new GossipqError("protocol", "the other side does not speak gossipq");
  }
  if (control[2] !== VERSION) {
    const error = new GossipqError("wrong_version", `the node speaks protocol version ${control[2]}, this client ${VERSION}`);
    error.request = Number(control.readBigUInt64LE(8));
    throw error;
  }
  try {
    const fields = unpack(control.subarray(HEADER_BYTES));
    if (!Array.isArray(fields)) throw new TypeError("no array");
    return {
      verb: control[3],
      shard: control.readUInt16LE(4),
      request: Number(control.readBigUInt64LE(8)),
      term: Number(control.readBigUInt64LE(16)),
      fields,
      body,
    };
  } catch (error) {
    throw new GossipqError("protocol", `a message of the node cannot be read: ${error.message}`);
  }
}

/** Decode msgpack bytes. Throws if they are not valid. */
export function unpack(raw) {
  if (!fits(raw)) throw new RangeError("it says that it holds more than it does");
  return decode(raw);
}

/** True if each announced element has at least one byte. The decoder allocates memory for announced elements before it reads them. */
function fits(raw) {
  const number = (width) => ((at += width), raw.readUIntBE(at - width, width));
  let at = 0;
  for (let left = 1; left > 0; left--) {
    if (left > raw.length - at) return false;
    const tag = raw[at++];
    if (tag < 0x80 || tag >= 0xe0) continue;
    if (tag < 0x90) left += 2 * (tag & 0x0f);
    else if (tag < 0xa0) left += tag & 0x0f;
    else if (tag < 0xc0) at += tag & 0x1f;
    else if (tag >= 0xdc) left += number(tag & 1 ? 4 : 2) * (tag >= 0xde ? 2 : 1);
    else if (tag >= 0xd9) at = number(1 << (tag - 0xd9)) + at;
    else if (tag >= 0xd4) at += 1 + (1 << (tag - 0xd4));
    else if (tag >= 0xcc) at += 1 << (tag & 3);
    else if (tag >= 0xca) at += tag === 0xca ? 4 : 8;
    else if (tag >= 0xc7) at = number(1 << (tag - 0xc7)) + at + 1;
    else if (tag >= 0xc4) at = number(1 << (tag - 0xc4)) + at;
  }
  return true;
}

export function frame(verb, shard, request, fields) {
  const head = Buffer.alloc(HEADER_BYTES);
  head.write("GQ", "latin1");
  head[2] = VERSION;
  head[3] = verb;
  head.writeUInt16LE(shard, 4);
  head.writeBigUInt64LE(BigInt(request), 8);
  return Buffer.concat([head, encode(fields)]);
}

/** A text of a user, as it can be sent: what was cut within a character gets U+FFFD there. */
export function text(given, what) {
  if (typeof given !== "string") throw new TypeError(`${what} must be a string, not ${given === null ? "null" : typeof given}`);
  return given.toWellFormed();
}

/** A whole number of a user. */
export function whole(given, what, least) {
  if (!Number.isSafeInteger(given) || given < least) throw new GossipqError("bad_request", `${what} = ${given}`, `a whole number from ${least} on`);
  return given;
}

/** Milliseconds of a user as a node takes them: whole ones, rounded up. */
export function wholeMs(given, what, least = 0) {
  const ms = Math.ceil(given ?? 0);
  if (typeof (given ?? 0) !== "number" || !(ms >= least && ms <= Number.MAX_SAFE_INTEGER)) {
    throw new GossipqError("bad_request", `${what} = ${given}: not a time in milliseconds`);
  }
  return ms;
}

/** The error of a request. `code` is one of PROTOCOL.md section 2, or "closed", "not_confirmed", "backpressure". */
export class GossipqError extends Error {
  constructor(code, message, hint = "", retryAfterMs = 0, detail = 0) {
    super(hint ? `${message} (${hint})` : message);
    this.name = "GossipqError";
    this.code = code;
    this.hint = hint;
    this.retryAfterMs = retryAfterMs;
    this.detail = detail;
  }

  static of([code, message, hint = "", retryAfterMs = 0, detail = 0]) {
    return new GossipqError(String(code), String(message), hint, retryAfterMs > 0 ? Math.min(retryAfterMs, RETRY_MS_MAX) : 0, detail);
  }
}
