import { connect } from "gossipq";

const mq = connect(); // $GOSSIPQ_SERVER, or tcp://127.0.0.1:7700
const stored = await mq.publish("orders", "one coffee", { key: "ada", headers: { currency: "EUR" } });
console.log(`stored at offset ${stored.offset}`);
await Promise.all(["tea", "milk", "cake"].map((what) => mq.publish("orders", what, { key: "ada" })));
await mq.close();
