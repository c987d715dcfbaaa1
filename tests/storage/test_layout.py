"""The names of the files of a log: each is known, or foreign."""

import pytest

from goqueue.errors import ForeignFile
from goqueue.storage.file import Entry
from goqueue.storage.layout import TRANSACTIONS, sort_out
from tests.storage.logs import DIRECTORY


@pytest.mark.parametrize("name", [f"{0:020d}.log.new", f"{0:020d}.txnindex.old", "0.txnindex", "transactions.old"])
def test_other_names_are_still_foreign(name: str) -> None:
    with pytest.raises(ForeignFile):
        sort_out(DIRECTORY, [Entry(name, 0, False)])


def test_a_listing_says_which_segments_have_an_index() -> None:
    names = [f"{0:020d}.log", f"{0:020d}.txnindex", f"{9:020d}.log", f"{5:020d}.txnindex", "transactions"]

    listing = sort_out("/d", [Entry(name, 0, False) for name in names])

    assert listing.txn_indexes == {0}
    assert TRANSACTIONS in listing.small_files
    assert listing.leftovers == [f"/d/{5:020d}.txnindex"]
