// That the types say what the client does: checked, never run.

import { connect, GossipqError, type Message, type Stored } from "../index.js";

export async function work(signal: AbortSignal): Promise<Stored> {
  const mq = connect(["tcp://127.0.0.1:7700"]);
  for await (const message of mq.consume("orders", { group: "kitchen", signal })) {
    const one: Message = message;
    const done: boolean = await one.ack();
    if (!done) break;
  }
  // @ts-expect-error a value is text or bytes
  await mq.publish("orders", 17);
  try {
    return await mq.publish("orders", new Uint8Array(3), { key: "ada", headers: { n: "1" }, delayMs: 5 });
  } catch (error) {
    if (error instanceof GossipqError) console.log(error.code, error.hint);
    throw error;
  }
}
