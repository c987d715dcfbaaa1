"""What is decided goes into entries of limited size, whose indices are known from the start."""

import pytest

from goqueue.cluster.drafts import ENTRY_BYTES
from goqueue.cluster.messages import Carried, Done
from goqueue.cluster.records import DocumentKind, DocumentPut, FeatureLevelSet, decode_batch
from goqueue.errors import MetadataContradiction
from tests.cluster.history import formed, registration
from tests.cluster.mutations import ORIGINAL, Modules

ID = b"i" * 16


def document(size: int, name: str = "d") -> DocumentPut:
    return DocumentPut(DocumentKind.ACL, name, bytes(size))


def test_decisions_gather_while_an_entry_is_in_flight(modules: Modules) -> None:
    history = formed(modules)
    drafts = modules.drafts.Drafts(history.metadata)
    first = drafts.add([document(1)])
    entry = drafts.next_entry(ID)
    later = [drafts.add([document(2)]), drafts.add([document(3), document(4)])]

    assert (first, later) == (3, [4, 4])
    assert drafts.next_entry(ID) is None
    history.take(entry)
    drafts.applied(entry)
    following = drafts.next_entry(b"j" * 16)

    assert (following.index, following.previous_id) == (4, ID)
    assert decode_batch(following.batch) == [document(2), document(3), document(4)]


def test_a_decision_stays_in_one_entry_and_an_entry_is_not_too_large() -> None:
    drafts = ORIGINAL.drafts.Drafts(formed().metadata)

    indices = [drafts.add([document(ENTRY_BYTES // 3)]) for _ in range(4)]
    large = drafts.add([document(ENTRY_BYTES), document(ENTRY_BYTES)])

    assert indices == [3, 3, 4, 4]
    assert large == drafts.last_index == 5


def test_an_answer_waits_for_all_that_was_decided_before_it() -> None:
    history = formed()
    drafts = ORIGINAL.drafts.Drafts(history.metadata)
    done = Done(1, Carried())

    assert drafts.answer(done).is_done
    drafts.add([document(1)])
    waiting = drafts.answer(done)
    entry = drafts.next_entry(ID)
    drafts.add([document(2)])
    assert not waiting.is_done
    history.take(entry)
    drafts.applied(entry)

    assert waiting.result() == done
    assert drafts.size > 0


def test_a_node_registers_once_in_an_entry() -> None:
    """The index is the broker epoch, so two processes would have the same."""
    drafts = ORIGINAL.drafts.Drafts(formed().metadata)

    assert [drafts.add([registration(2, incarnation)]) for incarnation in "abc"] == [3, 4, 5]


def test_the_state_given_is_not_changed() -> None:
    history = formed()
    before = history.metadata.encode()
    drafts = ORIGINAL.drafts.Drafts(history.metadata)

    drafts.add([registration(2)])

    assert history.metadata.encode() == before
    assert drafts.state.broker(2) is not None


def test_a_contradiction_is_not_queued() -> None:
    drafts = ORIGINAL.drafts.Drafts(formed().metadata)

    with pytest.raises(MetadataContradiction):
        drafts.add([FeatureLevelSet(0)])

    assert drafts.next_entry(ID) is None
