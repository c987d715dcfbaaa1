"""What the tests of the cluster share."""

import pytest

from tests.cluster.mutations import ORIGINAL, Modules


@pytest.fixture
def modules() -> Modules:
    """The modules as they are; `test_mutations.py` passes others."""
    return ORIGINAL
