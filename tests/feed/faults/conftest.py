"""Every test of the feed's faults leaves nothing behind: no process, descriptor, shared memory or file."""

import gc
import uuid

import pytest

from mpwds.loader.processes import forkserver
from tests.conftest import fork_server
from tests.loader.faults import processes


@pytest.fixture(autouse=True)
def _nothing_left(monkeypatch, nothing_left):
    token = uuid.uuid4().hex
    monkeypatch.setenv(processes.TOKEN, token)
    server = fork_server()
    yield
    if fork_server() != server:
        forkserver.let_go()
    gc.collect()
    processes.wait_until(lambda: not processes.with_token(token), "the test's processes to end")


@pytest.fixture(params=["shared memory", "bytes"])
def memory(request):
    """Options of a trainer on the server's machine."""
    return {"shared_memory": request.param == "shared memory"}
