"""Several datasets as one: elements of each in turn, at random, or in exact proportions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.mixing.mixed import Mixed
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.parts import as_source
from mpwds.pipeline.stream import PipelineSource, Stream

StopRule: TypeAlias = Literal[
    "first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "never"
]

_RULES = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "never")


class RandomMix(DataPipeline):
    """A dataset that yields elements of several, drawn at random by given weights or in exact proportions.

    Each dataset keeps its own order. What is drawn depends on seed, epoch, rank and worker alone; addresses
    and state pass through, so a mix is resumed exactly if its datasets can be. A mix is a pipeline:
    ``RandomMix([a, b]).shuffle(1000)``.

    When to stop:

    - ``"first_exhausted"`` (the default): as soon as a dataset that is to give an element has none left.
    - ``"all_exhausted_without_replacement"`` (``longest=True``): a dataset that is exhausted drops out, and
      the others go on by their weights. Each element is yielded once.
    - ``"all_exhausted"``: a dataset that is exhausted starts again, as another epoch of it, until every one
      has been exhausted once: the weights hold to the end, and small datasets repeat.
    - ``"never"``: likewise, without end. For ``with_epoch(n)``.
    - a number: after so many elements, in each worker; datasets start again as needed.

    Args:
        datasets: Pipelines, or anything else that a pipeline may begin at. All workers take part in each of
            them, so each is divided among them as it is by itself.
        probs: Weight of each dataset, in proportion: ``[3, 1]`` is the same as ``[0.75, 0.25]``. Equal by
            default. A dataset of weight 0 gives nothing.
        longest: Whether to stop by ``"all_exhausted_without_replacement"``, if ``stop`` is not given.
        stop: When to stop, as above.
        exact: Whether elements come in a fixed order that is as close to the weights as can be, instead of at
            random: of the first n elements, a dataset of share p gives more than n*p - 1 and fewer than
            n*p + 1.
        seed: With epoch, rank and worker, determines the draws; the pipeline's by default.

    Raises:
        ValueError: There are no datasets, weights are not one each, negative, infinite or all 0, or ``stop``
            is unknown or below 1.
        TypeError: One of ``datasets`` is nothing a pipeline can begin at.

    Source:
        ``webdataset.RandomMix``; names of the rules as in ``datasets.interleave_datasets``. Exact
        proportions: R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980), by
        earliest deadline.

    Example:
        >>> mix = RandomMix(["aaaa", "bb"], probs=[2, 1], stop=6, exact=True)
        >>> "".join(mix)
        'abaaba'
    """

    def __init__(
        self,
        datasets: Iterable[Any],
        probs: Iterable[float] | None = None,
        longest: bool = False,
        stop: StopRule | int | None = None,
        exact: bool = False,
        seed: int | None = None,
    ) -> None:
        self.datasets = list(datasets)
        self.probs = None if probs is None else [float(weight) for weight in probs]
        self.longest = longest
        default: StopRule = "all_exhausted_without_replacement" if longest else "first_exhausted"
        self.stop = default if stop is None else stop
        weights = [1.0] * len(self.datasets) if self.probs is None else self.probs
        given = options(
            probs=(self.probs, None),
            stop=(self.stop, "first_exhausted"),
            exact=(exact, False),
            seed=(seed, None),
        )
        call = f"RandomMix({', '.join(filter(None, [_named(self.datasets), arguments(**given)]))})"
        sources = tuple(map(as_source, self.datasets))
        super().__init__(Mix(sources, tuple(weights), self.stop, "exact" if exact else "random", call, seed))
        self._call = call


class RoundRobin(DataPipeline):
    """A dataset that yields an element of each of several in turn.

    Args:
        datasets: Pipelines, or anything else that a pipeline may begin at.
        longest: Whether datasets that are exhausted drop out and the others go on; else the first that has no
            element when it is its turn ends the epoch.

    Raises:
        ValueError: There are no datasets.
        TypeError: One of ``datasets`` is nothing a pipeline can begin at.

    Source:
        ``webdataset.RoundRobin``.

    Example:
        >>> "".join(RoundRobin(["abc", "12"])), "".join(RoundRobin(["abc", "12"], longest=True))
        ('a1b2c', 'a1b2c')
    """

    def __init__(self, datasets: Iterable[Any], longest: bool = False) -> None:
        self.datasets = list(datasets)
        self.longest = longest
        stop: StopRule = "all_exhausted_without_replacement" if longest else "first_exhausted"
        call = f"RoundRobin({_named(self.datasets)}{', longest=True' if longest else ''})"
        sources = tuple(map(as_source, self.datasets))
        super().__init__(Mix(sources, (1.0,) * len(sources), stop, "turns", call))
        self._call = call


@dataclass(frozen=True)
class Mix:
    """Source of a pipeline: what :class:`RandomMix` and :class:`RoundRobin` begin at.

    Args:
        parts: The sources that are mixed.
        weights: Of each; they need not add up to 1.
        stop: When to stop: one of the rules, or a number of elements.
        order: ``"random"``, ``"exact"`` or ``"turns"``.
        call: What it prints as.
        seed: Determines the draws; the pipeline's by default.

    Raises:
        ValueError: As of :class:`RandomMix`.
    """

    parts: tuple[PipelineSource, ...]
    weights: Sequence[float]
    stop: StopRule | int
    order: Literal["random", "exact", "turns"]
    call: str
    seed: int | None = None

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a mix needs at least one dataset")
        if len(self.weights) != len(self.parts):
            raise ValueError(
                f"{len(self.parts)} datasets are mixed, but {len(self.weights)} weights are given"
            )
        if not all(0 <= weight < float("inf") for weight in self.weights) or not any(self.weights):
            raise ValueError(
                f"weights of a mix must be finite, not negative and not all 0, got {list(self.weights)}"
            )
        if isinstance(self.stop, int):
            if self.stop < 1:
                raise ValueError(f"a mix must stop after at least 1 element, got stop={self.stop}")
        elif self.stop not in _RULES:
            rules = ", ".join(map(repr, _RULES))
            raise ValueError(f"stop must be a number of elements or one of {rules}, got {self.stop!r}")

    def __str__(self) -> str:
        return self.call

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return Mixed(self, context)


def _named(datasets: Sequence[Any]) -> str:
    names = [
        str(dataset).partition("\n")[0] if hasattr(dataset, "stream") else type(dataset).__name__
        for dataset in datasets
    ]
    return f"[{', '.join(names)}]"
