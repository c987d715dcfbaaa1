"""The client in JavaScript, which was written from docs/reference/protocol.md alone, works with the broker."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from goqueue import Client
from goqueue.record import kernel
from goqueue.testing import EmbeddedBroker
from goqueue.wire.partitioning import partition_of_key

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "node"
TIMEOUT_S = 60
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(http=False) as running:
        yield running


@pytest.fixture(scope="module")
def worked(broker: EmbeddedBroker) -> Any:
    """What examples/node/work.mjs says that it did."""
    return json.loads(node(str(EXAMPLE / "work.mjs"), broker.address))


def node(*arguments: str) -> str:
    assert NODE
    done = subprocess.run(
        [NODE, *arguments], check=False, cwd=EXAMPLE, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_takes_no_more_than_150_lines() -> None:
    assert len((EXAMPLE / "goqueue.mjs").read_text().splitlines()) <= 150


def test_it_gets_every_message_that_it_published_and_acknowledges_it(worked: Any) -> None:
    assert sorted(one["number"] for one in worked["received"]) == list(range(20))
    assert {(one["city"], one["source"]) for one in worked["received"]} == {("Zürich", "node")}
    assert worked["lag"] == 0


def test_a_batch_that_it_sends_again_is_recognized(worked: Any) -> None:
    offsets = [one["first_offset"] for one in worked["stored"]]

    assert worked["duplicates"] == [{"first_offset": offset, "duplicate": True} for offset in offsets]


def test_a_second_ack_is_refused_by_its_code(worked: Any) -> None:
    assert worked["refused"] == "RECEIPT_HANDLE_UNKNOWN"


def test_its_messages_are_those_that_a_python_client_reads(broker: EmbeddedBroker, worked: Any) -> None:
    with Client(broker.address) as gq:
        found = list(gq.read("from-node"))

    assert len(found) == len(worked["received"])
    for message in found:
        number = message.json()["number"]
        assert message.key == f"order-{number % 7}".encode()
        assert message.partition == partition_of_key(message.key, 6)
        assert message.priority == number % 5
        assert message.headers == {"source": "node"}


def test_its_msgpack_and_hashes_are_ours() -> None:
    values = [
        None,
        True,
        127,
        128,
        65_536,
        -1,
        -33,
        2**53 - 1,
        "x" * 31,
        "x" * 32,
        "x" * 70_000,
        [1] * 17,
        {"a": ["b"]},
    ]
    script = """
        import { decode, encode } from "./msgpack.mjs";
        import { crc32c, murmur2, murmur3 } from "./hashes.mjs";
        import { decodeRecords, encodeRecord } from "./records.mjs";
        const values = JSON.parse(process.argv[1]), hashes = [crc32c, murmur3, murmur2];
        const big = decode(Buffer.from("cf0123456789abcdef", "hex"));
        console.log(JSON.stringify({
          same: JSON.stringify(decode(encode(values))) === JSON.stringify(values),
          values: encode(values).toString("hex"),
          big: encode(big).toString("hex"),
          hashes: ["", "a", "order-7", "Zürich"].map((text) => hashes.map((hash) => hash(Buffer.from(text)))),
          tombstone: encodeRecord({ key: "order-7", value: null }).toString("hex"),
          keys: [null, "", "k"].map((key) => encodeRecord({ key, value: "v", headers: { a: null, b: "" } })),
          decoded: [...decodeRecords(Buffer.from(process.argv[2], "hex"))].map(({ key, headers }) => [key, headers]),
        }));
    """

    keyed = kernel.encode([b"v"] * 3, keys=[None, b"", b"k"], headers=[{"a": None, "b": ""}] * 3)
    stored = bytearray(keyed)
    kernel.stamp(stored, first_offset=0, timestamp=1)

    said = json.loads(node("--input-type=module", "--eval", script, json.dumps(values), stored.hex()))

    assert said["same"]
    assert msgspec.msgpack.decode(bytes.fromhex(said["values"])) == values
    assert said["big"] == "cf0123456789abcdef"
    assert said["hashes"] == [
        [
            kernel.crc32c(text.encode()),
            partition_of_key(text.encode(), 2**32),
            partition_of_key(text.encode(), 2**32, "murmur2"),
        ]
        for text in ("", "a", "order-7", "Zürich")
    ]
    assert b"".join(bytes(one["data"]) for one in said["keys"]) == keyed
    assert [key and bytes(key["data"]) for key, _ in said["decoded"]] == [None, b"", b"k"]
    assert [headers for _, headers in said["decoded"]] == [{"a": None, "b": ""}] * 3
    assert said["tombstone"] == kernel.encode([None], keys=[b"order-7"]).hex()
