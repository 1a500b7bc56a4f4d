// Look up topics and publish at odd moments, from several callers at a time, or with odd values, against a scripted node.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { decode } from "@msgpack/msgpack";
import { crc32 } from "node:zlib";
import { Opened } from "../batch.js";
import { PUBLISH, REFUSED, RESET, RESOLVE, SUBSCRIBE } from "../protocol.js";
import { SILENT, TOPIC, TOPICS, soon, withNode } from "./node.js";

const values = (body) => {
  const opened = new Opened(body);
  return Array.from({ length: opened.count }, (_, i) => opened.at("values", i).toString());
};

/** Script that notes stored records by value. `slow`: delay of the answer to RESOLVE, in ms. */
function storing(stored, slow = 0) {
  return async ({ verb, body }) => {
    if (verb === PUBLISH) stored.push(...values(body));
    if (verb === RESOLVE) await sleep(slow);
  };
}

test("numbers that are none are refused, and parts of a millisecond are rounded up", async () => {
  const delays = [];
  const leader = async ({ verb, body }) => void (verb === PUBLISH && delays.push(body.readBigInt64LE(56)));
  await withNode(leader, async (mq) => {
    for (const ms of [NaN, Infinity, -1, 1e30, "1000"]) {
      for (const options of [{ delayMs: ms }, { ttlMs: ms }, { delayMs: ms, id: "i" }]) {
        await assert.rejects(soon(mq.publish("t", "x", options)), { code: "bad_request" }, `${ms}`);
      }
    }
    await soon(mq.publish("t", "x", { delayMs: 0.5 }));
    assert.deepEqual(delays, [1n]);
  });
});

test("a flow and a priority are columns, and wrong ones are refused", () => {
  const bodies = [];
  return withNode(({ verb, body }) => void (verb === PUBLISH && bodies.push(body)), async (mq) => {
    for (const priority of [-1, 10, 0.5, "5", null]) await assert.rejects(soon(mq.publish("t", "x", { priority })), { code: "bad_request" });
    await assert.rejects(soon(mq.publish("t", "x", { flow: "x".repeat(65) })), { code: "too_large" });
    await assert.rejects(soon(mq.publish("t", "x", { flow: 5 })), TypeError);
    await soon(mq.publish("t", "x", { flow: "ada", priority: 0 }));
    const [body] = bodies, opened = new Opened(body);
    assert.equal(body.readUInt32LE(48), 0x80000 | 128 | 256);
    assert.equal(body.readBigUInt64LE(56), 0x2705162143dab015n);
    assert.deepEqual([String(opened.at("flows", 0)), opened.priority(0)], ["ada", 0]);
  });
});

test("headers are texts or bytes", () =>
  withNode(() => undefined, async (mq) => {
    for (const each of [5, undefined, null, { deep: "x" }]) {
      await assert.rejects(soon(mq.publish("t", "x", { headers: { each } })), TypeError);
    }
    await soon(mq.publish("t", "x", { headers: { text: "", bytes: Buffer.of(1) } }));
  }));

test("a header may have any name", async () => {
  const found = [];
  const node = async ({ verb, body }) => void (verb === PUBLISH && found.push(new Opened(body).at("headers", 0).toString("latin1")));
  await withNode(node, (mq) => soon(mq.publish("t", "x", { headers: { ["__proto__"]: "p" } })));
  assert.match(found[0], /__proto__.*p/s);
});

test("a pattern is no name of a topic", () =>
  withNode(() => undefined, async (mq, { said }) => {
    await assert.rejects(soon(mq.publish("t*", "x")), { code: "bad_name" });
    await assert.rejects(soon(mq.subscribe("*")), { code: "bad_name" });
    assert.ok(!said.includes(RESOLVE));
  }));

/** A node with `count` partitions, each in a shard of its own. */
const wide = (count, answer) => async (said) => {
  if (said.verb !== RESOLVE) return answer(said);
  await said.say(said.request, TOPICS, [[[TOPIC, "t", 1, [1], Array.from({ length: count }, (_, i) => 1 + i)]], ""]);
  return SILENT;
};

test("what waits for its confirm while the topic is found to be gone has an outcome", async () => {
  const node = wide(2, async ({ verb, fields, request, say }) => {
    if (verb !== PUBLISH) return undefined;
    if (fields[0] % 65536 === 0) await say(request, REFUSED, ["unknown_topic", "it is gone"]);
    return SILENT;
  });
  await withNode(node, async (mq) => {
    const keys = ["a", "b", "c", "d", "e", "f"], to = (partition) => keys.find((key) => crc32(key) % 2 === partition);
    const waits = mq.publish("t", "x", { key: to(1) }).catch(({ code }) => code);
    await assert.rejects(soon(mq.publish("t", "x", { key: to(0) })), { code: "unknown_topic" });
    assert.equal(await Promise.race([mq.flush(), sleep(200, "it waits")]), "it waits");
    await mq.close({ flush: false });
    assert.equal(await soon(waits), "not_confirmed");
  });
});

test("many partitions may be told to wait at a time", async () => {
  const warnings = [], warned = ({ name }) => warnings.push(name);
  process.on("warning", warned);
  const node = wide(20, async ({ verb, request, say }) => {
    if (verb !== PUBLISH) return undefined;
    await say(request, REFUSED, ["busy", "later", "", 60_000]);
    return SILENT;
  });
  await withNode(node, async (mq) => {
    const published = Array.from({ length: 200 }, (_, i) => mq.publish("t", "x", { key: `${i}` }).catch(() => {}));
    await sleep(500);
    await mq.close({ flush: false });
    await Promise.all(published);
  });
  process.off("warning", warned);
  assert.deepEqual(warnings, []);
});

test("texts that are cut within a character are sent all the same", async () => {
  const said = [];
  const leader = async ({ verb, body }) => void (verb === PUBLISH && said.push(decode(new Opened(body).at("headers", 0)).h));
  await withNode(leader, async (mq) => {
    await mq.publish("t", "x", { headers: { h: "x\ud83d" } });
    assert.deepEqual(said, ["x\ufffd"]);
  });
});

test("a list of which one value is none, and what is no list, is not published at all", async () => {
  const stored = [];
  await withNode(storing(stored), async (mq) => {
    await mq.publish("t", "x");
    const list = [...new Array(5_000).fill("y"), null];
    for (const each of [list, "yyy", new Set(["y"])]) await assert.rejects(soon(mq.publishMany("t", each)), TypeError);
    await sleep(100);
    assert.deepEqual(stored, ["x"]);
  });
});

test("a list larger than what may wait is published as a whole, or not at all", async () => {
  const stored = [], large = new Array(70).fill(Buffer.alloc(1 << 20));
  let holds = true;
  const leader = async ({ verb, body }) => {
    if (verb !== PUBLISH) return undefined;
    stored.push(body.length);
    return holds ? SILENT : undefined;
  };
  await withNode(leader, async (mq) => {
    const before = mq.publish("t", "x");
    await sleep(300);
    await assert.rejects(soon(mq.publishMany("t", large)), { code: "backpressure" });
    await sleep(300);
    assert.equal(stored.length, 1);
    before.catch(() => {});
  });
  holds = false;
  await withNode(leader, async (mq) => assert.equal((await mq.publishMany("t", large)).length, 70));
});

test("headers and keys count for how much goes into a batch", async () => {
  const sizes = [];
  const leader = async ({ verb, body }) => void (verb === PUBLISH && sizes.push(body.length));
  await withNode(leader, async (mq) => {
    await soon(mq.publishMany("t", new Array(4_096).fill("x"), { headers: { h: "y".repeat(10_000) } }));
    assert.ok(Math.max(...sizes) < 1 << 20, `${sizes}`);
  });
});

test("what is published is what was there when it was", async () => {
  for (const known of [false, true]) {
    const stored = [];
    await withNode(storing(stored), async (mq) => {
      if (known) await mq.publish("t", "first");
      const value = Buffer.from("a"), list = [Buffer.from("b")];
      const all = [mq.publish("t", value)];
      value.fill("z");
      all.push(mq.publishMany("t", list));
      list[0].fill("z");
      list.length = 0;
      await Promise.all(all);
      assert.deepEqual(stored.filter((each) => each !== "first"), ["a", "b"]);
    });
  }
});

test("records of one key keep their order while their topic is asked for, with signals or without", async () => {
  const stored = [], signal = new AbortController().signal;
  await withNode(storing(stored, 200), async (mq) => {
    const options = [{ signal }, {}, { signal }, {}];
    const all = options.map((each, i) => mq.publish("t", String(i), { key: "k", ...each }));
    await Promise.all(all);
    assert.deepEqual(stored, ["0", "1", "2", "3"]);
  });
});

test("flush and close wait for what waits for its topic", async () => {
  for (const end of ["flush", "close"]) {
    const stored = [];
    await withNode(storing(stored, 300), async (mq) => {
      const published = mq.publish("t", "x");
      published.catch(() => {});
      await soon(mq[end]());
      assert.deepEqual(stored, ["x"]);
      assert.equal((await published).offset, 0);
    });
  }
});

test("flush ends while others go on publishing", () =>
  withNode(async ({ verb }) => void (verb === PUBLISH && (await sleep(20))), async (mq) => {
    await mq.publish("t", "x");
    let goes = true;
    const others = (async () => {
      while (goes) mq.publish("t", "y").catch(() => {}), await sleep(5);
    })();
    const flushed = await soon(mq.flush().then(() => "flushed"));
    goes = false;
    await others;
    assert.equal(flushed, "flushed");
  }));

test("who does not want to make a topic does not keep others from it", async () => {
  const node = async ({ verb, fields, request, say }) => {
    if (verb !== RESOLVE || fields[1]) return undefined;
    await sleep(200);
    await say(request, TOPICS, [[], ""]);
    return SILENT;
  };
  await withNode(node, async (mq) => {
    const subscribing = mq.subscribe("t", { group: "g", create: false });
    const published = mq.publish("t", "x");
    await assert.rejects(soon(subscribing), { code: "unknown_topic" });
    assert.equal((await soon(published)).offset, 0);
  });
});

test("a topic that was made anew is found by who subscribes", async () => {
  let id = TOPIC;
  const node = async ({ verb, fields, request, say }) => {
    if (verb === RESOLVE) await say(request, TOPICS, [[[id, "t", 1, [1], [1]]], ""]);
    else if (verb === SUBSCRIBE && Math.floor(fields[2][0][0] / 65536) !== id) await say(request, REFUSED, ["unknown_topic", "it was removed"]);
    else return undefined;
    return SILENT;
  };
  await withNode(node, async (mq) => {
    await (await mq.subscribe("t", { group: "g" })).close();
    id++;
    await (await soon(mq.subscribe("t", { group: "g" }))).close();
  });
});

test("one signal may be that of many calls", () => {
  const program = `import { connect } from "./index.js";
    const mq = connect("tcp://127.0.0.1:9"), { signal } = new AbortController();
    for (let i = 0; i < 20; i++) mq.publish("t", "x", { signal }).catch(() => {}), mq.subscribe("t", { signal }).catch(() => {});
    await mq.close({ flush: false });`;
  const ran = spawnSync(process.execPath, ["--input-type=module", "-e", program], { cwd: new URL("..", import.meta.url), encoding: "utf8" });
  assert.equal(ran.stderr, "");
});

test("what a leader that leads no more was sent may be stored, and is not sent under another producer", async () => {
  const names = [];
  const node = async ({ verb, body, request, say }) => {
    if (verb !== PUBLISH) return undefined;
    names.push(body.toString("hex", 16, 32));
    if (names.length === 1) return undefined;
    await say(request, REFUSED, names.length === 2 ? ["not_leader", "another one does"] : ["out_of_sequence", "one is missing", "", 50, 1]);
    return SILENT;
  };
  await withNode(node, async (mq) => {
    await mq.publish("t", "x");
    await assert.rejects(soon(mq.publish("t", "y")), { code: "not_confirmed" });
    assert.equal(new Set(names).size, 1);
  });
});

test("a sequence that may be stored is not given to another record", async () => {
  const names = [];
  const node = async ({ verb, body, request, say }) => {
    if (verb !== PUBLISH) return undefined;
    names.push(body.toString("hex", 16, 40)); // producer and sequence
    if (names.length === 1) await say(0, RESET, [[1]]); // it is stored, and its confirm is lost
    else if (names.length === 2) await say(request, REFUSED, ["forbidden", "not any more"]);
    else return undefined;
    return SILENT;
  };
  await withNode(node, async (mq) => {
    await assert.rejects(soon(mq.publish("t", "x")), { code: "not_confirmed", message: /not any more/ });
    await soon(mq.publish("t", "y"));
  });
  assert.equal(names[0], names[1]);
  assert.notEqual(names[2], names[0]);
});

test("calls whose ids and times to live differ share a batch, also when their topic is made anew", async () => {
  const batches = [];
  let topic = TOPIC;
  const node = async ({ verb, fields, request, body, say }) => {
    if (verb === RESOLVE) {
      await say(request, TOPICS, [[[topic, fields[0][0], 1, [1], [1]]], ""]);
      return SILENT;
    }
    if (verb !== PUBLISH) return undefined;
    if (Math.floor(fields[0] / 65536) !== topic) {
      await say(request, REFUSED, ["unknown_topic", "it was removed"]);
      return SILENT;
    }
    batches.push(new Opened(body));
    return undefined;
  };
  await withNode(node, async (mq) => {
    await mq.publish("t", "first");
    topic = TOPIC + 1;
    await soon(Promise.all([mq.publish("t", "a", { id: "i" }), mq.publish("t", "b", { ttlMs: 60_000, flow: "ada" }), mq.publish("t", "c", { id: "j", ttlMs: 5, priority: 9 })]));
    const [, batch] = batches;
    assert.equal(batches.length, 2);
    assert.deepEqual([0, 1, 2].map((i) => [String(batch.at("values", i)), String(batch.at("ids", i)), batch.ttlMs(i)]), [["a", "i", 0], ["b", "", 60_000], ["c", "j", 5]]);
    assert.deepEqual([0, 1, 2].map((i) => [String(batch.at("flows", i)), batch.priority(i)]), [["", 5], ["ada", 5], ["", 9]]);
  });
});
