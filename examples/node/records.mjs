// Records: messages as they stand in a payload, docs/reference/protocol.md#records.

import { crc32c } from "./hashes.mjs";

const HEADER_BYTES = 34, HAS_HEADERS = 0x02, TOMBSTONE = 0x04, NORMAL = 2;

function u16(number) {
  return Buffer.of(number >> 8, number & 0xff);
}

/** A message as a producer sends it: offset, timestamp and crc are zero. A value of null is a tombstone. */
export function encodeRecord({ key = "", value, headers = {}, priority = NORMAL }) {
  const [rawKey, rawValue] = [Buffer.from(key), Buffer.from(value ?? "")];
  const texts = Object.entries(headers).flat().map((text) => Buffer.from(text));
  const pairs = texts.flatMap((text) => [u16(text.length), text]);
  const rawHeaders = Buffer.concat(texts.length ? [u16(texts.length / 2), ...pairs] : []);
  const head = Buffer.alloc(HEADER_BYTES);
  head.write("GQ\x01", "latin1");
  head[3] = (texts.length ? HAS_HEADERS : 0) | (value === null ? TOMBSTONE : 0);
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
      key: raw.subarray(keyAt, valueAt),
      value: raw[at + 3] & TOMBSTONE ? null : raw.subarray(valueAt, headersAt),
      headers: decodeHeaders(raw.subarray(headersAt, end)),
    };
  }
}

function decodeHeaders(raw) {
  const texts = [];
  for (let at = 2; at < raw.length; at += 2 + raw.readUInt16BE(at)) {
    texts.push(raw.subarray(at + 2, at + 2 + raw.readUInt16BE(at)).toString());
  }
  const headers = {};
  for (let at = 0; at < texts.length; at += 2) headers[texts[at]] = texts[at + 1];
  delete headers["gq-producer"];
  return headers;
}
