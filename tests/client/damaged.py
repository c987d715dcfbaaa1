"""Harm for tests: a flipped bit in the record of one message, and a record that only claims to be compressed."""

from pathlib import Path

from goqueue import Client
from goqueue.record import kernel
from goqueue.record.header import Flags
from goqueue.wire import verbs
from goqueue.wire.verbs import Verb

NOT_COMPRESSED = b"\x28\xb5\x2f\xfd but no zstd frame"


def flip(data: str | Path, topic: str, value: bytes, *, partition: int = 0) -> None:
    """Flip a bit of the only record that holds the value, in the files of a broker that may be running."""
    for path in Path(data, "topics", topic, str(partition), "log").glob("*.log"):
        content = path.read_bytes()
        if value in content:
            with path.open("r+b") as file:
                at = content.index(value)
                file.seek(at)
                file.write(bytes([content[at] ^ 0x10]))
            return
    raise AssertionError(f"{value!r} is not stored")


def publish_raw(gq: Client, topic: str, values: list[bytes], flags: list[int], *, partition: int = 0) -> None:
    """Store records as they are, over the native protocol."""
    records = bytes(kernel.encode(values, flags=flags))

    async def publish() -> None:
        session = await gq._client._connections.leader(topic, partition)
        await session.ask_frame(Verb.PUBLISH, verbs.PublishRequest(topic, partition), records)

    gq._loop.run(publish())


def publish_with_broken_value(gq: Client, topic: str, *, good: int, at: int) -> None:
    """A batch of that many good messages, `value-0` and so on, and one that cannot be decompressed among them."""
    values = [b"value-%d" % number for number in range(good)]
    values.insert(at, NOT_COMPRESSED)
    flags = [0] * good
    flags.insert(at, Flags.COMPRESSED)
    publish_raw(gq, topic, values, flags)
