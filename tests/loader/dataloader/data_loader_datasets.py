"""Datasets and helpers for the tests that compare DataLoader with torch's."""

import collections
import dataclasses
import random

import numpy as np
import torch
import torch.utils.data

Pair = collections.namedtuple("Pair", "left right")


class Squares(torch.utils.data.Dataset):
    """Map-style: arrays, tensors, numbers and text in nested containers."""

    def __init__(self, length=50, width=3):
        self.length = length
        self.width = width

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {
            "array": np.full((2, self.width), index, np.float32),
            "tensor": torch.full((self.width,), index),
            "pair": Pair(index * index, float(index)),
            "flags": (index % 2 == 0, [np.float64(index), np.int16(index)]),
            "name": f"sample {index}",
            "raw": bytes([index]),
        }


class Numbers(torch.utils.data.Dataset):
    """Map-style: its indices."""

    def __init__(self, length=50):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


class Draws(Numbers):
    """What each generator gives, and the seeds that the worker was given."""

    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        seed = info.seed if info else 0
        return (
            index,
            random.random(),
            np.random.random(),
            torch.rand(2),
            torch.initial_seed() - seed,
            seed % 2**62,
        )


class Bulk(Numbers):
    """Fetches a batch at once."""

    def __getitems__(self, indices):
        return [(index, len(indices)) for index in indices]


class Counting(torch.utils.data.IterableDataset):
    """Iterable: as many numbers in worker ``i`` as ``lengths[i]`` says."""

    def __init__(self, *lengths, announced=None):
        self.lengths = lengths
        self.announced = announced

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        worker = info.id if info else 0
        return iter(range(100 * worker, 100 * worker + self.lengths[worker]))

    def __len__(self):
        if self.announced is None:
            raise TypeError("no length")
        return self.announced


@dataclasses.dataclass
class Point:
    x: int


class Faulty(Numbers):
    """Raises ``error(index)`` for each third index."""

    def __init__(self, error, length=10):
        super().__init__(length)
        self.error = error

    def __getitem__(self, index):
        if index % 3 == 2:
            raise self.error(index)
        return index


def plain(item):
    """An item with its types told and its tensors as lists, for comparison."""
    if isinstance(item, torch.Tensor):
        return type(item).__name__, str(item.dtype), item.requires_grad, tuple(item.shape), item.tolist()
    if isinstance(item, np.ndarray):
        return type(item).__name__, str(item.dtype), item.tolist()
    if isinstance(item, collections.abc.Mapping):
        return type(item).__name__, {key: plain(value) for key, value in item.items()}
    if isinstance(item, (list, tuple, collections.UserList)):
        return type(item).__name__, [plain(value) for value in item]
    if hasattr(item, "__dict__"):
        return type(item).__name__, plain(vars(item))
    return type(item).__name__, item
