import { connect } from "gossipq";

const mq = connect();
const stop = new AbortController();
process.on("SIGINT", () => stop.abort());
for await (const message of mq.consume("orders", { group: "kitchen", signal: stop.signal })) {
  console.log(`${message.key}: ${message.value}`);
  await message.ack(); // or message.nack("no milk"): then it comes again
}
await mq.close();
