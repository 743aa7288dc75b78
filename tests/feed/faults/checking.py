"""Datasets to whose workers something happens, and what an undisturbed loader delivers, bit for bit."""

import contextlib
import os
import re
import signal
import time
import warnings

import numpy as np

import mpwds
from mpwds.feed.status_client import StatusClient
from mpwds.loader.worker import elements
from tests.feed.serving import locally
from tests.loader.faults.processes import wait_until

BATCHES = 60
ROW = 24_000
"""Numbers in a row: four rows take more memory than a message may hold."""


class Rows:
    """Makes an array of a number, with noise.

    Args:
        size: Numbers in it.
        pause_s: How long each takes.
        deaths: How often each of these numbers kills its worker: ``{number: times}``.
        folder: Counts the deaths, in files.
    """

    def __init__(self, size=ROW, pause_s=0.0, deaths=None, folder=""):
        self.size, self.pause_s, self.deaths, self.folder = size, pause_s, deaths or {}, str(folder)

    def __call__(self, number):
        for death in range(self.deaths.get(number, 0)):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(f"{self.folder}/{number}-{death}", os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        if self.pause_s:
            time.sleep(self.pause_s)
        return np.random.random(self.size).astype(np.float32) + number, number

    def __setstate__(self, state):
        # Workers send the state of their stream often, so that they are continued in the middle of an epoch.
        elements.STATE_EVERY_S, elements.STATE_SHARE = 0.002, float("inf")
        self.__dict__.update(state)


def rows(batches=BATCHES, batchsize=4, **options):
    """Batches of :class:`Rows`, shuffled."""
    make = Rows(**options)
    return mpwds.DataPipeline(range(batches * batchsize), seed=3).shuffle(16).map(make).batched(batchsize)


def undisturbed(workers, dataset=None, epochs=1, **options):
    """What a MultiLoader delivers in each epoch."""
    return locally(rows() if dataset is None else dataset, workers, epochs, **options)


def at(moments):
    """Calls ``moments[number]`` behind batch ``number``."""
    return lambda number: moments.get(number, lambda: None)()


def status(server):
    with StatusClient([server.url], timeout=120) as inspector:
        return inspector.status()[0]


def assigned(figures):
    """The workers of a server that trainers have."""
    return [worker for worker in figures["workers"] if worker["state"] != "free"]


def kill_worker(server, number=0):
    """Kills a worker of a server, unless it is dead already."""
    workers = status(server)["workers"]
    if number < len(workers) and workers[number]["pid"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(workers[number]["pid"], signal.SIGKILL)


def wait_for_status(server, holds, what):
    wait_until(lambda: holds(status(server)), what)


@contextlib.contextmanager
def warned():
    """The texts of the warnings inside."""
    texts = []
    with warnings.catch_warnings(record=True) as caught:
        for category in (RuntimeWarning, UserWarning):
            warnings.simplefilter("always", category)
        yield texts
    texts += [str(warning.message) for warning in caught]


def losses(texts, url):
    """How often warnings say that a server is lost. They say as often that it is back, and nothing else."""
    server = re.escape(f"the server {url} is ")
    texts = [text for text in texts if not text.startswith("still waiting for ")]
    lost, back = (
        [text for text in texts if re.fullmatch(server + rest, text)]
        for rest in (r"lost \(.*\): waiting for it to come back.*", r"back after .* s, and its workers go on")
    )
    assert len(lost) == len(back) == len(texts) / 2, texts
    return len(lost)
