import re
from collections.abc import Iterator
from pathlib import Path

from goqueue.transactions.states import TRANSITIONS, TransactionState, TransactionTrigger

DOCS = Path(__file__).parent.parent.parent / "docs" / "internals" / "transactions.md"


def diagram() -> str:
    """The table, as Mermaid draws it."""

    def lines() -> Iterator[str]:
        yield "stateDiagram-v2"
        yield "    [*] --> Empty"
        for state, turns in TRANSITIONS.items():
            for turn, target in turns.items():
                yield f"    {state} --> {target}: {turn}"

    return "\n".join(lines())


def test_the_diagram_in_the_docs_is_the_table() -> None:
    drawn = re.search(r"```mermaid\n(.*?)\n```", DOCS.read_text(), re.DOTALL)

    assert drawn
    assert drawn[1] == diagram()


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    reached = {TransactionState.EMPTY} | {target for turns in TRANSITIONS.values() for target in turns.values()}

    assert set(TRANSITIONS) == set(TransactionState) == reached
    assert {turn for turns in TRANSITIONS.values() for turn in turns} == set(TransactionTrigger)


def test_what_is_prepared_to_abort_can_only_abort_and_what_is_dead_stays_dead() -> None:
    assert set(TRANSITIONS[TransactionState.PREPARE_ABORT].values()) == {TransactionState.COMPLETE_ABORT}
    assert TRANSITIONS[TransactionState.DEAD] == {}
