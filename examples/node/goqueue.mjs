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
  return items.reduce((map, item) => map.set(key(item), [...(map.get(key(item)) ?? []), item]), new Map());
}

export class Client {
  #received = NOTHING;
  #open = new Map(); // requests that are not answered, by correlation
  #sequences = new Map(); // the next one, by topic and partition
  #producer = null;
  #correlation = 0; #turn = 0;

  constructor(socket) {
    this.socket = socket;
    socket.on("data", (data) => this.#take(data));
    for (const event of ["error", "close"]) socket.on(event, (e) => this.#end(e || new Error("the connection closed")));
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

  createTopic = (name, partitions, settings = {}) => this.request(CREATE_TOPIC, { name, partitions, settings });

  /** Publish messages, in one batch per partition. `repeat` of an answer sends its batch again. */
  async publish(topic, messages) {
    this.#producer ??= (await this.request(INIT_PRODUCER, {})).meta;
    const { topics: [{ leaders, partitioner, error }] } = (await this.request(METADATA, { topics: [topic] })).meta;
    if (error) throw failure(error);
    const turn = this.#turn++, hash = partitioner === "murmur2" ? murmur2 : murmur3;
    const partitionOf = ({ key }) => (key == null ? turn : hash(Buffer.from(key))) % leaders.length;
    return Promise.all(Array.from(groupBy(messages, partitionOf), (batch) => this.#publish(topic, ...batch)));
  }

  async #publish(topic, partition, [first, ...others]) {
    const count = 1 + others.length, place = `${topic}/${partition}`, sequence = this.#sequences.get(place) ?? 0;
    this.#sequences.set(place, sequence + count);
    const { producer_id, epoch } = this.#producer;
    const headers = { "gq-producer": `${producer_id}:${epoch}:${sequence}:${count}`, ...first.headers };
    const batch = Buffer.concat([{ ...first, headers }, ...others].map(encodeRecord));
    const send = async () => (await this.request(PUBLISH, { topic, partition }, batch)).meta;
    return { partition, ...(await send()), repeat: send };
  }

  /** Become a member of a group. */
  async join(group, topics, options = {}) {
    const asked = { group, client_id: "node", topics, ...options };
    return new Member(this, group, decode((await this.request(JOIN, asked)).payload));
  }

  #take(data) {
    this.#received = Buffer.concat([this.#received, data]);
    while (this.#received.length >= 16) {
      const end = 4 + this.#received.readUInt32BE(0);
      if (this.#received.length < end) return;
      this.#answer(this.#received.subarray(0, end));
      this.#received = this.#received.subarray(end);
    }
  }

  #answer(frame) {
    const flags = frame[5], payloadAt = 16 + frame.readUInt16BE(6), correlation = frame.readUInt32BE(8);
    const covered = frame.subarray(16, flags & SELF_CHECKED ? payloadAt : frame.length);
    const sum = crc32c(frame.subarray(0, 12), covered);
    if (sum !== frame.readUInt32BE(12)) return this.#end(new Error("a frame fails its checksum"));
    const meta = decode(frame.subarray(16, payloadAt)), { resolve, reject } = this.#open.get(correlation) ?? {};
    if (!resolve) return this.#end(failure(meta)); // it concerns the connection
    this.#open.delete(correlation);
    flags & ERROR ? reject(failure(meta)) : resolve({ meta, payload: frame.subarray(payloadAt) });
  }

  #end(error) {
    this.socket.destroy();
    for (const { reject } of this.#open.values()) reject(error);
  }
}

class Member {
  #client; #name;
  #number = 0; // of the last poll

  constructor(client, group, { member_id, generation, partitions }) {
    this.#client = client;
    this.#name = { group, member_id };
    Object.assign(this, { generation, partitions });
  }

  /** Messages, each with the delivery that it came with. */
  async poll(max_messages = 100, wait_ms = 1000) {
    const asked = { ...this.#name, generation: this.generation, number: ++this.#number, max_messages, wait_ms };
    const { meta, payload } = await this.#client.request(POLL, asked);
    if (meta.rebalance_required || meta.generation !== asked.generation) await this.heartbeat();
    let at = 0;
    const records = ({ bytes }) => decodeRecords(payload.subarray(at, (at += bytes)));
    return meta.batches.flatMap((delivery) => Array.from(records(delivery), (record) => ({ ...record, delivery })));
  }

  /** Stay a member, and revoke what has to go. */
  async heartbeat(revoked = []) {
    const asked = { ...this.#name, generation: this.generation }, given = revoked.length ? encode(revoked) : NOTHING;
    const { payload } = await this.#client.request(HEARTBEAT, asked, given);
    const { generation, partitions_assigned: partitions, partitions_to_revoke: leaving } = decode(payload);
    Object.assign(this, { generation, partitions });
    if (leaving.length) await this.heartbeat(leaving);
  }

  /** Settle messages by ack, nack, reject, extend or release; throws for the first that is refused. */
  async settle(messages, settlement = { action: "ack" }) {
    const those = [...groupBy(messages, (message) => message.delivery)];
    const offsets = new BigUint64Array(those.flatMap(([, all]) => all.map((one) => one.offset))); // little-endian
    const parts = those.map(([{ topic, partition, nonce }, all]) => ({ topic, partition, nonce, count: all.length }));
    const { payload } = await this.#client.request(SETTLE, { settlement, parts }, Buffer.from(offsets.buffer));
    const refused = decode(payload).map(([settled, error]) => error ?? settled.refused[0]).find(Boolean);
    if (refused) throw failure(refused);
  }

  leave = () => this.#client.call("groups.leave", this.#name);
}
