// BLAKE2b (RFC 7693) with a digest of 8 bytes and no key: what a node reads of an id in place of the id. Node has BLAKE2b of 64 bytes alone,
// whose first 8 bytes are others. A word of 64 bits is two of 32 bits, the low one first.

const BLOCK_BYTES = 128;
const IV = Uint32Array.of(
  0xf3bcc908, 0x6a09e667, 0x84caa73b, 0xbb67ae85, 0xfe94f82b, 0x3c6ef372, 0x5f1d36f1, 0xa54ff53a,
  0xade682d1, 0x510e527f, 0x2b3e6c1f, 0x9b05688c, 0xfb41bd6b, 0x1f83d9ab, 0x137e2179, 0x5be0cd19,
);
const PARAMETERS = 0x01010008; // digest of 8 bytes, no key, fan-out and depth 1
const SIGMA = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4], [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13], [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11], [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5], [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];
const v = new Uint32Array(32), m = new Uint32Array(32), h = new Uint32Array(16);

function add(a, low, high) {
  const sum = v[a] + low;
  v[a] = sum;
  v[a + 1] = v[a + 1] + high + (sum > 0xffffffff ? 1 : 0);
}

function mix(a, b, c, d, x, y) {
  add(a, v[b], v[b + 1]);
  add(a, m[x], m[x + 1]);
  let low = v[d] ^ v[a], high = v[d + 1] ^ v[a + 1];
  v[d] = high; // by 32 bits
  v[d + 1] = low;
  add(c, v[d], v[d + 1]);
  low = v[b] ^ v[c];
  high = v[b + 1] ^ v[c + 1];
  v[b] = (low >>> 24) | (high << 8);
  v[b + 1] = (high >>> 24) | (low << 8);
  add(a, v[b], v[b + 1]);
  add(a, m[y], m[y + 1]);
  low = v[d] ^ v[a];
  high = v[d + 1] ^ v[a + 1];
  v[d] = (low >>> 16) | (high << 16);
  v[d + 1] = (high >>> 16) | (low << 16);
  add(c, v[d], v[d + 1]);
  low = v[b] ^ v[c];
  high = v[b + 1] ^ v[c + 1];
  v[b] = (high >>> 31) | (low << 1);
  v[b + 1] = (low >>> 31) | (high << 1);
}

function compress(block, end, isLast) {
  for (let i = 0; i < 32; i++) m[i] = block.readUInt32LE(4 * i);
  v.set(h);
  v.set(IV, 16);
  v[24] ^= end; // bytes until here: below 2^32
  if (isLast) {
    v[28] = ~v[28];
    v[29] = ~v[29];
  }
  for (let round = 0; round < 12; round++) {
    const s = SIGMA[round % 10];
    for (let i = 0; i < 4; i++) mix(2 * i, 8 + 2 * i, 16 + 2 * i, 24 + 2 * i, 2 * s[2 * i], 2 * s[2 * i + 1]);
    for (let i = 0; i < 4; i++) {
      mix(2 * i, 8 + 2 * ((i + 1) % 4), 16 + 2 * ((i + 2) % 4), 24 + 2 * ((i + 3) % 4), 2 * s[8 + 2 * i], 2 * s[9 + 2 * i]);
    }
  }
  for (let i = 0; i < 16; i++) h[i] ^= v[i] ^ v[i + 16];
}

/** Writes the hash of an id, 8 bytes, and returns the place behind it; of an empty one, zeros. */
export function putIdHash(out, at, id) {
  if (!id.length) return out.writeUInt32LE(0, out.writeUInt32LE(0, at));
  h.set(IV);
  h[0] ^= PARAMETERS;
  const block = Buffer.alloc(BLOCK_BYTES);
  for (let begin = 0; begin < id.length; begin += BLOCK_BYTES) {
    const end = Math.min(begin + BLOCK_BYTES, id.length);
    block.fill(0).set(id.subarray(begin, end));
    compress(block, end, end === id.length);
  }
  return out.writeUInt32LE(h[1], out.writeUInt32LE(h[0], at));
}
