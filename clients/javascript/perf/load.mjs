// load.mjs TOPIC RECORDS BATCH SIZE: publishes to the node at $GOSSIPQ_SERVER until the last confirm, BATCH records a call (1: the
// client packs them), and says how fast that was. perf/bindings.py runs it.

import { randomBytes } from "node:crypto";
import { connect } from "../index.js";

const POOL = 8, AHEAD = 128, TURN = 5_000;
const [topic, ...numbers] = process.argv.slice(2);
const [records, batch, size] = numbers.map(Number);
const pool = Array.from({ length: POOL }, () => Array.from({ length: batch }, () => randomBytes(size)));
const mq = connect();
await mq.publish(topic, "x"); // the way to the leader is no part of it
const start = performance.now();
if (batch === 1) {
  for (let n = 0; n < records; n += TURN) {
    let last;
    for (let i = 0; i < TURN; i++) last = mq.publish(topic, pool[i % POOL][0]);
    if (n % (4 * TURN) === 0) await last;
    else await new Promise(setImmediate);
  }
} else {
  const under = [];
  for (let n = 0; n < records / batch; n++) {
    under.push(mq.publishMany(topic, pool[n % POOL]));
    if (under.length > AHEAD) await under.shift();
  }
}
await mq.flush();
const seconds = (performance.now() - start) / 1000;
console.log(JSON.stringify({ published_per_s: Math.round(records / seconds) }));
await mq.close();
process.exit(0);
