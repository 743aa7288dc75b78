"""The fault harness: programs that are run under bad circumstances, and what is left of them afterwards."""

import gc
import uuid

import pytest

from mpwds.loader.launching import forkserver
from tests.conftest import fork_server
from tests.loader.faults import processes


@pytest.fixture(autouse=True)
def _no_process_left(monkeypatch):
    """Every test ends with the processes that it started, those included that have another parent now."""
    token = uuid.uuid4().hex
    monkeypatch.setenv(processes.TOKEN, token)
    server = fork_server()
    yield
    if fork_server() != server:
        forkserver.let_go()
    gc.collect()
    processes.wait_until(lambda: not processes.with_token(token), "the test's processes to end")
