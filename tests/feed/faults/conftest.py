"""Every test of the feed's faults leaves nothing behind: no process, descriptor, shared memory or file."""

import pytest

from tests.loader.faults.conftest import _no_process_left  # noqa: F401  # every test here uses it


@pytest.fixture(autouse=True)
def _nothing_left(nothing_left):
    """Asks for this check in every test of the folder."""


@pytest.fixture(params=["shared memory", "bytes"])
def memory(request):
    """Options of a trainer on the server's machine."""
    return {"shared_memory": request.param == "shared memory"}
