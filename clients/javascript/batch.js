// The sealed batch: PROTOCOL.md section 6. Producers make it, nodes store and deliver it as it is, consumers open it.

import { crc32 } from "node:zlib";
import { putIdHash } from "./blake2b.js";

const MAGIC = 0x01425147; // "GQB", format 1
const HEADER_BYTES = 56, RECORDS_MAX = 65_536;
const KEY_HASH = 1, DELAY = 2, TTL = 4, ID_HASH = 32, FLOW_HASH = 128, PRIORITY = 256, KEYS = 0x10000, HEADERS = 0x20000, IDS = 0x40000, FLOWS = 0x80000, UNIQUES = 0x100000;
const FIXED = [[1, 4], [2, 8], [4, 8], [8, 4], [16, 4], [32, 8], [64, 4], [128, 8], [256, 1], [512, 8], [1024, 8], [2048, 4]]; // bit, bytes of an entry
const KNOWN = 0xfff | KEYS | HEADERS | IDS | FLOWS | UNIQUES;

export const DEFAULT_PRIORITY = 5;

const padded = (size) => (size + 7) & ~7;

/** Hash of a key. Nodes compare this hash instead of the key. */
export function keyHash(key) {
  return key.length ? crc32(key) || 1 : 0;
}

/** A batch of `values`; `keys`, `headers` (msgpack maps), `ids`, `ttls`, `flows` and `priorities` are null, or have an entry for each, empty
 * or 0 for none. */
export function seal({ values, keys, headers, ids, ttls, flows, priorities, route, delayMs }, producer, sequence) {
  const count = values.length, name = Buffer.from(route), variable = [keys, headers, ids, flows, values];
  const columns = (keys ? KEYS | KEY_HASH : 0) | (headers ? HEADERS : 0) | (ids ? IDS | ID_HASH : 0) | (delayMs ? DELAY : 0) | (ttls ? TTL : 0) |
    (flows ? FLOWS | FLOW_HASH : 0) | (priorities ? PRIORITY : 0);
  const offsets = padded(4 * (count + 1)), numbers = (delayMs ? 1 : 0) + (ttls ? 1 : 0) + (ids ? 1 : 0) + (flows ? 1 : 0);
  let size = HEADER_BYTES + padded(name.length) + (keys ? padded(4 * count) : 0) + 8 * count * numbers + (priorities ? padded(count) : 0);
  for (const column of variable) if (column) size += offsets + padded(total(column));
  const out = Buffer.allocUnsafe(size);
  out.fill(0, 0, HEADER_BYTES);
  out.writeUInt32LE(MAGIC, 0);
  out.writeUInt32LE(size, 8);
  out.writeUInt32LE(count, 12);
  out.writeBigInt64LE(BigInt(Date.now()), 40);
  out.writeUInt32LE(columns, 48);
  out.writeUInt16LE(name.length, 52);
  let at = HEADER_BYTES + name.copy(out, HEADER_BYTES);
  at = pad(out, at);
  if (keys) {
    for (const key of keys) at = out.writeUInt32LE(keyHash(key), at);
    at = pad(out, at);
  }
  for (let i = 0; delayMs && i < count; i++) at = out.writeBigInt64LE(BigInt(delayMs), at);
  for (let i = 0; ttls && i < count; i++) at = out.writeBigInt64LE(BigInt(ttls[i]), at);
  for (let i = 0; ids && i < count; i++) at = putIdHash(out, at, ids[i]);
  for (let i = 0; flows && i < count; i++) at = putIdHash(out, at, flows[i]);
  if (priorities) {
    for (const priority of priorities) out[at++] = priority;
    at = pad(out, at);
  }
  for (const column of variable) if (column) at = put(out, at, column);
  stamp(out, producer, sequence);
  return out;
}

function total(column) {
  let size = 0;
  for (let i = 0; i < column.length; i++) size += column[i].length;
  return size;
}

function pad(out, at) {
  const end = padded(at);
  while (at < end) out[at++] = 0;
  return at;
}

function put(out, at, column) {
  const count = column.length, start = at + padded(4 * (count + 1));
  let end = 0;
  for (let i = 0; i < count; i++) {
    const item = column[i];
    out.writeInt32LE(end, at + 4 * i);
    out.set(item, start + end);
    end += item.length;
  }
  out.writeInt32LE(end, at + 4 * count);
  pad(out, at + 4 * (count + 1));
  return pad(out, start + end);
}

function stamp(batch, producer, sequence) {
  producer.copy(batch, 16);
  batch.writeBigUInt64LE(BigInt(sequence), 32);
  batch.writeUInt32LE(crc32(batch.subarray(8)), 4);
}

/** The same batch of another producer, in new memory: the old one may still be on its way. */
export function restamped(batch, producer, sequence) {
  const copy = Buffer.from(batch);
  stamp(copy, producer, sequence);
  return copy;
}

/** Opens a batch. Throws RangeError when it is not what section 6 says. */
export class Opened {
  #ttls = null;
  #priorities = null;

  constructor(raw) {
    if (raw.length < HEADER_BYTES || raw.readUInt32LE(0) !== MAGIC) throw new RangeError("no batch");
    if (raw.readUInt32LE(8) !== raw.length || crc32(raw.subarray(8)) !== raw.readUInt32LE(4)) throw new RangeError("a broken batch");
    const columns = raw.readUInt32LE(48), route = raw.readUInt16LE(52);
    this.count = raw.readUInt32LE(12);
    if (!this.count || this.count > RECORDS_MAX || columns & ~KNOWN) throw new RangeError("a batch that this client does not know");
    this.timeMs = Number(raw.readBigInt64LE(40));
    this.route = raw.toString("utf8", HEADER_BYTES, HEADER_BYTES + route);
    let at = HEADER_BYTES + padded(route);
    for (const [bit, width] of FIXED) {
      if (bit === TTL && columns & TTL) this.#ttls = raw.subarray(at, at + this.count * width);
      if (bit === PRIORITY && columns & PRIORITY) this.#priorities = raw.subarray(at, at + this.count);
      if (columns & bit) at += padded(this.count * width);
    }
    for (const [bit, name] of [[KEYS, "keys"], [HEADERS, "headers"], [IDS, "ids"], [FLOWS, "flows"], [UNIQUES, "uniques"], [0, "values"]]) {
      if (bit && !(columns & bit)) continue;
      const data = at + padded(4 * (this.count + 1));
      if (data > raw.length) throw new RangeError("a batch that ends inside its columns");
      const ends = new Int32Array(this.count + 1);
      for (let i = 0; i <= this.count; i++) {
        ends[i] = raw.readInt32LE(at + 4 * i);
        if (ends[i] < (i ? ends[i - 1] : 0)) throw new RangeError("offsets that fall");
      }
      this[name] = { ends, data: raw.subarray(data, data + ends[this.count] - ends[0]) };
      at = data + padded(ends[this.count] - ends[0]);
    }
    if (at !== raw.length) throw new RangeError("a batch of another size than its columns");
  }

  ttlMs(index) {
    return this.#ttls ? Number(this.#ttls.readBigInt64LE(8 * index)) : 0;
  }

  priority(index) {
    return this.#priorities ? this.#priorities[index] : DEFAULT_PRIORITY;
  }

  /** The bytes of one record in the column of that name; empty if the record does not use the column. */
  at(name, index) {
    const column = this[name];
    if (!column) return NOTHING;
    const base = column.ends[0];
    return column.data.subarray(column.ends[index] - base, column.ends[index + 1] - base);
  }
}

const NOTHING = Buffer.alloc(0);
