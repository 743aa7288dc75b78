"""MultiDataset: a dataset whose beginning runs in worker processes, and whose stages run here."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from mpwds.loader import checks
from mpwds.loader.multi_loader import MultiLoader
from mpwds.loader.pinned_elements import pinned
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.passing import Passing

_MOST_AHEAD = 4


class MultiDataset(DataPipeline):
    """Iterates a dataset in worker processes; the stages added to it run in this process.

    Webdataset's first loader, on top of :class:`~mpwds.loader.multi_loader.MultiLoader`: what a dataset may
    be, how its elements are divided among workers and how they come here is written there. Use it to mix what
    different workers deliver. Batches that need no more work here are better iterated from a ``MultiLoader``.
    What a shuffle holds here keeps the batches it came in; more than a few of a worker's are copied out of
    shared memory, and one warning says so.

    Each ``iter()`` is an epoch, and ends an unfinished one of the same object; a copy with more stages has
    workers of its own. They stay between epochs until ``close()``, the end of a ``with`` block or the
    object's collection, or until an iterator's ``terminate()``.

    Args:
        dataset: Any dataset.
        workers: Worker processes.
        output_size: Batches in flight at the most, over all workers; at least one for each. A worker
            prepares no more than 4 ahead, whatever is allowed: batches can be large.
        nominal: What ``len()`` returns. Elements are delivered as they come, however many.
        pin_memory: Deliver tensors in pinned memory. Without CUDA, or without tensors, this does nothing.
        options: Further options of ``MultiLoader``: ``in_order``, ``prefetch`` (in place of
            ``output_size``), ``start_method``, ``timeout``, ``output`` and ``seed``.

    Attributes:
        loader: The ``MultiLoader`` behind it.

    Raises:
        ValueError: An option is out of range.
        TypeError: ``dataset`` is not iterable; or, for ``len()``, there is no ``nominal``.

    Example:
        >>> import numpy as np
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
        loader = MultiLoader(dataset, workers, **{"prefetch": ahead, **options})
        super().__init__(_Delivered(loader), seed=loader.seed)
        self.loader = loader
        self._length = nominal
        self._pin_memory = (
            checks.boolean("MultiDataset", "pin_memory", pin_memory) and loader.output == "torch"
        )

    def __iter__(self) -> MultiDatasetIterator:
        return MultiDatasetIterator(super().__iter__(), self.loader, self._pin_memory)

    def compose(self, *stages: Any) -> MultiDataset:
        extended = super().compose(*stages)
        extended.loader = copy.copy(self.loader)
        extended.pipeline[0] = _Delivered(extended.loader)
        return extended


class MultiDatasetIterator(Iterator[Any]):
    """One epoch of a :class:`MultiDataset`.

    Args:
        elements: Its elements.
        loader: What they come from.
        pin_memory: Whether to deliver tensors in pinned memory, where there is CUDA.
    """

    def __init__(self, elements: Iterator[Any], loader: MultiLoader, pin_memory: bool) -> None:
        self._elements = elements
        self._loader = loader
        self._pin_memory = pin_memory
        self._pins: bool | None = None

    def __next__(self) -> Any:
        element = next(self._elements)
        if self._pins is None:  # now that the workers run: a process that has used CUDA cannot be forked
            self._pins = self._pin_memory and _cuda_is_available()
        return pinned(element) if self._pins else element

    def terminate(self) -> None:
        """Ends the epoch, and the workers with all that is theirs; what was not delivered yet is dropped.

        Example:
            >>> elements = iter(MultiDataset(range(100), workers=1))
            >>> int(next(elements))
            0
            >>> elements.terminate()
            >>> next(elements, "nothing more")
            'nothing more'
        """
        self._elements = iter(())
        self._loader.close()


def _cuda_is_available() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


@dataclass(frozen=True)
class _Delivered:
    """Beginning of a pipeline: what a loader delivers. Its elements cannot be made again."""

    loader: MultiLoader
    addressable: ClassVar[bool] = False

    def __str__(self) -> str:
        return str(self.loader)

    def close(self) -> None:
        self.loader.close()

    def stream(self, context: Context = ALONE) -> Passing:
        self.loader.set_epoch(context.epoch)
        return Passing(iter(self.loader), "that the workers delivered")
