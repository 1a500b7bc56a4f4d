// Addresses of hosts by their names, looked up outside of libzmq.
//
// libzmq looks a name up in the thread that serves its connections. While a name server is silent, none of them sends or receives. So
// libzmq is only told numeric addresses.

import dns from "node:dns/promises";
import { isIP } from "node:net";

const AGAIN_MS = 1_000; // least time between two look-ups of one name
const SEVERAL = { family: 4, all: true }; // names stay with IPv4
const known = new Map(); // name -> addresses, the next one to try first
const pending = new Map(); // name -> its look-up in flight
const askedMs = new Map(); // name -> when its last look-up started

/** The host of tcp://HOST:PORT if it is a name, "" for a numeric address or another transport. */
export function nameIn(endpoint) {
  const name = /^tcp:\/\/([A-Za-z0-9_][A-Za-z0-9_.-]*):\d+$/.exec(endpoint)?.[1] ?? "";
  return isIP(name) ? "" : name;
}

export function withAddress(endpoint, address) {
  return endpoint.replace(/^tcp:\/\/.*:/, `tcp://${address}:`);
}

/** The address to connect to: the last one that is known, at once, or the first one that is found. Rejects if none is found. */
export async function addressOf(name) {
  const found = ask(name).catch(() => []);
  const address = known.get(name)?.[0] ?? (await found)[0];
  if (!address) throw new Error(`no address of ${name} is known`);
  return address;
}

/** The connection to that address was lost, or could not be made: the next one of the name is tried first. */
export function failed(name, address) {
  const addresses = known.get(name) ?? [];
  if (addresses[0] === address) addresses.push(addresses.shift());
}

/** Looks a name up, unless that is under way or began less than AGAIN_MS ago. */
async function ask(name) {
  const nowMs = performance.now();
  if (!pending.has(name) && nowMs - (askedMs.get(name) ?? -Infinity) >= AGAIN_MS) {
    askedMs.set(name, nowMs);
    pending.set(name, look(name).finally(() => pending.delete(name)));
  }
  return pending.get(name) ?? known.get(name) ?? [];
}

async function look(name) {
  const addresses = [...new Set((await dns.lookup(name, SEVERAL)).map((row) => row.address))];
  const before = known.get(name)?.[0];
  while (addresses.includes(before) && addresses[0] !== before) addresses.push(addresses.shift());
  known.set(name, addresses);
  return addresses;
}
