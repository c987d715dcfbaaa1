// Records: messages as they stand in a payload, docs/reference/protocol.md#records.

import { crc32c } from "./hashes.mjs";

const HEADER_BYTES = 34, HAS_HEADERS = 0x02, TOMBSTONE = 0x04, EMPTY_KEY = 0x40, NORMAL = 2;
const NULL = Buffer.of(0xff, 0xff); // as the length of the value of a header

const HOW_IT_WAS_PUBLISHED = ["gq-producer", "gq-deliver-at", "gq-expires-at", "gq-created"];

function u16(number) {
  return Buffer.of(number >> 8, number & 0xff);
}

function sized(text) {
  const raw = Buffer.from(text);
  return Buffer.concat([u16(raw.length), raw]);
}

/**
 * A message as a producer sends it: offset, timestamp and crc are zero. A value of null is a tombstone, a key of null
 * is no key, and a header of null has no value; empty ones are something else.
 */
export function encodeRecord({ key = null, value, headers = {}, priority = NORMAL }) {
  const [rawKey, rawValue] = [Buffer.from(key ?? ""), Buffer.from(value ?? "")];
  const pairs = Object.entries(headers).map(([name, text]) => [sized(name), text === null ? NULL : sized(text)]);
  const rawHeaders = Buffer.concat(pairs.length ? [u16(pairs.length), ...pairs.flat()] : []);
  const head = Buffer.alloc(HEADER_BYTES);
  head.write("GQ\x01", "latin1");
  head[3] = (pairs.length ? HAS_HEADERS : 0) | (value === null ? TOMBSTONE : 0) | (key?.length === 0 ? EMPTY_KEY : 0);
  head[24] = priority;
  head.writeUInt16BE(rawKey.length, 26);
  head.writeUInt32BE(rawValue.length, 28);
  head.writeUInt16BE(rawHeaders.length, 32);
  return Buffer.concat([head, rawKey, rawValue, rawHeaders]);
}

/** The messages in a payload; throws if a record is damaged. */
export function* decodeRecords(raw) {
  for (let at = 0, end; at < raw.length; at = end) {
    const keyAt = at + HEADER_BYTES;
    const valueAt = keyAt + raw.readUInt16BE(at + 26);
    const headersAt = valueAt + raw.readUInt32BE(at + 28);
    end = headersAt + raw.readUInt16BE(at + 32);
    const crc = crc32c(raw.subarray(at, at + 4), raw.subarray(at + 8, end));
    if (crc !== raw.readUInt32BE(at + 4)) throw new Error("a record fails its checksum");
    yield {
      offset: raw.readBigUInt64BE(at + 8),
      timestampNs: raw.readBigInt64BE(at + 16),
      priority: raw[at + 24],
      key: valueAt > keyAt || raw[at + 3] & EMPTY_KEY ? raw.subarray(keyAt, valueAt) : null,
      value: raw[at + 3] & TOMBSTONE ? null : raw.subarray(valueAt, headersAt),
      headers: decodeHeaders(raw.subarray(headersAt, end)),
    };
  }
}

function decodeHeaders(raw) {
  let at = 2;
  const next = () => {
    const size = raw.readUInt16BE(at), start = at + 2;
    at = size === 0xffff ? start : start + size;
    return size === 0xffff ? null : raw.subarray(start, at).toString();
  };
  const headers = {};
  while (at < raw.length) headers[next()] = next();
  for (const name of HOW_IT_WAS_PUBLISHED) delete headers[name];
  return headers;
}
