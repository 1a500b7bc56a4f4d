// Against the node at $GOSSIPQ_SERVER.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Router } from "zeromq";
import { connect, GossipqError } from "../index.js";

async function withClient(run) {
  const mq = connect();
  try {
    await run(mq, `js-${randomUUID()}`);
  } finally {
    await mq.close();
  }
}

async function take(messages, count) {
  const found = [];
  for await (const message of messages) {
    found.push(message);
    await message.ack();
    if (found.length === count) return found;
  }
  return found;
}

test("many at a time come in order of their key", () =>
  withClient(async (mq, topic) => {
    const sent = Array.from({ length: 2_000 }, (_, i) => String(i));
    await Promise.all(sent.map((value) => mq.publish(topic, value, { key: "ada" })));
    const came = await take(mq.consume(topic, { group: "g" }), sent.length);
    assert.deepEqual(came.map(({ value }) => value.toString()), sent);
    assert.deepEqual(came[0].key.toString(), "ada");
  }));

test("an exclusive consumer gets a record when the one before it is done", () =>
  withClient(async (mq, topic) => {
    for (const value of ["one", "two", "three"]) await mq.publish(topic, value);
    const subscription = await mq.subscribe(topic, { group: "g", mode: "exclusive" });
    for (const value of ["one", "two", "three"]) {
      const message = await subscription.next(5_000);
      assert.equal(message.value.toString(), value);
      assert.equal(await subscription.next(100), null);
      await message.ack();
    }
    await subscription.close();
  }));

test("break gives back what was not acked, and the next consumer gets it", () =>
  withClient(async (mq, topic) => {
    await mq.publish(topic, "one");
    for await (const message of mq.consume(topic, { group: "g" })) {
      assert.equal(message.attempt, 1);
      break;
    }
    const [again] = await take(mq.consume(topic, { group: "g" }), 1);
    assert.equal(again.value.toString(), "one");
  }));

test("a signal ends the iteration", () =>
  withClient(async (mq, topic) => {
    const stop = new AbortController();
    setTimeout(() => stop.abort(), 300);
    assert.deepEqual(await take(mq.consume(topic, { group: "g", signal: stop.signal }), 1), []);
  }));

test("a reader sees all, from where it begins", () =>
  withClient(async (mq, topic) => {
    for (let i = 0; i < 5; i++) await mq.publish(topic, String(i));
    const reader = await mq.subscribe(topic, { start: 2, credit: 1 });
    for (const value of ["2", "3", "4"]) assert.equal((await reader.next(10_000)).value.toString(), value);
    assert.equal(await reader.next(50), null);
    await reader.close();
  }));

test("delays, routes and headers travel", () =>
  withClient(async (mq, topic) => {
    const stored = await mq.publish(topic, "later", { delayMs: 200, route: "eu.fr", headers: { n: "text", b: Buffer.of(255) } });
    assert.equal(stored.offset, -1);
    await mq.publish(topic, "elsewhere", { route: "us" });
    const [message] = await take(mq.consume(topic, { group: "g", routes: ["eu.*"] }), 1);
    assert.deepEqual([message.value.toString(), message.route, message.headers.n], ["later", "eu.fr", "text"]);
    assert.deepEqual([...message.headers.b], [255]);
  }));

test("what is released, rejected or failed goes its way", () =>
  withClient(async (mq, topic) => {
    await mq.publish(topic, "x");
    const consumer = await mq.subscribe(topic, { group: "g" });
    const first = await consumer.next(10_000);
    assert.equal(await first.release(), true);
    const again = await consumer.next(10_000);
    assert.equal(await again.nack("no", { delayMs: 0 }), true);
    const third = await consumer.next(10_000);
    assert.equal(await third.reject("never"), true);
    assert.equal(await consumer.next(200), null);
    assert.equal(await third.ack(), false, "settled before");
  }));

test("a refusal fails one record, and those behind it are stored", () =>
  withClient(async (mq, topic) => {
    await mq.publish(topic, "before");
    const large = mq.publish(topic, Buffer.alloc((16 << 20) + 1)).catch((error) => error);
    const after = ["a", "b", "c"].map((value) => mq.publish(topic, value));
    assert.equal((await large).code, "too_large");
    assert.ok(await large instanceof GossipqError);
    assert.deepEqual((await Promise.all(after)).map(({ offset }) => offset), [1, 2, 3]);
  }));

test("a node that is not there, and one that is none", async () => {
  const nobody = connect("tcp://127.0.0.1:9");
  await assert.rejects(nobody.publish("t", "x", { signal: AbortSignal.timeout(300) }), { name: "TimeoutError" });
  await nobody.close({ flush: false });
  const router = new Router({ linger: 0 });
  await router.bind("tcp://127.0.0.1:*");
  (async () => {
    for await (const [name] of router) await router.send([name, Buffer.from("HTTP/1.1 400 garbage, and more of it")]);
  })().catch(() => {});
  const puzzled = connect(router.lastEndpoint);
  await assert.rejects(puzzled.publish("t", "x", { signal: AbortSignal.timeout(300) }), { name: "TimeoutError" });
  await puzzled.close({ flush: false });
  router.close();
});

test("what cannot be sent is refused at once, and a client that is closed says so", async () => {
  const mq = connect();
  await assert.rejects(mq.publish("js-t", 17), TypeError);
  await assert.rejects(mq.subscribe("not a name!", { group: "g" }), { code: "bad_name" });
  await assert.rejects(mq.publish(undefined, "x"), /topic must be a string/);
  await assert.rejects(mq.subscribe(5, { group: "g" }), /topic must be a string/);
  for (const wrong of [{ group: 5 }, { group: null }, { mode: 4 }, { start: null }, { routes: "eu.*" }, { routes: [4] }]) {
    await assert.rejects(mq.subscribe("js-t", { group: "g", ...wrong }), TypeError);
  }
  for (const wrong of [{ start: 1.5 }, { start: new Date("x") }, { credit: 0 }, { credit: "10" }, { creditBytes: 1.5 }, { leaseMs: "a" }]) {
    await assert.rejects(mq.subscribe("js-t", { group: "g", ...wrong }), { code: "bad_request" });
  }
  await assert.rejects(mq.subscribe("js-t", { leaseMs: 1_000 }), { code: "bad_request" });
  await mq.close();
  await assert.rejects(mq.subscribe("js-t", { group: "g" }), { code: "closed" });
  await sleep(0);
});
