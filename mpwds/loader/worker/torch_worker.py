"""Makes torch in a worker behave as in a DataLoader worker, whenever the dataset happens to import it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from mpwds.imports import after_import

_HOLDER = "torch.utils.data._utils.worker"


def announce(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """Makes ``torch.utils.data.get_worker_info()`` answer for this worker, and torch use one thread.

    Torch is not imported for that: if it is not there yet, this happens when someone imports it.

    Args:
        worker: Index of the worker.
        workers: Number of workers.
        seed: The worker's seed, 64 bits.
        dataset: The worker's copy of the dataset.
    """

    def tell(holder: ModuleType) -> None:
        import torch

        info = vars(holder)["WorkerInfo"](id=worker, num_workers=workers, seed=seed, dataset=dataset)
        vars(holder)["_worker_info"] = info
        torch.set_num_threads(1)

    after_import(_HOLDER, tell)
