"""Fixtures of the feed's tests."""

import pytest
import zmq

from mpwds.feed.status_client import StatusClient
from mpwds.loader.launching import forkserver
from tests.feed import forked


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A server may take its time to answer, where a test says nothing else, and no warning tells of it."""
    monkeypatch.setitem(StatusClient.__init__.__kwdefaults__, "timeout", 120)
    for module in ("connections", "remote_worker"):
        monkeypatch.setattr(f"mpwds.feed.client.{module}.SAY_EVERY_S", 600)


@pytest.fixture(scope="session", autouse=True)
def process_that_is_forked():
    """Servers in processes of their own are forks of it."""
    forked.prepare()


@pytest.fixture(autouse=True)
def one_fork_server():
    """Workers of servers in threads are forks of this one, so that no test waits for a new one."""
    forkserver.ready(["tests.feed.serving"])


@pytest.fixture(scope="session", autouse=True)
def pyzmqs_own_thread():
    """Starts the thread that pyzmq keeps once it has sent memory of Python's, with its descriptors."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind("inproc://once")
        other.connect("inproc://once")
        one.send(bytearray(1 << 20), copy=False)
        other.recv()
