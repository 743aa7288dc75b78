"""The elements of any kind of dataset, as a worker or a loader without workers iterates it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.filter import plain, rows_in
from mpwds.pipeline.notes import arguments
from mpwds.pipeline.parts import iterates_itself


def as_dataset(dataset: Any) -> Any:
    """The dataset, which is iterable or a function; of a map-style one a pipeline, which workers share."""
    if isinstance(dataset, (str, bytes)):
        raise TypeError(
            f"{dataset!r} is no dataset: for shards of that name write mpwds.WebDataset({dataset!r})"
        )
    if isinstance(dataset, DataPipeline):
        return dataset
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not _is_iterable_dataset(dataset):
        return DataPipeline(dataset)
    is_builtin = type(dataset).__module__ in ("builtins", "itertools") and not isinstance(dataset, type)
    if is_builtin and hasattr(dataset, "__next__"):
        raise TypeError(
            f"a {type(dataset).__name__} can be iterated only once, by one process: pass the function or the "
            "iterable that makes it"
        )
    if hasattr(dataset, "__iter__") or callable(dataset):
        return dataset
    raise TypeError(
        "a loader's dataset must be an iterable, a map-style dataset or a function that returns an iterator, "
        f"got {dataset!r}"
    )


def elements(dataset: Any, context: Context) -> Iterator[Any]:
    """The elements of one epoch; a dataset that is no pipeline of ours is told the epoch by ``set_epoch``."""
    if isinstance(dataset, DataPipeline) and not iterates_itself(dataset):
        return plain(dataset.stream(context))
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(context.epoch)
    is_factory = isinstance(dataset, type) or not hasattr(dataset, "__iter__")
    return iter(_made_by(dataset) if is_factory else dataset)


def sample_counter(dataset: Any) -> Callable[[Any], int]:
    """The function that counts the samples in an element of this dataset."""
    if isinstance(dataset, DataPipeline) and dataset.pipeline and not iterates_itself(dataset):
        return dataset.samples_in
    return rows_in


def process_seed(context: Context) -> int:
    """A seed of 64 bits for all random generators of this process in this epoch."""
    facts = (context.seed or 0, context.epoch, context.rank, context.worker)
    return int.from_bytes(hashlib.blake2b(repr(facts).encode(), digest_size=8).digest(), "little")


def _is_iterable_dataset(dataset: Any) -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(dataset, data.IterableDataset)


def _made_by(function: Any) -> Any:
    made = function()
    if not (hasattr(made, "__iter__") or hasattr(made, "__getitem__")):
        raise TypeError(
            f"the loader's dataset is a function, {arguments(function)}, which must return an iterator or "
            f"be a generator function, but it returned {made!r}"
        )
    return made
