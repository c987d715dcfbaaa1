"""What members without leases were given: done when they poll on or leave, ready again when they are lost."""

from pyroaring import BitMap64

from goqueue.delivery.handed import HandedOver


def test_a_poll_says_that_what_came_before_it_is_processed() -> None:
    handed = HandedOver()
    handed.add("anna", BitMap64([1, 2]), poll=1)
    handed.add("anna", BitMap64([3]), poll=2)

    assert handed.processed("anna", poll=2, is_leaving=False) == BitMap64([1, 2])
    assert handed.processed("anna", poll=3, is_leaving=False) == BitMap64([1, 2, 3])


def test_a_member_that_leaves_has_processed_everything() -> None:
    handed = HandedOver()
    handed.add("anna", BitMap64([1, 2]), poll=1)

    assert handed.processed("anna", poll=1, is_leaving=False) == BitMap64()
    assert handed.processed("anna", poll=1, is_leaving=True) == BitMap64([1, 2])


def test_what_is_done_is_with_no_member() -> None:
    handed = HandedOver()
    handed.add("anna", BitMap64([1, 2]), poll=1)
    handed.add("ben", BitMap64([3]), poll=1)

    handed.discard(BitMap64([2, 3]))

    assert handed.remove("anna") == BitMap64([1])
    assert handed.remove("ben") == BitMap64()


def test_a_member_that_is_removed_has_nothing_and_keeps_the_others() -> None:
    handed = HandedOver()
    handed.add("anna", BitMap64([1]), poll=1)
    handed.add("ben", BitMap64([2]), poll=1)

    assert handed.remove("anna") == BitMap64([1])
    assert handed.remove("anna") == BitMap64()
    assert handed.processed("ben", poll=2, is_leaving=False) == BitMap64([2])

    handed.clear()
    assert handed.remove("ben") == BitMap64()


def test_a_repeated_poll_finds_what_the_last_one_returned() -> None:
    handed = HandedOver()
    handed.add("anna", BitMap64([1, 2]), poll=1, number=7)
    handed.add("anna", BitMap64([3, 4]), poll=2, number=8)
    handed.discard(BitMap64([4]))

    assert handed.polled("anna", 8) == BitMap64([3])
    assert not handed.polled("anna", 7)
    assert not handed.polled("ben", 8)

    handed.forget_poll("anna")
    handed.forget_poll("ben")
    assert not handed.polled("anna", 8)
    assert handed.remove("anna") == BitMap64([1, 2, 3])


def test_a_repeated_poll_may_return_more() -> None:
    handed = HandedOver()
    handed.add("anna", BitMap64([1]), poll=1, number=7)
    handed.add("anna", BitMap64([2]), poll=1, number=7)

    assert handed.polled("anna", 7) == BitMap64([1, 2])
    assert not handed.processed("anna", poll=1, is_leaving=False)
