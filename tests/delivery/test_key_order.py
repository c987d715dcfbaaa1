"""Order per key, against random members."""

from random import Random

import pytest
from pyroaring import BitMap64

from goqueue.delivery.key_order import KeyOrder


def choose(keys: KeyOrder, member: str, *candidates: tuple[int, bytes | None]) -> list[int]:
    chosen = keys.choose(candidates, member, now_ns=5)
    assert chosen.allowed | chosen.parked == BitMap64([offset for offset, _ in candidates])
    assert not chosen.allowed & chosen.parked
    return list(chosen.allowed)


def test_messages_of_one_key_that_go_out_together_go_to_one_member() -> None:
    keys = KeyOrder()

    assert choose(keys, "a", (0, b"k"), (1, b"k"), (2, b"l")) == [0, 1, 2]
    assert choose(keys, "b", (3, b"k"), (4, b"m")) == [4]
    assert choose(keys, "a", (5, b"k")) == []
    assert list(keys.parked) == [3, 5]
    assert keys.lowest_parked() == 3


def test_messages_without_a_key_are_never_held_back() -> None:
    keys = KeyOrder()

    assert choose(keys, "a", (0, None), (1, None)) == [0, 1]
    assert choose(keys, "b", (2, None)) == [2]
    assert not keys.settled([0, 1, 2])


def test_an_empty_key_is_a_key() -> None:
    keys = KeyOrder()

    assert choose(keys, "a", (0, b"")) == [0]
    assert choose(keys, "b", (1, b"")) == []


def test_what_is_parked_is_free_when_all_that_went_out_is_settled() -> None:
    keys = KeyOrder()
    choose(keys, "a", (0, b"k"), (1, b"k"))
    choose(keys, "b", (2, b"k"), (3, b"k"))

    assert not keys.settled([0])
    assert list(keys.settled([1])) == [2, 3]
    assert choose(keys, "b", (2, b"k")) == [2]


def test_a_message_that_failed_goes_before_later_ones() -> None:
    keys = KeyOrder()
    choose(keys, "a", (0, b"k"), (1, b"k"))
    keys.settled([1])
    keys.returned([0])

    assert choose(keys, "b", (2, b"k")) == []
    assert choose(keys, "b", (0, b"k"), (3, b"k")) == [0]
    assert list(keys.settled([0])) == [2, 3]


def test_a_later_failure_that_comes_back_first_waits_for_the_earlier_one() -> None:
    keys = KeyOrder()
    choose(keys, "a", (0, b"k"), (1, b"k"))
    keys.returned([0, 1])

    assert choose(keys, "a", (1, b"k")) == []
    assert choose(keys, "b", (0, b"k")) == [0]
    assert list(keys.settled([0])) == [1]
    assert choose(keys, "a", (1, b"k")) == [1]
    assert not keys.settled([1])


def test_who_holds_a_key_back_can_be_told() -> None:
    keys = KeyOrder()
    choose(keys, "a", (4, b"k"), (7, b"free"))
    choose(keys, "b", (5, b"k"), (6, b"k"))

    (hold,) = keys.blocking()

    assert (hold.key, hold.member, hold.since_ns, hold.first, len(hold.parked)) == (b"k", "a", 5, 4, 2)


def test_what_is_done_in_some_other_way_holds_nothing_back() -> None:
    keys = KeyOrder()
    choose(keys, "a", (0, b"k"))
    choose(keys, "b", (1, b"k"), (5, b"k"))

    freed = keys.drop(BitMap64([0, 1]))

    assert list(freed) == [5]
    assert not keys.parked


def test_a_restart_brings_back_who_has_what() -> None:
    keys = KeyOrder()
    keys.resume(0, b"k", "a", in_flight=True, now_ns=1)
    keys.resume(1, b"l", "", in_flight=False, now_ns=1)

    assert choose(keys, "b", (2, b"k"), (3, b"l"), (4, b"m")) == [4]
    assert choose(keys, "b", (1, b"l")) == [1]
    assert list(keys.settled([1])) == [3]


@pytest.mark.parametrize("seed", range(60))
def test_every_key_is_with_one_member_and_in_order_and_nothing_is_stuck(seed: int) -> None:
    rng = Random(seed)
    count, members = 60, ("a", "b", "c")
    key_of = [rng.choice((b"x", b"y", b"z", b"w")) for _ in range(count)]
    keys = KeyOrder()
    ready, waiting = set(range(count)), set()
    out: dict[int, str] = {}
    begun: dict[bytes, list[int]] = {}
    done: list[int] = []

    for step in range(2_000):
        action = rng.choice(("poll", "ack", "nack", "return", "retry"))
        if action == "poll":
            size = rng.randrange(1, 6)
            candidates = sorted(ready)[:size]
            ready -= set(candidates)
            member = rng.choice(members)
            for offset in choose(keys, member, *((offset, key_of[offset]) for offset in candidates)):
                owners = {owner for other, owner in out.items() if key_of[other] == key_of[offset]}
                assert owners <= {member}
                out[offset] = member
                first_time = begun.setdefault(key_of[offset], [])
                if offset not in first_time:
                    assert not first_time or first_time[-1] < offset
                    first_time.append(offset)
                first_of_key = min(one for one in range(count) if key_of[one] == key_of[offset] and one not in done)
                assert first_of_key == offset or first_of_key in out
        elif action == "ack" and out:
            offset = rng.choice(sorted(out))
            del out[offset]
            ready |= set(keys.settled([offset]))
            done.append(offset)
        elif action == "nack" and out and step < 1_000:
            offset = rng.choice(sorted(out))
            del out[offset]
            waiting.add(offset)
            ready |= set(keys.returned([offset]))
        elif action == "return" and out and step < 1_000:
            offset = rng.choice(sorted(out))
            del out[offset]
            ready |= {offset} | set(keys.returned([offset]))
        elif action == "retry" and waiting:
            offset = rng.choice(sorted(waiting))
            waiting.discard(offset)
            ready.add(offset)
        assert len(ready) + len(waiting) + len(out) + len(done) + len(keys.parked) == count

    assert sorted(done) == list(range(count))
    assert not keys._holds
    assert not keys._key_of
