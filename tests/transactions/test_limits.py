"""The bounds of transactions."""

from dataclasses import fields

import pytest

from goqueue.errors import InvalidConfig
from goqueue.transactions.limits import TransactionLimits


@pytest.mark.parametrize("name", [field.name for field in fields(TransactionLimits)])
def test_every_limit_is_positive(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} = 0: must be positive"):
        TransactionLimits(**{name: 0})
