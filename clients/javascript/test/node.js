// A scripted node, which sends rare answers at chosen moments.

import { setTimeout as sleep } from "node:timers/promises";
import { decode, encode } from "@msgpack/msgpack";
import { Router } from "zeromq";
import { seal } from "../batch.js";
import { connect } from "../index.js";
import { ACK, CONFIRM, DELIVER, HELLO, PING, PUBLISH, RESOLVE, SUBSCRIBE, SUBSCRIBED, UNSUBSCRIBE, WELCOME } from "../protocol.js";

const PONG = 4, SHARD = 1;
export const ACKED = 38, TOPICS = 65, TOPIC = 3;
export const SILENT = Symbol("no answer");

/** `answer` gets what is said and `say(request, verb, fields, body)`; undefined: a node's own answer follows. */
export async function withNode(answer, run) {
  const router = new Router({ linger: 0 });
  await router.bind("tcp://127.0.0.1:*");
  const node = { said: [], offset: 0, endpoint: router.lastEndpoint };
  const serving = (async () => {
    for await (const [name, control, body] of router) {
      const [verb, request] = [control[3], Number(control.readBigUInt64LE(8))];
      const fields = decode(control.subarray(24));
      node.said.push(verb);
      const say = async (to, what, values, extra) => {
        const head = Buffer.from(control.subarray(0, 24));
        head[3] = what;
        head.writeBigUInt64LE(BigInt(to), 8);
        if (!router.closed) await router.send([name, Buffer.concat([head, encode(values)]), ...(extra ? [extra] : [])]);
      };
      if ((await answer({ verb, request, fields, body, say })) === SILENT) continue;
      if (verb === HELLO) await say(request, WELCOME, ["n", "c", "0.2.0", 1 << 25, 5000, 1000, [], 1]);
      else if (verb === RESOLVE) await say(request, TOPICS, [[[TOPIC, fields[0][0], 1, [1], [SHARD]]], ""]);
      else if (verb === PUBLISH) await say(0, CONFIRM, [[[request, node.offset++, 1, false]], 1 << 25]);
      else if (verb === SUBSCRIBE) await say(request, SUBSCRIBED, [fields[0], 30000, []]);
      else if (verb === ACK) await say(request, ACKED, [[]]);
      else if (verb === PING || verb === UNSUBSCRIBE) await say(request, PONG, []);
    }
  })();
  const mq = connect(router.lastEndpoint);
  try {
    await run(mq, node);
  } finally {
    await mq.close({ flush: false });
    router.close();
    await serving;
  }
}

export const soon = (promise) => Promise.race([promise, sleep(3_000, "it hangs", { ref: false })]);

/** A SUBSCRIBE is answered, and records of these headers are delivered. */
export async function subscribed({ request, fields, say }, headers) {
  await say(request, SUBSCRIBED, [fields[0], 30000, []]);
  await deliver(say, fields[0], headers);
  return SILENT;
}

export async function deliver(say, number, headers, attempt = 1, offset = 0) {
  const body = seal({ values: headers.map(() => Buffer.from("v")), keys: null, headers, route: "" }, Buffer.alloc(16), 0);
  await say(0, DELIVER, [number, [[TOPIC * 65536, offset, headers.length, attempt, body.length, body.length]], 30000], body);
}

export const NONE = Buffer.alloc(0);
export const delivering = (headers) => async (said) => (said.verb === SUBSCRIBE ? subscribed(said, headers) : undefined);
