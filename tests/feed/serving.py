"""Servers in processes of their own, and what the tests of the feed serve."""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import cloudpickle
import numpy as np

import mpwds
from tests.feed import run_server
from tests.feed.forked import ForkedProcess

ROOT = Path(__file__).parents[2]
LENGTH = 96

LONG = bool(os.environ.get("MPWDS_LONG"))
"""Whether tests of endurance run at full length: `make soak` says so."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def turned_away(url, because="no server is ready", **options):
    """The error of a trainer that no server welcomes.

    It tries with more and more patience until the error says why, however slow the machine is.
    """
    for patience_s in (0.5, 2, 8, 32, 128):
        try:
            mpwds.RemoteLoader(url, server_timeout=patience_s, **options).close()
        except mpwds.ServerLost as error:
            said = error
            if because in str(said):
                return said
        else:
            raise AssertionError("it was welcomed")
    raise AssertionError(f"expected {because!r}") from said


class ServerProcess:
    """A server in a process of its own, on a port that it gets again when it is started again.

    Its workers are forks of it, unless a test says otherwise. Those of servers in threads are not. ``within``
    is a command that runs it: ``["ip", "netns", "exec", "name"]``.
    """

    def __init__(self, dataset, url=None, within=(), **options):
        self._within = within
        self.url = url or f"tcp://127.0.0.1:{free_port()}"
        self._arguments = dataset, self.url, {"start_method": "fork", **options}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by __exit__
        self.process = None
        self.start()

    def start(self):
        if self.process is not None:
            self.process.stdout.close()
        pickled = cloudpickle.dumps(self._arguments)
        if not self._within:
            self.process = ForkedProcess(run_server.serve, pickled, self._log)
            return
        self.process = subprocess.Popen(
            [*self._within, sys.executable, "-m", "tests.feed.run_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
        )
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(pickled)

    def wait_until_ready(self):
        assert self.process.stdout.readline().decode().strip() == self.url, self.log
        return self

    def start_again(self):
        """Kills it if it runs, and waits until it is ready."""
        if self.process.poll() is None:
            self.kill()
        self.start()
        self.wait_until_ready()

    @property
    def pid(self):
        return self.process.pid

    @property
    def log(self):
        # The server writes where this descriptor stands, so it must not be moved.
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        """Ends it as an operator does; its exit status."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        status = self.process.wait(600)
        self.process.stdout.close()
        return status

    def __enter__(self):
        return self.wait_until_ready()

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.stop()
        self.process.stdout.close()
        self._log.close()


@contextlib.contextmanager
def served(dataset, url="tcp://127.0.0.1:0", **options):
    """A server in a thread of this process."""
    with mpwds.Server(dataset, url, **{"workers": 2, **options}) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


def numbers(length=LENGTH, batchsize=4):
    """Numbers in batches, with augmentation drawn at random, in an order that depends on the place."""
    return mpwds.DataPipeline(range(length), seed=7).shuffle(16).map(noisy).batched(batchsize)


def noisy(number):
    return {"number": number, "noise": np.random.random(3), "name": f"sample {number}"}


def large(length=LENGTH, batchsize=4):
    """As :func:`numbers`, in batches that do not fit into a message."""
    return mpwds.DataPipeline(range(length), seed=7).shuffle(16).map(image).batched(batchsize)


def image(number):
    return np.full((64, 256), number, np.float32) + np.random.random((64, 256)).astype(np.float32), number


def bits(batch):
    """A digest of a batch: of types, shapes and each bit."""
    digest = hashlib.blake2b(digest_size=12)
    add_to(digest, batch)
    return digest.hexdigest()


def add_to(digest, item):
    if isinstance(item, (dict, list, tuple)):
        digest.update(f"{list(item) if isinstance(item, dict) else len(item)}".encode())
        for part in item.values() if isinstance(item, dict) else item:
            add_to(digest, part)
    elif hasattr(item, "dtype"):
        array = np.asarray(item)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    else:
        digest.update(repr(item).encode())


def locally(dataset, workers, epochs=1, **options):
    """What a ``MultiLoader`` with as many workers delivers in each epoch."""
    options = {"output": "numpy", "start_method": "fork", **options}
    with mpwds.MultiLoader(dataset, workers=workers, **options) as loader:
        return [delivered(loader) for _ in range(epochs)]


def delivered(loader, happen=None):
    """An epoch; ``happen(number)`` is called behind each batch, with the number of those delivered."""
    got = []
    for batch in loader:
        got.append(bits(batch))
        del batch  # a block that is held would hide one that is lost
        if happen is not None:
            happen(len(got))
    return got
