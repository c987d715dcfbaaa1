"""What a member of a group that prints does to messages, with a group and a standard output made by hand."""

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any

import pytest

from goqueue import Message, TopicPartition
from goqueue.cli.membership import Ack, take
from goqueue.errors import ReceiptExpired
from goqueue.record import kernel
from goqueue.wire.reports import Settlement


def made(count: int) -> list[Message]:
    records = kernel.encode([b"%d" % number for number in range(count)])
    kernel.stamp(records, first_offset=0, timestamp=1_704_067_200_000_000_000)
    return list(kernel.decode(records, TopicPartition("orders", 0), Message))


class Group:
    """Hands out batches, is interrupted where there are none left, and writes down what it is told."""

    def __init__(self, *batches: list[Message]) -> None:
        self.batches = list(batches)
        self.told: list[tuple[str, list[int]]] = []
        self.asked: list[int] = []
        self.ack_error: Exception | None = None

    def poll(self, count: int, timeout: str) -> list[Message]:
        self.asked.append(count)
        if not self.batches:
            raise KeyboardInterrupt
        return self.batches.pop(0)

    def ack(self, messages: Sequence[Message]) -> None:
        self.told.append(("ack", [message.offset for message in messages]))
        if self.ack_error:
            raise self.ack_error

    def settle_soon(self, messages: Sequence[Message], settlement: Settlement) -> None:
        self.told.append((settlement.action, [message.offset for message in messages]))

    def commit(self) -> None:
        self.told.append(("commit", []))


class Disk(io.RawIOBase):
    """Takes so many bytes and then no more."""

    def __init__(self, room: int = 1_000) -> None:
        super().__init__()
        self.room = room
        self.content = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if len(self.content) + len(data) > self.room:
            raise OSError(28, "No space left on device")
        self.content += bytes(data)
        return len(data)


def line(message: Message) -> bytes:
    return message.value + b"\n"


def interrupted_at(offset: int) -> Callable[[Message], bytes]:
    def render(message: Message) -> bytes:
        if message.offset == offset:
            raise KeyboardInterrupt
        return line(message)

    return render


def run(
    group: Group,
    disk: Disk | None = None,
    *,
    render: Callable[[Message], bytes] = line,
    ack: Ack = Ack.EACH,
    limit: int | None = None,
    follow: bool = False,
) -> bytes:
    disk = disk or Disk()
    output = io.TextIOWrapper(io.BufferedWriter(disk))
    try:
        with redirect_stdout(output):
            take(group, render, ack=ack, limit=limit, follow=follow)  # type: ignore[arg-type]
    finally:
        disk.room = 1_000_000  # what is left in the buffer has to go somewhere
    return disk.content


def test_printed_messages_are_acknowledged_batch_by_batch() -> None:
    first, second = made(5)[:3], made(5)[3:]
    group = Group(first, second, [])

    assert run(group) == b"0\n1\n2\n3\n4\n"
    assert group.told == [("ack", [0, 1, 2]), ("ack", [3, 4])]


def test_a_follower_goes_on_where_nothing_came() -> None:
    group = Group([], made(1), [])

    with pytest.raises(KeyboardInterrupt):
        run(group, follow=True)

    assert ("ack", [0]) in group.told
    assert len(group.asked) == 4


def test_no_more_is_asked_for_than_is_left() -> None:
    group = Group(made(3), made(5)[3:])

    run(group, limit=5)

    assert group.asked == [5, 2]


def test_a_full_disk_acknowledges_nothing_that_was_in_the_buffer() -> None:
    group = Group(made(3))

    with pytest.raises(OSError, match="No space left"):
        run(group, Disk(room=2))

    assert group.told == [("release", [0, 1, 2]), ("ack", [])]


def test_an_interrupt_keeps_what_was_printed_and_gives_back_the_rest() -> None:
    group, disk = Group(made(5)), Disk()

    with pytest.raises(KeyboardInterrupt):
        run(group, disk, render=interrupted_at(2))

    assert disk.content == b"0\n1\n"
    assert group.told == [("release", [2, 3, 4]), ("ack", [0, 1])]


def test_a_look_gives_all_back_at_the_end_and_not_before() -> None:
    group = Group(made(4)[:2], made(4)[2:], [])

    assert run(group, ack=Ack.NONE) == b"0\n1\n2\n3\n"
    assert group.told == [("release", [0, 1, 2, 3])]


def test_a_look_that_is_interrupted_gives_all_back_too() -> None:
    group = Group(made(3))

    with pytest.raises(KeyboardInterrupt):
        run(group, ack=Ack.NONE, render=interrupted_at(1))

    assert group.told == [("release", [0, 1, 2])]


def test_a_position_is_committed_only_behind_what_was_printed() -> None:
    group = Group(made(2), made(2))

    with pytest.raises(OSError, match="No space left"):
        run(group, Disk(room=4), ack=Ack.AUTO)

    assert group.told == [("commit", [])]


def test_a_lease_that_was_lost_is_told_and_does_not_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    group = Group(made(2)[:1], made(2)[1:], [])
    group.ack_error = ReceiptExpired("orders", 0, 0)

    assert run(group) == b"0\n1\n"
    assert "some printed messages are not acknowledged" in capsys.readouterr().err
