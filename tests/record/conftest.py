from types import ModuleType

import pytest

from tests.record.batches import KERNELS


@pytest.fixture(params=KERNELS, ids=lambda kernel: kernel.IMPLEMENTATION, scope="session")
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    """The kernel behind its facade: once in Python and, where it is built, once in C."""
    chosen: ModuleType = request.param
    return chosen
