import pytest

from goqueue.errors import Conflict
from goqueue.service.pending import Pending, after, all_of, chained, when_all_are_done


def refused() -> Pending[int]:
    return Pending.failed(Conflict("no"))


def test_what_is_made_of_an_answer_is_there_when_the_answer_is() -> None:
    asked: Pending[int] = Pending()
    made = after(asked, lambda number: number + 1)
    assert not made.is_done

    asked.resolve(1)

    assert made.result() == 2
    assert after(Pending.of(2), lambda number: number + 1).result() == 3


@pytest.mark.parametrize("is_late", [False, True])
def test_an_answer_of_which_nothing_can_be_made_is_an_error(is_late: bool) -> None:
    asked: Pending[int] = Pending() if is_late else Pending.of(0)
    made = after(asked, lambda number: 1 // number)
    asked.resolve(0)

    with pytest.raises(ZeroDivisionError):
        made.result()


def test_a_refusal_goes_all_the_way() -> None:
    for made in (after(refused(), str), chained(refused(), Pending.of)):
        with pytest.raises(Conflict):
            made.result()


def test_all_are_done_when_the_last_one_is_whatever_came_of_them() -> None:
    first: Pending[int] = Pending()
    second: Pending[int] = Pending()
    done = when_all_are_done([Pending.of(0), first, refused(), second])

    first.fail(Conflict("no"))
    assert not done.is_done
    second.resolve(1)

    assert done.is_done
    assert done.result() is None


def test_none_at_all_are_done_at_once() -> None:
    nothing: list[Pending[int]] = []

    assert when_all_are_done(nothing).is_done
    assert all_of([]).is_done


def test_only_the_first_answer_counts_and_everybody_is_called_once() -> None:
    heard: list[int] = []
    asked: Pending[int] = Pending()
    asked.then(lambda done: heard.append(done.result()))

    asked.resolve(1)
    asked.resolve(2)
    asked.fail(Conflict("too late"))
    asked.then(lambda done: heard.append(done.result()))

    assert heard == [1, 1]
