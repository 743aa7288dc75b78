"""Datasets to whose workers something happens, and the loaders that iterate them."""

import contextlib
import os
import signal
import time

import numpy as np

import mpwds

LENGTH = 12
UNLUCKY = 7
LARGE = 10_000

CHEAP = ["fork", "DataLoader", "DataLoader by fork"]
DEAR = ["spawn", "forkserver", "DataLoader by spawn"]
KINDS = CHEAP + DEAR
CONTEXTS = {"DataLoader": None, "DataLoader by fork": "fork", "DataLoader by spawn": "spawn"}


def be_killed_by(number):
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)  # pytest has a handler for some
    os.kill(os.getpid(), number)
    time.sleep(600)


def fail():
    raise LookupError("a misfortune")


def run_out_of_memory():
    return bytearray(1 << 60)


FAULTS = {
    "SIGKILL": lambda: be_killed_by(signal.SIGKILL),
    "SIGSEGV": lambda: be_killed_by(signal.SIGSEGV),
    "SIGBUS": lambda: be_killed_by(signal.SIGBUS),
    "os._exit": lambda: os._exit(3),
    "sys.exit": lambda: exit(3),
    "exception": fail,
    "no memory": run_out_of_memory,
}
EXITCODES = {"SIGKILL": -9, "SIGSEGV": -11, "SIGBUS": -7, "os._exit": 3, "sys.exit": 3}
EXCEPTIONS = {"exception": LookupError, "no memory": MemoryError}
STEPS = [
    "unpickling",
    "before the first batch",
    "between batches",
    "writing a block",
    "writing a small batch",
]


class Unfinished:
    """An array that is not made yet: the misfortune comes while it is written."""

    def __init__(self, number, size, happen):
        self.dtype, self.shape = np.dtype(np.int64), (size,)
        self.number, self.happen = number, happen

    def write_into(self, out):
        out[: len(out) // 2] = self.number
        self.happen()
        out[len(out) // 2 :] = self.number


class Numbers:
    """Map-style: arrays that are full of their index.

    Args:
        size: Elements of each.
        step: The step in a worker's life at which something happens, once.
        fault: What happens.
        mark: A file that will say that it has happened.
    """

    def __init__(self, size=1, step="", fault="", mark=""):
        self.size, self.step, self.fault, self.mark = size, step, fault, str(mark)

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        if index == 1:
            self.happen("before the first batch")
        if index == UNLUCKY:
            self.happen("between batches")
            if self.step in ("writing a block", "writing a small batch"):
                size = LARGE if self.step == "writing a block" else 1
                return Unfinished(index, size, lambda: self.happen(self.step))
        return np.full(self.size, index)

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.happen("unpickling")

    def happen(self, step):
        if step == self.step:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
                FAULTS[self.fault]()


def endless(size):
    """Arrays without end."""

    def generate():
        while True:
            yield np.zeros(size)

    return generate


def as_it_is(item):
    return item


def loader_of(kind, dataset, **options):
    """A loader with two workers that delivers what the dataset holds, in order."""
    if kind not in CONTEXTS:
        return mpwds.MultiLoader(dataset, workers=2, start_method=kind, output="numpy", **options)
    timeout = options.pop("timeout", 0)
    return mpwds.DataLoader(
        dataset,
        batch_size=None,
        num_workers=2,
        collate_fn=as_it_is,
        multiprocessing_context=CONTEXTS[kind],
        timeout=timeout,
        **options,
    )


def pids_of(loader, iterator):
    return iterator.worker_pids if isinstance(loader, mpwds.DataLoader) else loader.worker_pids


def numbers_in(batches):
    """The numbers that arrive, each array whole."""
    for array in batches:
        assert (array == array[0]).all()
        yield int(array[0])
