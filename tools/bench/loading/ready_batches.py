"""Contestants that bring batches which are there already from workers to the training loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

import mpwds
from loading.contest import Contest, Contestant
from loading.formats import import_grain

WORKERS = 2
ROW = 15_625  # float32 values: 62,500 bytes


class ReadyBatches:
    """Yields one float32 array for ever, a little changed each time."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        batch = np.ones((self._rows, ROW), np.float32)
        for number in range(1_000_000_000):
            batch.flat[number % batch.size] = number % 100
            yield batch


def contest(rows: int) -> Contest:
    """Who brings batches of so many rows of 62.5 kB: 16 make 1 MB."""
    nbytes = rows * ROW * 4
    contestants = [
        Contestant("mpwds.MultiLoader", partial(_ours, rows)),
        Contestant("torch DataLoader", partial(_torch, rows, "fork"), package="torch"),
        Contestant("torch DataLoader, forkserver", partial(_torch, rows, "forkserver"), package="torch"),
        Contestant("torch DataLoader, spawn", partial(_torch, rows, "spawn"), package="torch"),
        Contestant("SPDL, SharedMemorySegmentPool", partial(_spdl, rows, nbytes), 1.0, package="spdl"),
        Contestant("grain, mp_prefetch", partial(_grain, rows), package="grain"),
    ]
    name = f"ready batches of {nbytes / 1e6:g} MB (a row is a sample)"
    return Contest(name, contestants, rows, WORKERS, warm_up=20)


def _ours(rows: int) -> Iterable[Any]:
    return mpwds.MultiLoader(ReadyBatches(rows), workers=WORKERS)


def _torch(rows: int, method: str) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    from loading.torch_ready import TorchReadyBatches

    return DataLoader(
        TorchReadyBatches(rows), batch_size=None, num_workers=WORKERS, multiprocessing_context=method
    )


class Numbered(ReadyBatches):
    """The same by number, as grain's sources are."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self._iterator: Iterator[Any] | None = None

    def __len__(self) -> int:
        return 1_000_000_000

    def __getitem__(self, number: int) -> Any:
        self._iterator = self._iterator or iter(self)
        return next(self._iterator)


def _grain(rows: int) -> Iterator[Any]:
    grain = import_grain()
    batches = grain.MapDataset.source(Numbered(rows)).to_iter_dataset(grain.ReadOptions(num_threads=0))
    options = grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=2)
    iterator: Iterator[Any] = iter(batches.mp_prefetch(options))
    return iterator


def _spdl(rows: int, nbytes: int) -> Iterator[Any]:
    from loading.spdl_pool import merged

    return merged([partial(ReadyBatches, rows)] * WORKERS, nbytes + 4096)
