// CRC-32C, which protects frames and records, and murmur3 and murmur2, which choose the partition of a key.

const TABLE = new Uint32Array(256).map((_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0x82f63b78 : byte >>> 1;
  return byte;
});

/** CRC-32C of several buffers, one after the other. */
export function crc32c(...parts) {
  let crc = 0xffffffff;
  for (const part of parts) for (const byte of part) crc = TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  return ~crc >>> 0;
}

const rotate = (word, bits) => (word << bits) | (word >>> (32 - bits));
const mix = (word) => Math.imul(rotate(Math.imul(word, 0xcc9e2d51), 15), 0x1b873593);

/** murmur3, x86, 32 bits, seed 0, unsigned. */
export function murmur3(key) {
  const whole = key.length & ~3;
  let hash = 0;
  for (let at = 0; at < whole; at += 4) {
    hash = (Math.imul(rotate(hash ^ mix(key.readInt32LE(at)), 13), 5) + 0xe6546b64) | 0;
  }
  let tail = 0;
  for (let at = key.length - 1; at >= whole; at--) tail = (tail << 8) | key[at];
  hash ^= mix(tail) ^ key.length;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}

/** murmur2 as Kafka's clients have it: 32 bits, seed 0x9747b28c, without the sign bit. */
export function murmur2(key) {
  const whole = key.length & ~3, scale = (word) => Math.imul(word, 0x5bd1e995);
  let hash = 0x9747b28c ^ key.length;
  for (let at = 0; at < whole; at += 4) {
    const word = scale(key.readInt32LE(at));
    hash = scale(hash) ^ scale(word ^ (word >>> 24));
  }
  let tail = 0;
  for (let at = key.length - 1; at >= whole; at--) tail = (tail << 8) | key[at];
  if (whole < key.length) hash = scale(hash ^ tail);
  hash = scale(hash ^ (hash >>> 13));
  return (hash ^ (hash >>> 15)) & 0x7fffffff;
}
