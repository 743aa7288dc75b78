"""Prepares a worker process: signals, memory, its place among the workers, torch."""

from __future__ import annotations

import ctypes
import os
import signal
from types import ModuleType
from typing import Any

from mpwds.imports import after_import
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.worker.status import STACK_SIGNAL

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_NBYTES = 32 << 20
"""The most that glibc takes; what is larger is mapped and unmapped each time."""
_TRIM_THRESHOLD_NBYTES = 512 << 20

_USERS_CHOICE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
_WORKER_INFO = "torch.utils.data._utils.worker"


def leave_trainers_signals() -> None:
    """Ignores Ctrl-C, which the trainer handles, and drops the handlers that a fork inherits from it."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, STACK_SIGNAL})


def keep_freed_memory() -> bool:
    """Makes glibc keep up to 512 MB of freed memory at the end of the heap, where it would keep about 1 MB.

    A worker frees a batch's samples together and needs as much again for the next batch. If the memory
    goes back to the system in between, every page of it is cleared and mapped anew: decoding and stacking
    batches of 64 JPEG images of 224x224 in float32 then took 1.24 ms of processor time an image, and 1.03
    with this. What a worker needs at its peak stays as it is; between batches it has less to give back.

    Returns:
        Whether it was done. It is not where the user has configured ``malloc`` (``GLIBC_TUNABLES``,
        ``MALLOC_TRIM_THRESHOLD_`` and the like), or where the C library is not glibc.
    """
    if any(name in os.environ for name in _USERS_CHOICE):
        return False
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Setting one of them ends glibc's own adjustment of both.
    mapped = mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_NBYTES)
    trimmed = mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_NBYTES)
    return bool(mapped and trimmed)


def tell_dataset_its_place(index: int, setup: WorkerSetup) -> None:
    """Sets the variables in which datasets look for their place."""
    os.environ.update(
        RANK=str(setup.rank),
        WORLD_SIZE=str(setup.world_size),
        WORKER=str(index),
        NUM_WORKERS=str(setup.workers),
    )


def announce_to_torch(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """Makes ``torch.utils.data.get_worker_info()`` answer for this worker, and torch use one thread.

    Where torch is not imported yet, this happens when the dataset imports it.
    """

    def tell(holder: ModuleType) -> None:
        import torch

        info = vars(holder)["WorkerInfo"](id=worker, num_workers=workers, seed=seed, dataset=dataset)
        vars(holder)["_worker_info"] = info
        torch.set_num_threads(1)

    after_import(_WORKER_INFO, tell)
