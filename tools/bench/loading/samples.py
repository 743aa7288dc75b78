"""Contestants that fetch and collate the samples of map-style datasets: the import is all that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import mpwds
from loading.contest import Contest, Contestant

WORKERS = 2
LENGTH = 100_000_000


@dataclass(frozen=True)
class Case:
    """A dataset and its batch size; ``sample`` makes a sample of an index."""

    name: str
    make: Callable[[], Any]
    batch: int
    goal: float = 1.0


class Dataset:
    """A map-style dataset that makes its samples at once."""

    def __init__(self, sample: Callable[[int], Any]) -> None:
        self._sample = sample

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return self._sample(index)


class Rows:
    """A sample's array, or tensor, and its number."""

    def __init__(self, shape: tuple[int, ...], rows: int, kind: str) -> None:
        values = np.arange(rows, dtype=np.float32).reshape(-1, *[1] * len(shape))
        self._rows: Any = np.ones((rows, *shape), np.float32) * values
        if kind == "tensor":
            import torch

            self._rows = torch.from_numpy(self._rows)

    def __call__(self, index: int) -> Any:
        return self._rows[index % len(self._rows)], index


class Dicts(Rows):
    def __call__(self, index: int) -> Any:
        row, label = super().__call__(index)
        return {"features": row, "label": label, "weight": 0.5, "name": f"sample {index}"}


class Tokens:
    """Blocks of a long text's tokens, each one longer than what is trained on."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._tokens = np.arange(4_000_000, dtype=np.uint16)

    def __call__(self, index: int) -> np.ndarray[Any, Any]:
        start = index * self._block % (len(self._tokens) - self._block)
        return self._tokens[start : start + self._block].astype(np.int64)


def _tensor_dataset() -> Any:
    import torch
    from torch.utils.data import ConcatDataset, TensorDataset

    rows = TensorDataset(torch.ones(50_000, 256), torch.arange(50_000))
    return ConcatDataset([rows] * (LENGTH // 50_000))


def _integer(index: int) -> int:
    return index


CASES = [
    Case("1 KB arrays and labels", lambda: Dataset(Rows((256,), 20_000, "array")), 256, goal=2.0),
    Case("1 KB tensors and labels", lambda: Dataset(Rows((256,), 20_000, "tensor")), 256, goal=2.0),
    Case("integers", lambda: Dataset(_integer), 256),
    Case("TensorDataset, 1 KB", _tensor_dataset, 256),
    Case("dicts of 1 KB, two numbers, a name", lambda: Dataset(Dicts((256,), 20_000, "array")), 256),
    Case("600 kB arrays and labels", lambda: Dataset(Rows((3, 224, 224), 128, "array")), 64),
    Case("blocks of 2049 tokens", lambda: Dataset(Tokens(2049)), 16),
]


def contests() -> list[Contest]:
    return [_contest(case) for case in CASES]


def _contest(case: Case) -> Contest:
    contestants = [
        Contestant("mpwds.DataLoader", partial(_ours, case)),
        Contestant("torch DataLoader", partial(_torch, case), case.goal, "torch"),
    ]
    return Contest(f"{case.name}, batches of {case.batch}", contestants, case.batch, WORKERS, warm_up=40)


def _ours(case: Case) -> Iterable[Any]:
    return mpwds.DataLoader(case.make(), batch_size=case.batch, num_workers=WORKERS)


def _torch(case: Case) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(case.make(), batch_size=case.batch, num_workers=WORKERS)
