"""What a DataLoader asks about its dataset: is it iterated, has it workers, does it divide itself."""

from __future__ import annotations

from typing import Any

from mpwds.loader.loader_pipeline import LoaderPipeline, LoaderStages, Rebatching
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.parts import IterableSource


def is_iterable(dataset: Any) -> bool:
    """Whether a dataset is iterated rather than asked for samples by index."""
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset)


def has_workers(dataset: Any) -> bool:
    """Whether a dataset is a loader of this package, with or without stages behind it."""
    return isinstance(dataset, Rebatching)


def next_epoch(dataset: Any) -> int | None:
    """The number of the epoch that a dataset of this package would begin now; ``None`` for any other."""
    if isinstance(dataset, LoaderPipeline):
        return dataset.loader._epoch
    return dataset._epoch if isinstance(dataset, (DataPipeline, IterableSource, LoaderStages)) else None


def refuse_workers_of_workers(dataset: Any, num_workers: int) -> None:
    """Refuses workers for a dataset that is a loader: each of them would deliver all of it.

    Raises:
        ValueError: The dataset is a loader of this package, and ``num_workers`` is not 0.
    """
    if num_workers and has_workers(dataset):
        raise ValueError(
            f"{dataset!r} has workers of its own, and each of {num_workers} more would deliver all of it: "
            "leave num_workers at 0"
        )


def check_not_divided_again(dataset: Any) -> None:
    """Refuses a dataset of this package where a trainer is about to divide it among ranks.

    Each rank iterates only its own part already. If the trainer then sends rank 0's batches to all ranks, or
    each rank takes every other batch, samples are lost silently.

    Raises:
        ValueError: The dataset divides itself, and there are several ranks.
    """
    ranks = Context.current().world_size
    if ranks > 1 and isinstance(dataset, (DataPipeline, IterableSource, LoaderStages)):
        raise ValueError(
            f"{dataset!r} divides itself among the {ranks} ranks: to divide what it delivers once more would "
            "lose samples. Iterate it with mpwds.MultiLoader or mpwds.WebLoader, which Accelerate leaves as "
            "they are; in a Trainer, return mpwds.DataLoader(loader, batch_size=None) from "
            "get_train_dataloader()"
        )
