"""Several datasets as one: elements of each in turn, at random, or in exact proportions."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from numbers import Integral
from typing import Any, Literal, get_args

from mpwds.closing import close_all
from mpwds.pipeline.coercion import as_source
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import Repetitions
from mpwds.pipeline.error_context import arguments, given_options
from mpwds.pipeline.randomness import Draws, worker_draws
from mpwds.pipeline.stream import (
    Address,
    BaseStream,
    Description,
    FromWorkers,
    Origin,
    PipelineSource,
    Stream,
)
from mpwds.suggestions import shown

StopRule = Literal["first_exhausted", "all_exhausted", "all_exhausted_without_replacement", "never"]


class RandomMix(DataPipeline):
    """A dataset that mixes elements of several datasets, at random by weight or in exact proportions.

    Each dataset keeps its own order. A mix is a pipeline, ``RandomMix([a, b]).shuffle(1000)``, and resumes
    exactly if its datasets do.

    When to stop:

    - ``"first_exhausted"`` (the default): when a dataset has no element left for its next turn.
    - ``"all_exhausted_without_replacement"`` (``longest=True``): an exhausted dataset drops out, so each
      element is yielded once.
    - ``"all_exhausted"``: an exhausted dataset starts another epoch, until each has been exhausted once.
    - ``"never"``: exhausted datasets start again, without end. For ``with_epoch(n)``.
    - a number: after this many elements in each worker. Datasets start again as needed.

    Args:
        datasets: Pipelines, or anything else that can be the source of a pipeline. All workers read each
            dataset, divided among them as it would be by itself.
        probs: Weights of the datasets, equal by default; ``[3, 1]`` is ``[0.75, 0.25]``, and 0 gives nothing.
        longest, stop: When to stop, as above.
        exact: Whether elements come in a fixed order instead of at random: of the first n elements, a dataset
            of share p gives more than n*p - 1 and fewer than n*p + 1.
        seed: Determines the draws, with epoch, rank and worker; the pipeline's seed by default.

    Raises:
        ValueError: There are no datasets; weights are negative, infinite or all 0, or not one for each
            dataset; or ``stop`` is unknown or below 1.
        TypeError: One of ``datasets`` cannot be the source of a pipeline.

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
        self.datasets = _several(datasets)
        self.probs = None if probs is None else [*map(float, probs)]
        self.longest = longest
        self.stop = _rule(longest) if stop is None else stop
        weights = (1.0,) * len(self.datasets) if self.probs is None else tuple(self.probs)
        stop = None if self.stop == "first_exhausted" else self.stop
        written = {"probs": self.probs, "stop": stop, "exact": exact, "seed": seed}
        given = arguments(**given_options(RandomMix.__init__, written))
        call = f"RandomMix({', '.join(filter(None, [_named(self.datasets), given]))})"
        order: Literal["exact", "random"] = "exact" if exact else "random"
        super().__init__(Mix(tuple(self.datasets), weights, self.stop, order, call, seed))
        self._call = call


class RoundRobin(DataPipeline):
    """A dataset that yields an element of each of several in turn.

    Args:
        datasets: Pipelines, or anything else that can be the source of a pipeline.
        longest: Whether exhausted datasets drop out and the others continue; otherwise the epoch ends when a
            dataset has no element left for its turn.

    Source:
        ``webdataset.RoundRobin``.

    Example:
        >>> "".join(RoundRobin(["abc", "12"])), "".join(RoundRobin(["abc", "12"], longest=True))
        ('a1b2c', 'a1b2c')
    """

    def __init__(self, datasets: Iterable[Any], longest: bool = False) -> None:
        self.datasets = _several(datasets)
        self.longest = longest
        call = f"RoundRobin({_named(self.datasets)}{', longest=True' if longest else ''})"
        weights = (1.0,) * len(self.datasets)
        super().__init__(Mix(tuple(self.datasets), weights, _rule(longest), "turns", call))
        self._call = call


@dataclass(frozen=True)
class Mix(Origin):
    """The source of :class:`RandomMix` and :class:`RoundRobin`; ``call`` is how it prints."""

    datasets: tuple[Any, ...]
    weights: tuple[float, ...]
    stop: StopRule | int
    order: Literal["random", "exact", "turns"]
    call: str
    seed: int | None = None
    alike_before_split = True

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a mix needs at least one dataset")
        weights = list(self.weights)
        if len(weights) != len(self.parts):
            raise ValueError(f"{len(self.parts)} datasets are mixed, but {len(weights)} weights are given")
        if not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
            raise ValueError(f"weights of a mix must be finite, not negative and not all 0, got {weights}")
        if isinstance(self.stop, Integral) and not isinstance(self.stop, bool):
            if self.stop < 1:
                raise ValueError(f"a mix must stop after at least 1 element, got stop={self.stop}")
        elif self.stop not in get_args(StopRule):
            rules = ", ".join(map(repr, get_args(StopRule)))
            raise ValueError(f"stop must be a number of elements or one of {rules}, got {shown(self.stop)}")

    def __str__(self) -> str:
        return self.call

    @cached_property
    def parts(self) -> tuple[Origin, ...]:
        return tuple(map(as_source, self.datasets))

    def close(self) -> None:
        """Closes the datasets that have a method ``close``, such as loaders."""
        close_all(self.datasets)

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return _Mixed(self, context)


class _Mixed(BaseStream[Any]):
    """Elements of several sources. An address is (source, repetition of it, address in it)."""

    _counters = ("_in_play", "_empty", "_exhausted", "_left")

    def __init__(self, mix: Mix, context: Context) -> None:
        self._runs = [Repetitions(part.stream, context.within(n)) for n, part in enumerate(mix.parts)]
        self._rule = mix.stop
        self._left = int(mix.stop) if isinstance(mix.stop, Integral) else None
        self._in_play = [weight > 0 for weight in mix.weights]
        self._empty = [True] * len(mix.parts)  # the current run has given nothing
        self._exhausted = [False] * len(mix.parts)
        self._order: _Order
        if mix.order == "turns":
            self._order = _Turns()
        elif mix.order == "exact":
            self._order = _Exact(mix.weights)
        else:
            facts = () if mix.seed is None else (mix.seed,)
            self._order = _AtRandom(mix.weights, worker_draws("mix", context, *facts))

    def __next__(self) -> tuple[Address, Any]:
        while self._left != 0 and any(self._in_play):
            before = self._order.state
            part = self._order.next([part for part, plays in enumerate(self._in_play) if plays])
            runs = self._runs[part]
            while self._in_play[part]:
                try:
                    address, element = next(runs.stream)
                except StopIteration:
                    self._run_ended(part)
                    continue
                except Exception:
                    self._order.state = before  # a state taken now begins with this source's element
                    raise
                self._empty[part] = False
                self._order.taken(part)
                if self._left is not None:
                    self._left -= 1
                return (part, runs.number, address), element
        raise StopIteration

    def _run_ended(self, part: int) -> None:
        """Restarts the source or drops it; or ends the mix by dropping all."""
        if self._rule == "first_exhausted":
            self._in_play = [False] * len(self._in_play)
            return
        self._exhausted[part] = True
        if self._empty[part] or self._rule == "all_exhausted_without_replacement":
            self._in_play[part] = False
            self._order.dropped()
        else:
            self._runs[part].begin(self._runs[part].number + 1)
            self._empty[part] = True
        if self._rule == "all_exhausted":
            waiting = [plays and not done for plays, done in zip(self._in_play, self._exhausted, strict=True)]
            if not any(waiting):
                self._in_play = waiting

    def fetch(self, address: Any) -> Any:
        part, repetition, inner = address
        return self._runs[part].at(repetition).fetch(inner)

    def describe(self, address: Any, element: object = None) -> Description:
        part, repetition, inner = address
        place: Description = self._runs[part].at(repetition).describe(inner, element)
        return place

    def state_dict(self) -> dict[str, Any]:
        return {
            "parts": [runs.state_dict() for runs in self._runs],
            "order": copy.copy(self._order.state),
            **super().state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for runs, part in zip(self._runs, state["parts"], strict=True):
            runs.load_state_dict(part)
        self._order.state = copy.copy(state["order"])
        super().load_state_dict(state)


class _Order(ABC):
    """Chooses which source gives the next element. Only ``state`` changes."""

    state: Any

    @abstractmethod
    def next(self, playing: list[int]) -> int:
        """One of the sources in play; there is at least one."""

    def taken(self, part: int) -> None:  # noqa: B027  # not every order needs it
        """Source ``part`` gave an element."""

    def dropped(self) -> None:  # noqa: B027
        """A source has dropped out of play."""


class _AtRandom(_Order):
    def __init__(self, weights: Any, draws: Draws) -> None:
        self._weights = weights
        self._draws = draws
        self.state = 0  # the number of draws

    def next(self, playing: list[int]) -> int:
        ends = list(accumulate(self._weights[part] for part in playing))
        drawn = self._draws.fraction(self.state) * ends[-1]
        self.state += 1
        return playing[bisect_right(ends, drawn)]


class _Turns(_Order):
    def __init__(self) -> None:
        self.state = -1  # the source that gave the last element

    def next(self, playing: list[int]) -> int:
        return next((part for part in playing if part > self.state), playing[0])

    def taken(self, part: int) -> None:
        self.state = part


class _Exact(_Order):
    """An order in which the first n elements hold each source's share of n, to less than one element.

    An element may come as soon as its source's share reaches into it, and must have come once the share
    covers it. Of those that may come, the one with the earliest deadline is next. When a source drops out,
    the order begins again with the others.
    """

    def __init__(self, weights: Any) -> None:
        shares = [Fraction(weight) for weight in weights]
        scale = max(share.denominator for share in shares)  # a multiple of all, which are powers of two
        self._weights = [int(share * scale) for share in shares]
        self.state = [0] * len(shares)  # elements taken of each source

    def next(self, playing: list[int]) -> int:
        weights, counts = self._weights, self.state
        total = sum(weights[part] for part in playing)
        number = sum(counts[part] for part in playing) + 1

        def urgency(part: int) -> tuple[int, int]:
            """The deadline, as the number of an element; ties go to the most overdue source."""
            deadline = -(-(counts[part] + 1) * total // weights[part])
            return deadline, counts[part] * total - number * weights[part]

        due = [part for part in playing if counts[part] * total < number * weights[part]]
        return min(due, key=urgency)

    def taken(self, part: int) -> None:
        self.state[part] += 1

    def dropped(self) -> None:
        self.state = [0] * len(self.state)


def _rule(longest: bool) -> StopRule:
    return "all_exhausted_without_replacement" if longest else "first_exhausted"


def _several(datasets: Iterable[Any]) -> list[Any]:
    if isinstance(datasets, (PipelineSource, FromWorkers, str)):  # its elements would be the datasets
        raise TypeError("a mix takes a list of datasets, RandomMix([a, b]), got one dataset")
    return list(datasets)


def _named(datasets: Sequence[Any]) -> str:
    names = [
        str(dataset).partition("\n")[0] if isinstance(dataset, PipelineSource) else type(dataset).__name__
        for dataset in datasets
    ]
    return f"[{', '.join(names)}]"
