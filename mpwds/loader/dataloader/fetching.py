"""What the workers of a DataLoader do: fetch samples by index or in order, and make batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from mpwds.loader.dataloader import torch_collate
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.parts import IterableSource, iterates_itself

CollateFunction = Callable[[Any], Any]


class Exhausted(Exception):
    """An iterable dataset has no more samples."""


@dataclass
class FetchingSetup(WorkerSetup):
    """The setup of a DataLoader's workers: it says what to do with the indices that they will be given.

    Args:
        base_seed: Worker ``i`` is seeded with ``base_seed + i``.
        iterable: The dataset is iterated; otherwise it is asked for samples by index.
        batches: An index stands for a batch: it is a list of indices.
        collate_fn: Makes a batch of a list of samples, or what is delivered of a sample; ``None`` stands for
            what torch does by default.
        drop_last: Leave out an incomplete last batch of an iterable dataset.
        worker_init_fn: Called with the worker's index before anything is fetched.
        collate_functions: What the trainer has added to torch's table of collate functions.
    """

    serves: ClassVar[str] = "mpwds.loader.dataloader.task_worker:TaskWorker"

    base_seed: int = 0
    iterable: bool = False
    batches: bool = True
    collate_fn: CollateFunction | None = None
    drop_last: bool = False
    worker_init_fn: Callable[[int], object] | None = None
    collate_functions: dict[Any, Callable[..., Any]] = field(default_factory=dict)

    def fetcher(self, context: Context) -> Callable[[Any], Any]:
        """The function that fetches what belongs to an index, collated; a new one for each epoch.

        Args:
            context: The epoch and the worker, for datasets that are pipelines of this package.

        Raises:
            Exhausted: By the function, when an iterable dataset has no more samples.
        """
        collate = self.collate_fn or (torch_collate.collate if self.batches else torch_collate.convert)
        if self.iterable:
            samples = self._samples(context)
            if self.batches:
                return _batch_fetcher(samples, collate, self.drop_last)
            return _fetcher(samples, collate)
        return _by_index(self.dataset, collate, self.batches)

    def _samples(self, context: Context) -> Iterator[Any]:
        dataset = self.dataset
        if not isinstance(dataset, (DataPipeline, IterableSource)):
            return iter(dataset)
        if iterates_itself(dataset):
            dataset.set_epoch(context.epoch)
            return iter(dataset)
        deferred = self.collate_fn is None and not self.batches
        return (element for _, element in dataset.stream(replace(context, deferred=deferred)))


def _by_index(dataset: Any, collate: CollateFunction, batches: bool) -> Callable[[Any], Any]:
    def fetch(index: Any) -> Any:
        return collate(dataset[index])

    def fetch_batch(indices: Any) -> Any:
        return collate([dataset[index] for index in indices])

    def fetch_batch_at_once(indices: Any) -> Any:
        return collate(dataset.__getitems__(indices))

    if not batches:
        return fetch
    return fetch_batch_at_once if getattr(dataset, "__getitems__", None) else fetch_batch


def _fetcher(samples: Iterator[Any], collate: CollateFunction) -> Callable[[Any], Any]:
    def fetch(_: Any) -> Any:
        try:
            sample = next(samples)
        except StopIteration:
            raise Exhausted from None
        return collate(sample)

    return fetch


def _batch_fetcher(samples: Iterator[Any], collate: CollateFunction, drop_last: bool) -> Callable[[Any], Any]:
    ended = False

    def fetch(indices: Any) -> Any:
        nonlocal ended
        batch: list[Any] = []
        if not ended:
            for _ in indices:
                try:
                    batch.append(next(samples))
                except StopIteration:
                    ended = True
                    break
        if not batch or (drop_last and len(batch) < len(indices)):
            raise Exhausted
        return collate(batch)

    return fetch
