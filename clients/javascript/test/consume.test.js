// Consume and close at odd moments, or from several callers at a time, against a scripted node.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { ACK, HELLO, NACK, PUBLISH, REFUSED, RESET, RESOLVE, SUBSCRIBE, SUBSCRIBED, UNSUBSCRIBE } from "../protocol.js";
import { ACKED, NONE, SILENT, TOPIC, TOPICS, deliver, soon, subscribed, withNode } from "./node.js";

test("an error may be the reason of a failure, and what was refused can still be given back", async () => {
  const said = [];
  const leader = async ({ verb, fields, request, say }) => {
    if (verb === SUBSCRIBE) return subscribed({ request, fields, say }, [NONE, NONE]);
    if (verb !== NACK) return undefined;
    said.push(fields.slice(2, 5));
    if (fields[4] === "refuse") await say(request, REFUSED, ["bad_request", "no"]);
    else await say(request, ACKED, [[]]);
  };
  await withNode(leader, async (mq) => {
    const subscription = await mq.subscribe("t", { group: "g" });
    const [first, second] = [await subscription.next(3_000), await subscription.next(3_000)];
    assert.equal(await soon(first.nack(new Error("it broke\ud83d"), { delayMs: 0.5 })), true);
    await assert.rejects(soon(second.nack("refuse")), { code: "bad_request" });
    assert.equal(await soon(second.release()), true);
    assert.deepEqual(said, [[1, true, "Error: it broke\ufffd"], [-1, true, "refuse"], [-1, false]]);
  });
});

test("acks that nobody awaits and that are lost are told by flush and close", async () => {
  const lost = [];
  const node = async ({ verb, fields, request, say }) => {
    if (verb === SUBSCRIBE) return subscribed({ request, fields, say }, [NONE, NONE, NONE, NONE]);
    if (verb !== ACK) return undefined;
    const [[key, first, end]] = fields[1];
    lost.push([key, Math.max(first, 1), end]);
    await say(request, ACKED, [first || end > 1 ? [lost.at(-1)] : []]);
  };
  const places = (...offsets) => offsets.map((offset) => ({ topic: "t", partition: 0, offset }));
  await withNode(node, async (mq) => {
    const subscription = await mq.subscribe("t", { group: "g" });
    const next = () => subscription.next(3_000);
    void (await next()).ack();
    void (await next()).ack();
    await assert.rejects(soon(subscription.flush()), { code: "lease_lost", records: places(1) });
    await soon(mq.flush()); // it is told once
    assert.equal(await soon((await next()).ack()), false);
    await soon(mq.flush()); // the program knows
    void (await next()).ack();
    await assert.rejects(soon(mq.close()), { code: "lease_lost", records: places(3) });
  });
});

test("who settles a record that came again has settled that one, not the one before", async () => {
  const node = async ({ verb, fields, request, say }) => {
    if (verb === SUBSCRIBE) return subscribed({ request, fields, say }, [NONE]);
    if (verb !== NACK) return undefined;
    await say(request, ACKED, [[]]);
    await deliver(say, fields[0], [NONE], 2);
  };
  await withNode(node, async (mq, { said }) => {
    const subscription = await mq.subscribe("t", { group: "g" });
    const first = await subscription.next(3_000);
    await first.release();
    const again = await subscription.next(3_000);
    assert.equal(await soon(first.ack()), false);
    assert.ok(!said.includes(ACK));
    assert.equal(await soon(again.ack()), true);
  });
});

test("several may read at a time, and what they took is lent again", async () => {
  let offset = 0, credit = 2;
  const node = async ({ verb, fields, request, say }) => {
    const give = async () => {
      for (; credit > 0; credit--) await deliver(say, fields[0], [NONE], 1, offset++);
    };
    if (verb === SUBSCRIBE) {
      await say(request, SUBSCRIBED, [fields[0], 0, [[TOPIC * 65536, 0, 100]]]);
      await give();
      return SILENT;
    }
    if (verb !== ACK) return undefined;
    credit += fields[1].reduce((sum, [, first, end]) => sum + end - first, 0);
    await give();
  };
  await withNode(node, async (mq) => {
    const reader = await mq.subscribe("t", { start: "first", credit: 2 }), found = [];
    for (let i = 0; i < 5; i++) {
      const pair = await Promise.all([reader.next(1_000), reader.next(1_000)]);
      found.push(...pair.map((each) => each?.offset));
    }
    assert.deepEqual(found.sort((a, b) => a - b), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  });
});

test("a reader of what is new goes on where it began, though it has taken nothing", async () => {
  const starts = [];
  const node = async ({ verb, fields, request, say }) => {
    if (verb !== SUBSCRIBE) return undefined;
    starts.push(fields[2][0].slice(1));
    await say(request, SUBSCRIBED, [fields[0], 0, [[TOPIC * 65536, 7, 7]]]);
    if (starts.length === 1) await say(0, RESET, [[1]]);
    return SILENT;
  };
  await withNode(node, async (mq) => {
    const reader = await mq.subscribe("t", {});
    await reader.next(500);
    assert.deepEqual(starts.slice(0, 2), [["new"], ["offset", 7]]);
  });
});

test("who closes a client waits for a subscription that somebody else closes", async () => {
  const node = async ({ verb, fields, request, say }) => {
    if (verb === SUBSCRIBE) return subscribed({ request, fields, say }, [NONE]);
    if (verb === ACK) await sleep(400);
  };
  await withNode(node, async (mq) => {
    const subscription = await mq.subscribe("t", { group: "g" });
    const acked = (await subscription.next(3_000)).ack();
    subscription.close();
    await Promise.all([mq.close(), mq.close()]);
    assert.equal(await soon(acked), true);
  });
});

test("a subscription that was closed while its node was away ends there, too", async () => {
  let away = true;
  const node = async ({ verb, fields, request, say }) => {
    if (verb === SUBSCRIBE) return subscribed({ request, fields, say }, [NONE]);
    if (verb === UNSUBSCRIBE && away) {
      away = false;
      await say(0, RESET, [[1]]); // its answer is lost
      return SILENT;
    }
    if (verb === UNSUBSCRIBE) await say(request, ACKED, [[]]);
  };
  await withNode(node, async (mq, { said }) => {
    await mq.publish("t", "x");
    const subscription = await mq.subscribe("t", { group: "g" });
    await soon(subscription.close());
    await sleep(500);
    assert.equal(said.filter((verb) => verb === UNSUBSCRIBE).length, 2);
    assert.equal(said.filter((verb) => verb === SUBSCRIBE).length, 1);
  });
});

test("a shard that refuses who comes back tells all who use it", async () => {
  let refuses = false, publishes = 0;
  const node = async ({ verb, request, say }) => {
    if (verb === HELLO && refuses) {
      await say(request, REFUSED, ["forbidden", "not this token"]);
      return SILENT;
    }
    if (verb !== PUBLISH || ++publishes === 1) return undefined;
    refuses = true;
    await say(0, RESET, [[1]]);
    return SILENT;
  };
  await withNode(node, async (mq) => {
    await mq.publish("t", "x");
    const subscription = await mq.subscribe("t", { group: "g" });
    const waiting = assert.rejects(soon(subscription.next()), { code: "forbidden" });
    await assert.rejects(soon(mq.publish("t", "y")), { code: "not_confirmed", message: /not this token/ }); // it was sent before
    await assert.rejects(soon(mq.publish("t", "z")), { code: "forbidden" });
    await waiting;
  });
});

test("a pause that a node asks for does not outlive the client", async () => {
  const node = async ({ verb, request, say }) => {
    if (verb !== PUBLISH && verb !== SUBSCRIBE) return undefined;
    await say(request, REFUSED, ["busy", "later", "", 60_000]);
    return SILENT;
  };
  const timers = () => process.getActiveResourcesInfo().filter((each) => each === "Timeout").length;
  let before = 0;
  await withNode(node, async (mq) => {
    before = timers();
    const published = mq.publish("t", "x").catch(({ code }) => code);
    await sleep(200);
    const subscribing = mq.subscribe("t", { group: "g" }).catch(({ code }) => code);
    await sleep(200);
    await mq.close({ flush: false });
    assert.deepEqual(await Promise.all([soon(published), soon(subscribing)]), ["not_confirmed", "closed"]);
  });
  assert.ok(timers() <= before, `${timers()} timers, ${before} before`);
});

test("what ends while its shard is joined is joined again", async () => {
  const numbers = [];
  const node = async ({ verb, fields, request, say }) => {
    if (verb !== SUBSCRIBE) return undefined;
    numbers.push(fields[0]);
    await say(request, SUBSCRIBED, [fields[0], 30000, []]);
    if (numbers.length === 2) await say(0, RESET, [[1]]); // when the first one is back, and the second is not there yet
    return SILENT;
  };
  await withNode(node, async (mq) => {
    await mq.subscribe("t", { group: "g" });
    await soon(mq.subscribe("t", { group: "h" }));
    await sleep(500);
    const last = numbers.slice(-2);
    assert.deepEqual([numbers.length, numbers[0] === last[0]], [5, true], `${numbers}`);
  });
});

test("what is acked or failed in a topic that is gone is refused", async () => {
  for (const settle of ["ack", "nack"]) {
    let gone = false;
    const node = async (said) => {
      const { verb, request, say } = said;
      if (verb === SUBSCRIBE && !gone) return subscribed(said, [NONE, NONE]);
      if (verb !== SUBSCRIBE && verb !== ACK && verb !== NACK) return undefined;
      await say(request, REFUSED, verb === SUBSCRIBE ? ["unknown_topic", "it is gone"] : ["no_subscription", "none of this number"]);
      gone = true;
      return SILENT;
    };
    await withNode(node, async (mq, { said }) => {
      const subscription = await mq.subscribe("t", { group: "g" });
      const [first, second] = [await subscription.next(3_000), await subscription.next(3_000)];
      await assert.rejects(async () => soon(first[settle]()), { code: "unknown_topic" });
      await assert.rejects(async () => soon(second.ack()), { code: "unknown_topic" });
      await assert.rejects(async () => soon(subscription.next()), { code: "unknown_topic" });
      assert.equal(said.filter((verb) => verb === ACK || verb === NACK).length, 1);
      await soon(subscription.close());
    });
  }
});

test("a clock that is set back makes nothing last longer", () =>
  withNode(() => undefined, async (mq) => {
    const subscription = await mq.subscribe("t", { group: "g" }), { now } = Date;
    const next = subscription.next(300);
    Date.now = () => now() - 3_600_000;
    try {
      assert.equal(await soon(next), null);
    } finally {
      Date.now = now;
    }
  }));

test("who holds more than can be named names ranges of it", async () => {
  const holding = [];
  const node = async (said) => {
    if (said.verb === SUBSCRIBE) holding.push(said.fields[7]);
    if (said.verb === SUBSCRIBE && holding.length === 1) return subscribed(said, new Array(34_000).fill(NONE));
    if (said.verb !== PUBLISH || holding.length > 1) return undefined;
    await said.say(0, RESET, [[1]]);
    return SILENT;
  };
  await withNode(node, async (mq) => {
    const subscription = await mq.subscribe("t", { group: "g" }), taken = [];
    for (let i = 0; i < 34_000; i++) taken.push(await subscription.next(3_000));
    await taken[1].ack();
    await soon(mq.publish("t", "x"));
    assert.deepEqual(holding[1], [[TOPIC * 65536, 0, 1], [TOPIC * 65536, 2, 34_000]]);
  });
});
