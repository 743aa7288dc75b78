"""Prepares a worker process: signals, memory, torch."""

from __future__ import annotations

import ctypes
import os
import signal
from types import ModuleType
from typing import Any

from mpwds.imports import after_import
from mpwds.loader.worker.counters import STACK_SIGNAL

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_USERS_CHOICE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def leave_trainers_signals() -> None:
    """Ignores Ctrl-C, which the trainer handles, and drops the handlers that a fork inherits from it."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, STACK_SIGNAL})


def keep_freed_memory() -> bool:
    """Makes glibc keep up to 512 MB of freed memory, not 1 MB, unless the user has configured ``malloc``.

    A worker frees a batch's samples together and needs as much again for the next batch. If the memory goes
    back to the system in between, every page of it is cleared and mapped anew: decoding and stacking 64 JPEG
    images of 224x224 then took 1.24 ms of processor time an image, and 1.03 with this.
    """
    configured = any(name in os.environ for name in _USERS_CHOICE)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if configured or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or mallopt is None:
        return False
    # Setting one of them ends glibc's own adjustment of both. 32 MB is the most that glibc takes: what is
    # larger is mapped and unmapped each time.
    return bool(mallopt(_M_MMAP_THRESHOLD, 32 << 20) and mallopt(_M_TRIM_THRESHOLD, 512 << 20))


def announce_to_torch(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """Makes torch's ``get_worker_info()`` answer for this worker, and torch use one thread, once imported."""

    def tell(holder: ModuleType) -> None:
        import torch

        info = vars(holder)["WorkerInfo"](id=worker, num_workers=workers, seed=seed, dataset=dataset)
        vars(holder)["_worker_info"] = info
        torch.set_num_threads(1)

    after_import("torch.utils.data._utils.worker", tell)
