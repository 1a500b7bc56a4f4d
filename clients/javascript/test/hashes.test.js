// Hashes that nodes compute, too: of the vectors that all clients share.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { putIdHash } from "../blake2b.js";

test("the hash of an id is that of the vectors", () => {
  const { id_hash: rows } = JSON.parse(readFileSync(new URL("../../../tests/vectors/hashes.json", import.meta.url), "utf8"));
  for (const { id, id_hash: hash } of rows) {
    const out = Buffer.alloc(8);
    assert.equal(putIdHash(out, 0, Buffer.from(id, "hex")), 8);
    assert.equal(out.readBigUInt64LE(0), BigInt(hash), id);
  }
});
