"""The definition of a dataset, which a server tells its clients, so that they need not have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mpwds.loader.resume.description import described, fingerprint
from mpwds.loader.worker.elements import count_delivered
from mpwds.pipeline.coercion import takes_any_order
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import is_pipeline
from mpwds.pipeline.iterable_sources import IterableSource
from mpwds.pipeline.stream import Count, LengthUnknown, Stream


def define(dataset: Any) -> dict[str, Any]:
    """A dataset's definition, as a server sends it."""
    known = is_pipeline(dataset)
    return {
        "description": described(dataset),
        "seed": dataset.given_seed if known else None,
        "length": dataset.given_length if known else None,
        "in_any_order": takes_any_order(dataset),
        "unaddressed": dataset.non_resumable_part if known else None,
        "self_dividing": dataset.self_dividing_part if known else type(dataset).__name__,
        "fingerprint": fingerprint(dataset),
    }


def title(definition: dict[str, Any]) -> str:
    """The dataset of a definition, in a line."""
    return f"{' → '.join(definition['description'])} (fingerprint {definition['fingerprint']})"


def counts(dataset: Any, here: Context, exact: bool) -> list[int]:
    """Counts the elements that each worker of each rank makes of a dataset in an epoch; or LengthUnknown."""
    places = [(rank, worker) for rank in range(here.world_size) for worker in range(here.workers)]
    if is_pipeline(dataset):
        contexts = (replace(here, rank=rank, worker=worker) for rank, worker in places)
        return [dataset.count_in(context).elements for context in contexts]
    total = count_delivered(dataset, [], exact).elements
    return [total // here.workers + (worker < total % here.workers) for _, worker in places]


class RemoteSource(IterableSource):
    """The source of a pipeline that runs elsewhere; a loader's facts and lengths come from its server."""

    def __init__(self, definition: dict[str, Any], counter: Callable[[Context], int | str]) -> None:
        self.description = [str(part) for part in definition["description"]]
        self.in_any_order = bool(definition["in_any_order"])
        self.addressable = definition["unaddressed"] is None
        self._name = str(definition["unaddressed"] or " ".join(self.description))
        self._self_dividing = definition.get("self_dividing")
        self._counter = counter

    def __str__(self) -> str:
        return self._name

    @property
    def self_dividing_part(self) -> str | None:
        return self._self_dividing

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        raise RuntimeError("this dataset is on its servers: only a RemoteLoader can iterate it")

    def count_in(self, context: Context, exact: bool = True) -> Count:
        answer = self._counter(context)
        if isinstance(answer, str):
            raise LengthUnknown(answer)
        return Count(int(answer))
