"""Makes torch in a worker behave as in a DataLoader worker, whenever the dataset happens to import it."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from mpwds.imports import after_import

_HOLDER = "torch.utils.data._utils.worker"


class Announcement(NamedTuple):
    """What :func:`announce` was called with."""

    worker: int
    workers: int
    seed: int
    dataset: Any


def announce(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """Makes ``torch.utils.data.get_worker_info()`` answer for this worker, and torch use one thread.

    Torch is not imported for that: if it is not there yet, this happens when someone imports it.

    Args:
        worker: Index of the worker.
        workers: Number of workers.
        seed: The worker's seed, 64 bits.
        dataset: The worker's copy of the dataset.
    """

    global _latest
    _latest = Announcement(worker, workers, seed, dataset)

    def tell(holder: ModuleType) -> None:
        import torch

        info = vars(holder)["WorkerInfo"](id=worker, num_workers=workers, seed=seed, dataset=dataset)
        vars(holder)["_worker_info"] = info
        torch.set_num_threads(1)

    after_import(_HOLDER, tell)


def announced() -> Announcement | None:
    """What torch has been told last, or will be; ``None`` if nothing."""
    return _latest


def forget() -> None:
    """Lets go of the dataset: there is no worker any more, until :func:`announce`."""
    global _latest
    _latest = None
    after_import(_HOLDER, _tell_of_none)


def _tell_of_none(holder: ModuleType) -> None:
    vars(holder)["_worker_info"] = None


_latest: Announcement | None = None
