"""Contestants that bring batches which are there already from workers to the training loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

import mpwds
from loading.contest import Contest, Contestant

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
        Contestant("torch DataLoader", partial(_torch, rows), package="torch"),
        Contestant("SPDL, SharedMemorySegmentPool", partial(_spdl, rows, nbytes), 1.0, package="spdl"),
    ]
    name = f"ready batches of {nbytes / 1e6:g} MB (a row is a sample)"
    return Contest(name, contestants, rows, WORKERS, warm_up=20)


def _ours(rows: int) -> Iterable[Any]:
    return mpwds.MultiLoader(ReadyBatches(rows), workers=WORKERS)


def _torch(rows: int) -> Iterable[Any]:
    import torch.utils.data

    class Dataset(ReadyBatches, torch.utils.data.IterableDataset[Any]):
        pass

    return torch.utils.data.DataLoader(Dataset(rows), batch_size=None, num_workers=WORKERS)


def _spdl(rows: int, nbytes: int) -> Iterator[Any]:
    from loading.spdl_pool import merged

    return merged([partial(ReadyBatches, rows)] * WORKERS, nbytes + 4096)
