// This client as a driver of `gossipq client conformance`: JSON lines in, JSON lines out.

import { createInterface } from "node:readline";
import { connect } from "./index.js";

let mq, subscription;
const held = new Map();
const b64 = (raw) => Buffer.from(raw).toString("base64");
const raw = (text) => Buffer.from(text ?? "", "base64");
const decoded = (map) => Object.fromEntries(Object.entries(map ?? {}).map(([name, value]) => [name, raw(value)]));

const done = (settled) => (settled ? {} : { error: "lease_lost", message: "others have the record by now" });

const verbs = {
  async connect({ servers, token, door }) {
    await mq?.close({ flush: false });
    mq = connect(servers, { token, door });
  },
  async publish({ topic, records, route, flow, priority, delay_ms: delayMs, timeout_ms: timeoutMs }) {
    const signal = timeoutMs ? AbortSignal.timeout(timeoutMs) : undefined;
    const how = { route, flow, priority, delayMs, signal };
    const places = await Promise.all(
      records.map(({ value, key, headers, id }) => mq.publish(topic, raw(value), { key: raw(key), headers: decoded(headers), id: raw(id), ...how })),
    );
    return { places: places.map(({ partition, offset }) => [partition, offset]) };
  },
  async subscribe({ topic, group }) {
    subscription = await mq.subscribe(topic, { group });
  },
  async next({ wait_ms }) {
    const message = await subscription.next(wait_ms);
    if (message === null) return { record: null };
    held.set(`${message.partition}/${message.offset}`, message);
    const { partition, offset, attempt, value, key, headers, id, route } = message;
    const shown = Object.fromEntries(Object.entries(headers).map(([name, each]) => [name, b64(each)]));
    return { record: { partition, offset, attempt, value: b64(value), key: b64(key), headers: shown, id: b64(id), route } };
  },
  ack({ partition, offset, wait = true }) {
    const settled = held.get(`${partition}/${offset}`).ack();
    return wait ? settled.then(done) : {};
  },
  nack: ({ partition, offset, reason }) => held.get(`${partition}/${offset}`).nack(reason).then(done),
  release: ({ partition, offset }) => held.get(`${partition}/${offset}`).release().then(done),
  close: () => mq.close(),
};

for await (const line of createInterface({ input: process.stdin })) {
  const said = JSON.parse(line);
  let answer;
  try {
    answer = (await verbs[said.do](said)) ?? {};
  } catch (error) {
    answer = { error: typeof error.code === "string" ? error.code : error.name, message: error.message };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
  if (said.do === "close") break;
}
process.exit(0);
