// The part of msgpack that the protocol needs. Integers that a double cannot hold are BigInt.

/** The code of a type and a size: inside of the code if it is below `small`, else in 2 or 4 bytes. */
function head(size, small, smallCode, code) {
  if (size < small) return Buffer.of(smallCode | size);
  const raw = Buffer.alloc(size < 65536 ? 3 : 5, code);
  size < 65536 ? raw.writeUInt16BE(size, 1) : raw.writeUInt32BE(size, 1);
  if (size >= 65536) raw[0] = code + 1;
  return raw;
}

function integer(value) {
  if (value >= 0 && value < 128) return Buffer.of(Number(value));
  const raw = Buffer.alloc(9, value < 0 ? 0xd3 : 0xcf);
  value < 0 ? raw.writeBigInt64BE(BigInt(value), 1) : raw.writeBigUInt64BE(BigInt(value), 1);
  return raw;
}

export function encode(value) {
  if (value === null || value === undefined) return Buffer.of(0xc0);
  if (typeof value === "boolean") return Buffer.of(value ? 0xc3 : 0xc2);
  if (typeof value === "bigint" || Number.isInteger(value)) return integer(value);
  if (typeof value === "string") {
    const text = Buffer.from(value);
    return Buffer.concat([head(text.length, 32, 0xa0, 0xda), text]);
  }
  if (Buffer.isBuffer(value)) return Buffer.concat([head(value.length, 0, 0, 0xc5), value]);
  if (Array.isArray(value)) {
    return Buffer.concat([head(value.length, 16, 0x90, 0xdc), ...value.map(encode)]);
  }
  const entries = Object.entries(value);
  return Buffer.concat([head(entries.length, 16, 0x80, 0xde), ...entries.flat().map(encode)]);
}

export function decode(raw) {
  let at = 0;
  const bytes = (size) => raw.subarray(at, (at += size));
  const uint = (size) => bytes(size).readUIntBE(0, size);
  const wide = (big) => (Number.isSafeInteger(Number(big)) ? Number(big) : big);
  const list = (size) => Array.from({ length: size }, next);
  const map = (size) => Object.fromEntries(Array.from({ length: size }, () => [next(), next()]));
  const next = () => {
    const code = uint(1);
    if (code < 0x80) return code;
    if (code < 0x90) return map(code & 0x0f);
    if (code < 0xa0) return list(code & 0x0f);
    if (code < 0xc0) return bytes(code & 0x1f).toString();
    if (code === 0xc0) return null;
    if (code === 0xc2 || code === 0xc3) return code === 0xc3;
    if (code >= 0xc4 && code <= 0xc6) return bytes(uint(1 << (code - 0xc4)));
    if (code === 0xca) return bytes(4).readFloatBE();
    if (code === 0xcb) return bytes(8).readDoubleBE();
    if (code >= 0xcc && code <= 0xce) return uint(1 << (code - 0xcc));
    if (code === 0xcf) return wide(bytes(8).readBigUInt64BE());
    if (code >= 0xd0 && code <= 0xd2) return bytes(1 << (code - 0xd0)).readIntBE(0, 1 << (code - 0xd0));
    if (code === 0xd3) return wide(bytes(8).readBigInt64BE());
    if (code >= 0xd9 && code <= 0xdb) return bytes(uint(1 << (code - 0xd9))).toString();
    if (code === 0xdc || code === 0xdd) return list(uint(2 << (code - 0xdc)));
    if (code === 0xde || code === 0xdf) return map(uint(2 << (code - 0xde)));
    if (code >= 0xe0) return code - 256;
    throw new Error(`msgpack: unknown type 0x${code.toString(16)}`);
  };
  return next();
}
