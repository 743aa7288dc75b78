"""Datasets that divide themselves among ranks or have workers: what must not be done to them again."""

from __future__ import annotations

from typing import Any

from mpwds.loader.dataloader.web_loader import WebLoader
from mpwds.loader.loader_pipeline import LoaderPipeline, LoaderStages
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.parts import IterableSource


def check_not_divided_again(dataset: Any) -> None:
    """Refuses a pipeline or a loader of this package where a trainer is about to divide it among ranks.

    Each rank iterates its own part of it already. A trainer that sends rank 0's batches to all ranks, or lets
    each rank take every other batch, would lose the rest without a word.

    Args:
        dataset: What the trainer divides.

    Raises:
        ValueError: It divides itself, and there are several ranks.

    Example:
        >>> check_not_divided_again([1, 2, 3])
    """
    ranks = Context.current().world_size
    if ranks > 1 and isinstance(dataset, (DataPipeline, IterableSource, LoaderStages)):
        raise ValueError(
            f"{dataset!r} divides itself among the {ranks} ranks: to divide what it delivers once more would "
            "lose samples. Iterate it by mpwds.MultiLoader or mpwds.WebLoader, which Accelerate leaves as "
            "they are; in a Trainer, return mpwds.DataLoader(loader, batch_size=None) from "
            "get_train_dataloader()"
        )


def refuse_workers_of_workers(dataset: Any, num_workers: int) -> None:
    """Refuses workers that would each iterate a loader with workers of its own: all of it, in each.

    Args:
        dataset: What the workers would iterate.
        num_workers: How many there would be.

    Raises:
        ValueError: There would be any.

    Example:
        >>> refuse_workers_of_workers([1, 2, 3], num_workers=4)
    """
    if num_workers and has_workers(dataset):
        raise ValueError(
            f"{dataset!r} has workers of its own, and each of {num_workers} more would deliver all of it: "
            "leave num_workers at 0"
        )


def has_workers(dataset: Any) -> bool:
    """Whether a dataset is a loader of this package, or what is behind one.

    Example:
        >>> has_workers([1, 2, 3])
        False
    """
    return isinstance(dataset, (LoaderStages, LoaderPipeline, WebLoader))
