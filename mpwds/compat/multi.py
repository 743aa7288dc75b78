"""webdataset's first loader, ``MultiDataset``, and the helpers of its module.

``timeout`` and :func:`omp_warning` have no effect: see "Without effect" in docs/coming-from/webdataset.md.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator
from typing import Any

from mpwds.imports import tensor_class
from mpwds.loader.multi_loader import LoaderPipeline, MultiLoader
from mpwds.loader.output import pinned
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.pipeline.error_context import check_boolean
from mpwds.pipeline.iterable_sources import TorchIterable

verbose = int(os.environ.get("MULTIDATASET_VERBOSE", "0"))
timeout = float(os.environ.get("MULTIDATASET_TIMEOUT", "0.1"))

_MOST_AHEAD = 4


class MultiDataset(LoaderPipeline):
    """Iterates a dataset in worker processes; the stages added to it run in this process.

    This is webdataset's first loader, on top of :class:`~mpwds.loader.multi_loader.MultiLoader`, which
    describes how elements are divided among workers and delivered. Use it to mix elements of different
    workers. Batches that need no more work here are better iterated from a ``MultiLoader``.

    Each ``iter()`` is an epoch, and ends an unfinished one of the same object; a copy with more stages has
    workers of its own. Workers stay between epochs until ``close()``, the end of a ``with`` block, the
    object's collection, or an iterator's ``terminate()``.

    Arrays arrive as arrays and tensors as tensors, unless you pass ``output``.

    Args:
        dataset: Any dataset.
        workers: Worker processes.
        output_size: Limit on the batches in flight, over all workers; at least one for each. A worker
            prepares no more than 4 ahead in any case: batches can be large.
        nominal: Result of ``len()``, in place of the number of elements. It changes nothing else.
        pin_memory: Deliver tensors in pinned memory. Without CUDA, or without tensors, this does nothing.
        options: Further options of ``MultiLoader``: ``in_order``, ``prefetch`` (instead of
            ``output_size``), ``start_method``, ``timeout``, ``output`` and ``seed``.

    Attributes:
        loader: The ``MultiLoader`` that it iterates.

    Example:
        >>> import numpy as np
        >>> from mpwds import DataPipeline
        >>> numbers = DataPipeline(range(8)).batched(2)
        >>> with MultiDataset(numbers, workers=2, output="numpy").unbatched().batched(4) as dataset:
        ...     [batch.tolist() for batch in dataset]
        [[0, 2, 1, 3], [4, 6, 5, 7]]
    """

    def __init__(
        self,
        dataset: Any,
        workers: int = 4,
        output_size: int = 10000,
        nominal: int | None = None,
        pin_memory: bool = True,
        **options: Any,
    ) -> None:
        if output_size < 1:
            raise ValueError(f"MultiDataset: output_size must be at least 1, got {output_size}")
        ahead = max(1, min(output_size // max(workers, 1), _MOST_AHEAD))
        kind = MultiLoader if "output" in options else _ArraysAsTheyAre
        loader = kind(dataset, workers, **{"prefetch": ahead, **options})
        super().__init__(loader)
        self.given_length = nominal
        self._pin_memory = (
            check_boolean("MultiDataset", "pin_memory", pin_memory) and loader.output == "torch"
        )

    def __iter__(self) -> MultiDatasetIterator:
        return MultiDatasetIterator(self)

    def compose(self, *stages: Any) -> Any:
        extended: Any = super().compose(*stages)
        extended.loader = copy.copy(self.loader)
        extended.pipeline[:1] = LoaderPipeline(extended.loader).pipeline
        return extended


class _Setup(WorkerSetup):
    arrays_as_they_are = True


class _ArraysAsTheyAre(MultiLoader):
    _setup_class = _Setup


class MultiDatasetIterator(TorchIterable, Iterator[Any]):
    """One epoch of a :class:`MultiDataset`, or of another dataset with the arguments of ``MultiDataset``.

    Example:
        >>> from mpwds import DataPipeline
        >>> elements = MultiDatasetIterator(DataPipeline([1, 2, 3]), workers=1)
        >>> [int(element) for element in elements]
        [1, 2, 3]
        >>> elements.terminate()
    """

    def __init__(
        self, dataset: Any, workers: int = 4, output_size: int = 100, pin_memory: bool = True
    ) -> None:
        if not isinstance(dataset, MultiDataset):
            dataset = MultiDataset(dataset, workers, output_size, pin_memory=pin_memory)
        self._elements = LoaderPipeline.__iter__(dataset)
        self._loader: MultiLoader = dataset.loader
        self._pin_memory: bool = dataset._pin_memory
        self._pins: bool | None = None

    def __next__(self) -> Any:
        element = next(self._elements)
        if self._pins is None:  # now that the workers run: a process that has used CUDA cannot be forked
            self._pins = self._pin_memory and _cuda_is_available()
        return pinned(element) if self._pins else element

    def terminate(self) -> None:
        """Ends the epoch and the workers. Elements that were not delivered are dropped."""
        self._elements = iter(())
        self._loader.close()


def copy_and_delete_tensors(sample: Any, pin_memory: bool = True) -> Any:
    """A copy of a sample (tuple, list or dict): its tensors by :func:`maybe_copy`, other fields unchanged."""
    if isinstance(sample, (list, tuple)):
        return tuple([maybe_copy(field, pin_memory) for field in sample])
    return {name: maybe_copy(field, pin_memory) for name, field in sample.items()}


def maybe_copy(a: Any, pin_memory: bool) -> Any:
    """A copy of a tensor, in pinned memory if asked for and there is CUDA; anything else unchanged."""
    if not isinstance(a, tensor_class()):
        return a
    return a.pin_memory() if pin_memory and _cuda_is_available() else a.clone()


def D(*args: object) -> None:
    """Prints to standard error if ``verbose`` is set. The library itself does not use it."""
    if sys.modules["mpwds.multi"].verbose:  # where a program sets it
        print(*args, file=sys.stderr)


def omp_warning() -> None:
    """Has no effect: workers compute with one thread each."""


def _cuda_is_available() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())
