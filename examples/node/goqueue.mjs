// A client of the native protocol, written from docs/reference/protocol.md: publish exactly once, poll, settle, call.
// It does not reconnect, subscribe or decompress; the page says how.

import net from "node:net";
import { crc32c, murmur2, murmur3 } from "./hashes.mjs";
import { decode, encode } from "./msgpack.mjs";
import { decodeRecords, encodeRecord } from "./records.mjs";

const HELLO = 1, METADATA = 3, CREATE_TOPIC = 10, INIT_PRODUCER = 20, PUBLISH = 21;
const JOIN = 50, HEARTBEAT = 51, POLL = 52, SETTLE = 53, CALL = 60;
const ERROR = 0x02, SELF_CHECKED = 0x04;
const NOTHING = Buffer.alloc(0);

const failure = (told) => Object.assign(new Error(told.text), told);

function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
  return groups;
}

export class Client {
  #received = NOTHING;
  #open = new Map(); // requests that are not answered, by correlation
  #correlation = 0;
  #producer = null;
  #sequences = new Map(); // the next one, by topic and partition
  #turn = 0;

  constructor(socket) {
    this.socket = socket;
    socket.on("data", (data) => this.#take(data));
    socket.on("error", (error) => this.#end(error));
    socket.on("close", () => this.#end(new Error("the connection is closed")));
  }

  static async connect(host, port) {
    const client = new Client(net.connect({ host, port: Number(port), noDelay: true }));
    await client.request(HELLO, { version: 1, client_id: "node" });
    return client;
  }

  /** Send a request; its answer is { meta, payload }. */
  request(kind, meta, payload = NOTHING) {
    const raw = encode(meta), head = Buffer.alloc(16), correlation = ++this.#correlation;
    head.writeUInt32BE(12 + raw.length + payload.length, 0);
    head[4] = kind;
    head.writeUInt16BE(raw.length, 6);
    head.writeUInt32BE(correlation, 8);
    head.writeUInt32BE(crc32c(head.subarray(0, 12), raw, payload), 12);
    this.socket.write(Buffer.concat([head, raw, payload]));
    return new Promise((resolve, reject) => this.#open.set(correlation, { resolve, reject }));
  }

  /** Call a verb by its name. */
  async call(name, args) {
    return decode((await this.request(CALL, { name }, encode(args))).payload);
  }

  async createTopic(name, partitions, settings = {}) {
    return (await this.request(CREATE_TOPIC, { name, partitions, settings })).meta;
  }

  /** Publish messages, in one batch per partition. `repeat` of an answer sends its batch again. */
  async publish(topic, messages) {
    this.#producer ??= (await this.request(INIT_PRODUCER, {})).meta;
    const { topics: [{ leaders, partitioner, error }] } = (await this.request(METADATA, { topics: [topic] })).meta;
    if (error) throw failure(error);
    const turn = this.#turn++, hash = partitioner === "murmur2" ? murmur2 : murmur3;
    const partitionOf = ({ key }) => (key == null ? turn : hash(Buffer.from(key))) % leaders.length;
    const batches = [...groupBy(messages, partitionOf)];
    return Promise.all(batches.map(([partition, batch]) => this.#publish(topic, partition, batch)));
  }

  async #publish(topic, partition, [first, ...others]) {
    const count = 1 + others.length, place = `${topic}/${partition}`;
    const sequence = this.#sequences.get(place) ?? 0;
    this.#sequences.set(place, sequence + count);
    const { producer_id, epoch } = this.#producer;
    const headers = { "gq-producer": `${producer_id}:${epoch}:${sequence}:${count}`, ...first.headers };
    const batch = Buffer.concat([{ ...first, headers }, ...others].map(encodeRecord));
    const send = async () => (await this.request(PUBLISH, { topic, partition }, batch)).meta;
    return { partition, ...(await send()), repeat: send };
  }

  /** Become a member of a group. */
  async join(group, topics, options = {}) {
    const { payload } = await this.request(JOIN, { group, client_id: "node", topics, ...options });
    return new Member(this, group, decode(payload));
  }

  close() {
    this.socket.end();
  }

  #take(data) {
    this.#received = Buffer.concat([this.#received, data]);
    while (this.#received.length >= 16) {
      const end = 4 + this.#received.readUInt32BE(0);
      if (this.#received.length < end) return;
      const frame = this.#received.subarray(0, end);
      this.#received = this.#received.subarray(end);
      const flags = frame[5], payloadAt = 16 + frame.readUInt16BE(6), correlation = frame.readUInt32BE(8);
      const covered = frame.subarray(16, flags & SELF_CHECKED ? payloadAt : end);
      if (crc32c(frame.subarray(0, 12), covered) !== frame.readUInt32BE(12)) {
        return this.#end(new Error("a frame fails its checksum"));
      }
      const meta = decode(frame.subarray(16, payloadAt));
      if (!correlation) return this.#end(failure(meta));
      const { resolve, reject } = this.#open.get(correlation);
      this.#open.delete(correlation);
      flags & ERROR ? reject(failure(meta)) : resolve({ meta, payload: frame.subarray(payloadAt) });
    }
  }

  #end(error) {
    this.socket.destroy();
    for (const { reject } of this.#open.values()) reject(error);
    this.#open.clear();
  }
}

class Member {
  #client;
  #name;
  #number = 0; // of the last poll

  constructor(client, group, { member_id, generation, partitions }) {
    this.#client = client;
    this.#name = { group, member_id };
    Object.assign(this, { generation, partitions });
  }

  /** Messages, each with the delivery that it came with. */
  async poll(maxMessages = 100, waitMs = 1000) {
    const number = ++this.#number, generation = this.generation;
    const asked = { ...this.#name, generation, max_messages: maxMessages, wait_ms: waitMs, number };
    const { meta, payload } = await this.#client.request(POLL, asked);
    if (meta.rebalance_required || meta.generation !== generation) await this.heartbeat();
    let at = 0;
    return meta.batches.flatMap((delivery) => {
      const records = decodeRecords(payload.subarray(at, (at += delivery.bytes)));
      return Array.from(records, (record) => ({ ...record, delivery }));
    });
  }

  /** Stay a member, and revoke what has to go. */
  async heartbeat(revoked = []) {
    const asked = { ...this.#name, generation: this.generation };
    const { payload } = await this.#client.request(HEARTBEAT, asked, revoked.length ? encode(revoked) : NOTHING);
    const { generation, partitions_assigned: partitions, partitions_to_revoke: leaving } = decode(payload);
    Object.assign(this, { generation, partitions });
    if (leaving.length) await this.heartbeat(leaving);
  }

  /** Settle messages by ack, nack, reject, extend or release; throws for the first that is refused. */
  async settle(messages, settlement = { action: "ack" }) {
    const deliveries = [...groupBy(messages, (message) => message.delivery)];
    // little-endian, as this machine is if it runs Node
    const offsets = new BigUint64Array(deliveries.flatMap(([, those]) => those.map(({ offset }) => offset)));
    const parts = deliveries.map(([{ topic, partition, nonce }, { length: count }]) => ({ topic, partition, nonce, count }));
    const { payload } = await this.#client.request(SETTLE, { settlement, parts }, Buffer.from(offsets.buffer));
    for (const [settled, error] of decode(payload)) {
      if (error ?? settled.refused[0]) throw failure(error ?? settled.refused[0]);
    }
  }

  leave() {
    return this.#client.call("groups.leave", this.#name);
  }
}
