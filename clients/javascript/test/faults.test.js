// Runs against a scripted node, which sends rare answers at chosen moments.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { encode } from "@msgpack/msgpack";
import { connect } from "../index.js";
import { ACK, CONFIRM, HELLO, NACK, PUBLISH, REFUSED, SUBSCRIBE, unpack } from "../protocol.js";
import { ACKED, NONE, SILENT, TOPIC, deliver, delivering, soon, subscribed, withNode } from "./node.js";

/** It refuses the first ack, since it leads no more, and gives all out again as the next one; then it takes acks, but for `lost`.
 *  `of`: or failures. */
function forgetful(lost, of = ACK) {
  let refused = false;
  return async (said) => {
    const { verb, request, say } = said;
    if (verb === SUBSCRIBE) return subscribed(said, [NONE, NONE, NONE]);
    if (verb === of && !refused) {
      refused = true;
      await say(request, REFUSED, ["no_session", "over"]);
    } else if (verb === of) {
      await sleep(300); // somebody asks for the next record meanwhile
      await say(request, ACKED, [lost]);
    } else return undefined;
    return SILENT;
  };
}

/** It gives a record out again while its first ack is on the way to the disks; `late`: after that is answered.
 *  `of`: or its first failure. */
function hasty(lost, late = false, of = ACK) {
  let asked = false;
  return async (said) => {
    const { verb, request, fields, say } = said;
    if (verb === SUBSCRIBE) return subscribed(said, [NONE]);
    if (verb === of && !asked) {
      asked = true;
      if (!late) await deliver(say, fields[0], [NONE], 2);
      await sleep(300);
      await say(request, ACKED, [lost]);
      if (late) await deliver(say, fields[0], [NONE], 2);
    } else return undefined;
    return SILENT;
  };
}

/** Take `count` records and settle those below 2 (`settle`, by default ack), then take the redelivered ones. Returns all that the user got.
 *  `wait`: when the node answers the acks. */
async function shown(mq, count, wait, settle = (message) => message.ack()) {
  const subscription = await mq.subscribe("t", { group: "g" }), found = [], acks = [];
  for (let i = 0; i < count; i++) {
    const message = await subscription.next(3_000);
    found.push(message.offset);
    if (message.offset < 2) acks.push(settle(message));
  }
  if (wait) await Promise.all(acks);
  for (let each; (each = await subscription.next(700)); ) found.push(each.offset);
  return [found, await Promise.all(acks)];
}

for (const wait of [true, false]) {
  const when = wait ? "before the next is asked for" : "while the next is asked for";
  test(`what was acked is not shown again by who took over; ${when}`, async () => {
    await withNode(forgetful([]), async (mq) => assert.deepEqual(await shown(mq, 3, wait), [[0, 1, 2], [true, true]]));
    const lost = [[TOPIC * 65536, 1, 2]];
    await withNode(forgetful(lost), async (mq) => assert.deepEqual(await shown(mq, 3, wait), [[0, 1, 2, 1], [true, false]]));
  });

  test(`what was acked is not shown when it comes before the answer; ${when}`, async () => {
    await withNode(hasty([]), async (mq) => assert.deepEqual(await shown(mq, 1, wait), [[0], [true]]));
    const lost = [[TOPIC * 65536, 0, 1]];
    await withNode(hasty(lost), async (mq) => assert.deepEqual(await shown(mq, 1, wait), [[0, 0], [false]]));
  });
}

for (const delayMs of [-1, 0]) {
  const fails = (message) => message.nack("x", { delayMs });
  test(`what failed is not shown before its pause; ${delayMs}`, async () => {
    for (const wait of [true, false]) {
      await withNode(forgetful([], NACK), async (mq) => assert.deepEqual(await shown(mq, 1, wait, fails), [[0, 1, 2], [true]]));
      await withNode(hasty([], false, NACK), async (mq) => assert.deepEqual(await shown(mq, 1, wait, fails), [[0], [true]]));
      const lost = [[TOPIC * 65536, 0, 1]];
      await withNode(hasty(lost, false, NACK), async (mq) => assert.deepEqual(await shown(mq, 1, wait, fails), [[0, 0], [false]]));
    }
    await withNode(hasty([], true, NACK), async (mq) => assert.deepEqual(await shown(mq, 1, true, fails), [[0, 0], [true]]));
  });
}

test("what was acked is shown when it comes after the answer: somebody has set the group back", () =>
  withNode(hasty([], true), async (mq) => assert.deepEqual(await shown(mq, 1, true), [[0, 0], [true]])));

test("a refusal does not send what is before it under another producer", async () => {
  const stored = [];
  let waits = null, refused = false;
  const leader = async ({ verb, request, body, say }) => {
    if (verb !== PUBLISH) return undefined;
    const producer = body.toString("hex", 16, 32), sequence = Number(body.readBigUInt64LE(32));
    const last = Math.max(0, ...stored.filter(([each]) => each === producer).map(([, number]) => number));
    if (sequence <= last) await say(0, CONFIRM, [[[request, 0, 1, true]], 1 << 25]);
    else if (sequence > last + 1) await say(request, REFUSED, ["out_of_sequence", "one is missing", "", 50, last + 1]);
    else if (sequence === 2 && !refused) {
      refused = true;
      await say(request, REFUSED, ["topic_full", "it is full"]);
    } else {
      stored.push([producer, sequence]);
      if (waits === null) {
        waits = request;
        return SILENT;
      }
      for (const each of waits ? [waits, request] : [request]) await say(0, CONFIRM, [[[each, 0, 1, false]], 1 << 25]);
      waits = 0;
    }
    return SILENT;
  };
  await withNode(leader, async (mq) => {
    const all = await Promise.allSettled(["a", "b", "c"].map((each) => mq.publishMany("t", [each])));
    assert.deepEqual(all.map(({ status }) => status), ["fulfilled", "rejected", "fulfilled"]);
    assert.deepEqual(stored.map(([, sequence]) => sequence), [1, 2]);
  });
});

test("a client that is closed refuses what is published to a topic that it knows", () =>
  withNode(() => undefined, async (mq) => {
    await mq.publish("t", "x");
    await mq.close();
    await assert.rejects(soon(mq.publish("t", "x")), { code: "closed" });
  }));

test("what is acked after its subscription was closed is in other hands", () =>
  withNode(delivering([Buffer.from("80", "hex")]), async (mq, node) => {
    const subscription = await mq.subscribe("t", { group: "g" });
    const message = await subscription.next(3_000);
    await subscription.close();
    assert.equal(await soon(message.ack()), false);
    assert.ok(!node.said.includes(ACK));
  }));

test("all who wait for a message are told that there is none", () =>
  withNode(() => undefined, async (mq) => {
    const subscription = await mq.subscribe("t", { group: "g" });
    const waiting = Promise.all([subscription.next(), subscription.next()]);
    await subscription.close();
    assert.deepEqual(await soon(waiting), [null, null]);
  }));

test("each who asks for a topic waits by a signal of its own", async () => {
  const late = async ({ verb }) => (verb === 64 ? sleep(1_000) : undefined);
  await withNode(late, async (mq) => {
    const first = mq.publish("t", "x", { signal: AbortSignal.timeout(200) });
    const second = mq.publish("t", "y");
    const third = mq.publish("t", "z", { signal: AbortSignal.timeout(300) });
    await assert.rejects(first, { name: "TimeoutError" });
    await assert.rejects(third, { name: "TimeoutError" });
    assert.equal((await second).offset, 0);
  });
});

test("what is aborted before it is published is not published, and nobody is told of it", () =>
  withNode(() => undefined, async (mq, node) => {
    await mq.publish("t", "x");
    await assert.rejects(mq.publish("t", "y", { signal: AbortSignal.abort() }), { name: "AbortError" });
    await mq.flush();
    assert.equal(node.said.filter((verb) => verb === PUBLISH).length, 1);
  }));

test("headers and answers that announce more than they hold are none", async () => {
  const bomb = Buffer.concat([Buffer.from("81a161", "hex"), Buffer.from("dd01ffffff".repeat(40), "hex")]);
  await withNode(delivering([bomb, Buffer.from(encode({ a: "b" }))]), async (mq) => {
    const subscription = await mq.subscribe("t", { group: "g" });
    const [first, second] = [await subscription.next(3_000), await subscription.next(3_000)];
    assert.deepEqual(first.headers["gossipq-unreadable-headers"], bomb);
    assert.deepEqual(second.headers, { a: "b" });
  });
  const boasting = async ({ verb, request, say }) => {
    if (verb !== PUBLISH) return undefined;
    await say(0, CONFIRM, [[[request, 5, 1, false]], 1 << 25, "", [[request, [[2 ** 52, 5, 0, 0, false]]]]]);
    return SILENT;
  };
  await withNode(boasting, async (mq) => assert.equal((await mq.publish("t", "x")).offset, 5));
});

test("headers are texts and bytes by name, or unreadable", async () => {
  const odd = [5, null, "a", [1], new Date(0), Buffer.from("a"), { a: 5 }, { a: { b: "c" } }].map((each) => Buffer.from(encode(each)));
  await withNode(delivering(odd), async (mq) => {
    const subscription = await mq.subscribe("t", { group: "g" });
    for (const each of odd) assert.deepEqual((await subscription.next(3_000)).headers, { "gossipq-unreadable-headers": each });
  });
});

test("one of several addresses is none", () => {
  const program = `import { connect } from "./index.js";
    const mq = connect(" tcp://127.0.0.1:9, tcp//nobody");
    await mq.publish("t", "x", { signal: AbortSignal.timeout(1_500) }).catch(({ name }) => console.log(name));
    await mq.close({ flush: false });`;
  const ran = spawnSync(process.execPath, ["--input-type=module", "-e", program], { cwd: new URL("..", import.meta.url), encoding: "utf8" });
  assert.equal(ran.stdout, "TimeoutError\n", ran.stderr);
  assert.throws(() => connect("tcp//:nobody:1"), { code: "bad_request" });
});

test("what is no announcement is not taken for one", () => {
  for (const size of [0, 31, 32, 200, 300, 70_000]) {
    const values = ["x".repeat(size), Buffer.alloc(size, 0xdd), -(2 ** 40), 1.5, { deep: [null, true, -1, 200, 70_000, 2 ** 33] }];
    for (const value of [values, new Array(size).fill(1), { values }]) assert.deepEqual(encode(unpack(Buffer.from(encode(value)))), encode(value));
  }
});

test("who may not go straight to the leader joins once", () => {
  const straight = async ({ verb, request, say }) => {
    if (verb !== PUBLISH) return undefined;
    await say(0, CONFIRM, [[[request, 5, 1, false]], 1 << 25, "tcp://192.0.2.1:7701"]);
    return SILENT;
  };
  return withNode(straight, async (_, { said, endpoint }) => {
    const mq = connect(endpoint, { token: `gq_${"0".repeat(64)}` });
    for (let i = 0; i < 3; i++) await soon(mq.publish("t", "x"));
    await mq.close();
    assert.equal(said.filter((verb) => verb === HELLO).length, 3); // to the home, to the shard of topics, and to that of this one
  });
});
