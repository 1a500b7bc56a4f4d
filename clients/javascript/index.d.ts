/** Bytes, or a text that stands for its UTF-8. */
export type Bytes = Uint8Array | string;

export declare const VERSION: string;

export interface Publish {
  /** Records of one key lie in one partition, in the order in which they were published. */
  key?: Bytes;
  headers?: Record<string, Bytes>;
  /** A record that is published again under the same id is stored once (for 10 minutes, unless the topic sets another time). */
  id?: Bytes;
  /** Whose record it is, such as a customer: up to 64 bytes. Groups of order "fair" serve flows in turn. Without a key it chooses the
   * partition. */
  flow?: string;
  /** 0 to 9, 5 by default. Groups of order "priority" or "fair" deliver the higher one first. */
  priority?: number;
  /** Words separated by dots, for consumers that take only some. */
  route?: string;
  /** Until consumers get it; parts of a millisecond are rounded up. */
  delayMs?: number;
  /** From then until it expires; 0: as the topic says. */
  ttlMs?: number;
  /** Stops waiting; the record may be stored all the same. */
  signal?: AbortSignal;
}

export interface Stored {
  topic: string;
  partition: number;
  /** -1: it is scheduled, and gets its offset when it is due. */
  offset: number;
  /** How many disks have it. */
  copies: number;
  /** It was stored before, under this id. */
  duplicate: boolean;
}

export interface Connect {
  /** File with a token, for a closed cluster, and perhaps a door. Default: $GOSSIPQ_CREDENTIALS. */
  credentials?: string;
  /** In its place: gq_ and 64 hexadecimal digits. */
  token?: string;
  /** The token may leave this machine in the clear. */
  insecure?: boolean;
  /** Key of the nodes, door_ and 64 hexadecimal digits: what is said is encrypted, at 100 above each port. Default: that in the file. */
  door?: string;
  /** Everything by the servers that are named, nothing straight to the leaders. */
  forward?: boolean;
}

export interface Subscribe {
  /** Consumers of a group share the records; without one, a reader sees all and acks nothing. */
  group?: string;
  /** Of a new group ("first") or a reader ("new"): an offset, or a time. */
  start?: "first" | "new" | number | Date;
  /** Records that may wait here, or be worked on, at a time. Default: 1000; of an exclusive consumer 1. */
  credit?: number;
  creditBytes?: number;
  /** Of the group: how long a record is held without a sign of life. */
  leaseMs?: number;
  mode?: "shared" | "exclusive" | "key_ordered";
  /** Patterns: words, * for one, # for any number. */
  routes?: string[];
  /** Makes a topic that is not there. Default: true. */
  create?: boolean;
  /** Ends the iteration. */
  signal?: AbortSignal;
}

export declare class Message {
  readonly topic: string;
  readonly partition: number;
  readonly offset: number;
  /** Number of started attempts, this one included: 1 for the first. */
  readonly attempt: number;
  readonly value: Buffer;
  /** Empty: none. */
  readonly key: Buffer;
  readonly headers: Record<string, Uint8Array | string>;
  readonly id: Buffer;
  readonly route: string;
  /** When it was published, unix milliseconds. */
  readonly timeMs: number;
  /** It is done. Resolves when that is stored: true, or false if the record is in other hands by now. flush() and close() tell a false
   * that the program does not await. */
  ack(): Promise<boolean>;
  /** Mark the record as failed. It is redelivered after `delayMs`, or by the policy of the group. */
  nack(reason?: string | Error, options?: { delayMs?: number }): Promise<boolean>;
  /** Make the record a dead letter; it is not redelivered. */
  reject(reason?: string | Error): Promise<boolean>;
  /** It is redelivered at once, to any consumer. That is an attempt, and no failure. */
  release(): Promise<boolean>;
}

export declare class Subscription implements AsyncIterable<Message> {
  /** The next message; null when none comes in time, or the subscription is closed. */
  next(waitMs?: number): Promise<Message | null>;
  [Symbol.asyncIterator](): AsyncGenerator<Message, void, void>;
  /** Resolves when all acks are stored. Rejects with code "lease_lost" if others have records whose acks the program does not await;
   * `records` of the error has them. */
  flush(): Promise<void>;
  /** Give back the waiting records and end the subscription. Rejects as flush() does. */
  close(): Promise<void>;
}

export declare class Client {
  constructor(servers: string[], options?: Connect);
  /** Resolves when the record is stored. Rejects with GossipqError. The arguments are copied and may be changed at once. */
  publish(topic: string, value: Bytes, options?: Publish): Promise<Stored>;
  /** The same for many values with the same options, as batches of their own: the place of each. All or none
   * of them are taken; if some are refused later, others may be stored. */
  publishMany(topic: string, values: Bytes[], options?: Publish): Promise<Stored[]>;
  subscribe(topic: string, options?: Subscribe): Promise<Subscription>;
  consume(topic: string, options?: Subscribe): AsyncGenerator<Message, void, void>;
  /** Resolves when all that was published by now is stored, or has failed, and all acks are stored. Rejects as Subscription.flush() does. */
  flush(): Promise<void>;
  /** Ends all, and rejects as flush() does. */
  close(options?: { flush?: boolean }): Promise<void>;
}

/** One address is enough; others are tried when it is gone. Without any: $GOSSIPQ_SERVER, or this host's node. */
export declare function connect(servers?: string | string[], options?: Connect): Client;

export declare class GossipqError extends Error {
  /** One of PROTOCOL.md section 2; or "closed", "not_confirmed" (it may be stored), "backpressure". */
  readonly code: string;
  /** The next step. */
  readonly hint: string;
  readonly retryAfterMs: number;
  readonly detail: number;
  /** Of "lease_lost": the records whose acks were not stored. */
  readonly records?: { topic: string; partition: number; offset: number }[];
}
