// Names of hosts: a dead one stops only its own connection.

import assert from "node:assert/strict";
import dns from "node:dns/promises";
import { beforeEach, test } from "node:test";
import { connect } from "../index.js";
import { addressOf, failed, nameIn, withAddress } from "../names.js";
import { HELLO, WELCOME } from "../protocol.js";
import { SILENT, soon, withNode } from "./node.js";

const NEVER = new Promise(() => {});
let answers = {}; // name -> addresses, or a promise of them
let asked = [];

beforeEach(() => {
  [answers, asked] = [{}, []];
  dns.lookup = async (name) => {
    asked.push(name);
    const addresses = await answers[name];
    if (!addresses) throw new Error(`ENOTFOUND ${name}`);
    return addresses.map((address) => ({ address, family: 4 }));
  };
});

test("only names are looked up", () => {
  assert.equal(nameIn("tcp://node-1.example:7700"), "node-1.example");
  for (const other of ["tcp://127.0.0.1:7700", "tcp://[::1]:7700", "ipc:///tmp/x", "tcp://node-1"]) assert.equal(nameIn(other), "");
  assert.equal(withAddress("tcp://node-1:7701", "10.0.0.1"), "tcp://10.0.0.1:7701");
});

test("the last good address serves while nobody knows the name, and the next one is tried after a failure", async () => {
  await assert.rejects(addressOf("first"), /no address of first is known/);
  answers.second = ["10.0.0.1", "10.0.0.2"];
  assert.equal(await addressOf("second"), "10.0.0.1");
  failed("second", "10.0.0.1");
  failed("second", "10.0.0.1"); // somebody else's failure of the same address
  assert.equal(await addressOf("second"), "10.0.0.2");
  assert.deepEqual(asked, ["first", "second"], "one look-up a second");
  delete answers.second;
  await new Promise((resolve) => setTimeout(resolve, 1_050));
  assert.equal(await addressOf("second"), "10.0.0.2");
  assert.deepEqual(asked, ["first", "second", "second"]);
});

test("a server whose name server is silent is passed over", async () => {
  answers["dead.example"] = NEVER;
  await withNode(
    async () => undefined,
    async (_, node) => {
      const mq = connect(["tcp://dead.example:7700", node.endpoint]);
      assert.equal((await mq.publish("t", "x")).offset, 0);
      await mq.close();
    },
  );
  assert.deepEqual(asked, ["dead.example"]);
});

test("a leader at a dead name is reached by way of the home", async () => {
  for (const addresses of [NEVER, undefined]) {
    const name = addresses ? "silent.example" : "gone.example";
    answers[name] = addresses;
    await withNode(
      async ({ verb, request, say }) => {
        if (verb !== HELLO) return undefined;
        await say(request, WELCOME, ["n", "c", "0.2.0", 1 << 25, 5000, 1000, [[1, 1, `tcp://${name}:7701`]], 1]);
        return SILENT;
      },
      async (mq) => assert.equal((await mq.publish("t", "x")).offset, 0),
    );
    assert.ok(asked.includes(name));
  }
});

test("a server is found by its name", async () => {
  answers["node.example"] = ["127.0.0.1"];
  await withNode(
    async () => undefined,
    async (_, node) => {
      const mq = connect(node.endpoint.replace("127.0.0.1", "node.example"));
      assert.equal((await soon(mq.publish("t", "x"))).offset, 0);
      await mq.close();
    },
  );
});
