"""Names: the nearest known one to a mistyped one."""

from goqueue.names import nearest, suggestion


def test_a_mistyped_name_is_answered_with_the_nearest_one() -> None:
    assert nearest("retension", ["flush", "retention"]) == "retention"
    assert suggestion("retension", ["flush", "retention"]) == "did you mean retention?"


def test_a_name_that_is_like_no_other_is_answered_with_all() -> None:
    assert suggestion("xyz", ["flush", "retention"]) == "known are flush, retention"


def test_without_known_names_there_is_nothing_to_suggest() -> None:
    assert nearest("a", []) is None
    assert suggestion("a", []) == "there are none"
