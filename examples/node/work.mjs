// node work.mjs HOST:PORT: create a topic, publish, poll as a member of a group, ack. Prints what it did as JSON.

import { Client } from "./goqueue.mjs";

const [, host, port] = /^(.*):(\d+)$/.exec(process.argv[2] ?? "127.0.0.1:7000");
const client = await Client.connect(host, port);
await client.createTopic("from-node", 6);

const messages = Array.from({ length: 20 }, (_, number) => ({
  key: `order-${number % 7}`,
  value: JSON.stringify({ number, city: "Zürich" }),
  headers: { source: "node" },
  priority: number % 5,
}));
const stored = await client.publish("from-node", messages);
const repeated = await Promise.all(stored.map(({ repeat }) => repeat()));

const member = await client.join("node-workers", ["from-node"]);
const received = [];
while (received.length < messages.length) {
  const batch = await member.poll(7);
  await member.settle(batch);
  received.push(...batch);
}
const refused = await member.settle(received.slice(0, 1)).catch((error) => error.code);
const positions = await client.call("groups.positions", { group: "node-workers" });
await member.leave();
client.socket.end();

console.log(JSON.stringify({
  stored: stored.map(({ partition, first_offset, record_count }) => ({ partition, first_offset, record_count })),
  duplicates: repeated.map(({ first_offset, duplicate }) => ({ first_offset, duplicate })),
  received: received.map(({ value, headers, delivery }) => ({
    ...JSON.parse(value), ...headers, partition: delivery.partition,
  })),
  refused,
  lag: positions.reduce((sum, { lag }) => sum + lag, 0),
}));
