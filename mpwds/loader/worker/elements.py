"""The elements of any kind of dataset, as a worker or a loader without workers iterates it."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from mpwds.loader.resume.progress import START, Position, made_fewer, pack_state, unpack_state
from mpwds.pipeline.coercion import takes_any_order
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.error_context import arguments
from mpwds.pipeline.filter import rows_in
from mpwds.pipeline.iterable_sources import iter_elements, iterates_itself
from mpwds.pipeline.stream import Count, LengthUnknown, Stream

STATE_EVERY_S = 1.0  # between two states; a resumed run makes the elements since the last one again
STATE_SHARE = 0.01  # of a worker's time, at most: an expensive state is saved less often


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
    """The elements of one epoch of a dataset that is no pipeline of ours: ``set_epoch`` tells it which."""
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(context.epoch)
    is_factory = isinstance(dataset, type) or not hasattr(dataset, "__iter__")
    return iter(_made_by(dataset) if is_factory else dataset)


class OwnElements(Iterator[Any]):
    """The elements of a dataset that is no pipeline of ours, and the state that it has of its own.

    The dataset, its iterator or both may have the methods ``state_dict`` and ``load_state_dict``. ``start``
    makes the iterator, when the first element is asked for. If the epoch is left before its end, the dataset
    gets the state back that it had at its start.
    """

    def __init__(self, dataset: Any, start: Callable[[], Iterator[Any]], state: dict[str, Any]) -> None:
        self._dataset = dataset
        self._start = start
        self._state = state
        self._at_start: list[Any] = []
        self._iterator: Iterator[Any] | None = None

    def __next__(self) -> Any:
        try:
            if self._iterator is None:
                self._iterator = self._begun()
            return next(self._iterator)
        except StopIteration:
            self._at_start = []
            raise

    def _begun(self) -> Iterator[Any]:
        if is_stateful(self._dataset):
            with contextlib.suppress(Exception):  # it may have none before it is iterated
                self._at_start = [copy.deepcopy(self._dataset.state_dict())]
            if "dataset" in self._state:
                self._dataset.load_state_dict(self._state["dataset"])
        iterator: Any = self._start()
        if "iterator" in self._state and is_stateful(iterator):
            iterator.load_state_dict(self._state["iterator"])
        return iterator  # type: ignore[no-any-return]  # it has these methods

    def state_dict(self) -> dict[str, Any]:
        parts = {"dataset": self._dataset, "iterator": self._iterator}
        state = {name: part.state_dict() for name, part in parts.items() if is_stateful(part)}
        if not state:
            raise LookupError(f"a {type(self._dataset).__name__} has no state")
        return state

    def close(self) -> None:
        iterator, self._iterator = self._iterator, iter(())
        if iterator is not None and hasattr(iterator, "close"):
            iterator.close()
        for state in self._at_start:
            self._dataset.load_state_dict(state)
        self._at_start = []


class WorkerIterator(Iterator[Any]):
    """Iterates a dataset in one worker, for one epoch.

    It yields the elements from ``position.at`` on, of which ``number`` is the last; the caller drops those
    before ``position.first``. Of a dataset that is not a pipeline of this package, ``start`` makes the
    iterator, and ``around`` may put another one around it.
    """

    def __init__(
        self,
        dataset: Any,
        context: Context,
        position: Position = START,
        start: Callable[[Any, Context], Iterator[Any]] = elements,
        around: Callable[[Iterator[Any], Context], Iterator[Any]] | None = None,
    ) -> None:
        self._worker = context.worker
        self._first = position.first
        self._stream: Stream[Any] | OwnElements | None = None
        self._elements: Iterator[Any]
        state = None if position.state is None else unpack_state(position.state)
        self._due = time.monotonic() + STATE_EVERY_S
        self._exactly = self._each = False
        if isinstance(dataset, DataPipeline) and not iterates_itself(dataset):
            stream = dataset.stream(context)
            # Where results come in any order, only a state right after an element tells which came before.
            self._each = takes_any_order(dataset)
            if self._each and position.at < position.first:
                raise ValueError(
                    f"this epoch cannot be continued: elements come in any order, and the state of worker "
                    f"{self._worker} is {position.first - position.at} batches old. Begin the epoch again"
                )
            if dataset.non_resumable_part is None:
                self._stream = stream
                if state is not None:
                    stream.load_state_dict(state)
            self._elements = iter_elements(stream)
        else:
            own = OwnElements(dataset, lambda: start(dataset, context), state or {})
            self._stream, self._elements = own, own if around is None else around(own, context)
            self._due = 0.0  # the dataset may be in another state when it begins again from its start
            self._exactly = True
        self.number = position.at - 1

    def __next__(self) -> Any:
        try:
            element = next(self._elements)
        except StopIteration:
            if self.number + 1 < self._first:
                raise made_fewer(self._worker, self.number + 1, self._first) from None
            self._due = math.inf  # a dataset's own state may be that of its next epoch
            raise
        self.number += 1
        return element

    def state(self, now: float) -> bytes | str | None:
        """The packed state after the last element, if it is due at ``now``; once, why there is none."""
        if self._stream is None or (now < self._due and not (self._each and self._due < math.inf)):
            return None
        try:
            packed = pack_state(self._stream.state_dict(), exactly=self._exactly)
        except Exception as error:
            self._due = math.inf
            if isinstance(error, LookupError):
                return str(error)
            return f"{type(error).__name__}: {error}"
        done = time.monotonic()
        self._due = done + max(STATE_EVERY_S, (done - now) / STATE_SHARE)
        return packed

    def close(self) -> None:
        """Closes the iterator, if it can be closed, and the files that it reads."""
        for part in (self._elements, self._stream):
            if part is not None and hasattr(part, "close"):
                part.close()
        self._elements, self._stream = iter(()), None


def is_stateful(part: Any) -> bool:
    """True if a dataset, an iterator or a sampler has the methods that torchdata's loader asks for.

    They are ``state_dict()`` and ``load_state_dict(state)``. Those of mosaicml's StreamingDataset, which take
    other arguments, are not these.
    """
    try:
        inspect.signature(part.state_dict).bind()
        inspect.signature(part.load_state_dict).bind({})
    except (AttributeError, TypeError, ValueError):
        return False
    return True


CountOf: TypeAlias = Callable[[Context, bool], int]
"""Counts the elements of an epoch; the arguments are ``context`` and ``exact`` of ``count_delivered``."""


def count_delivered(dataset: Any, workers: int, context: Context = ALONE, exact: bool = False) -> Count:
    """Counts the elements that a loader of a dataset, from ``as_dataset``, delivers to a rank.

    Raises LengthUnknown. With ``exact``, trusts no description, no ``with_length``, and no ``len()`` of a
    dataset that is not a pipeline.
    """
    if not isinstance(dataset, DataPipeline) or iterates_itself(dataset):
        if exact or not hasattr(dataset, "__len__"):
            raise LengthUnknown(f"a {type(dataset).__name__} has none")
        return Count(len(dataset))
    if dataset.given_length is not None and not exact:
        return Count(dataset.given_length)
    each = [replace(context, worker=worker, workers=workers or 1) for worker in range(workers or 1)]
    return sum((dataset.count_in(context, exact) for context in each), Count(0, 0))


def sample_counter(dataset: Any) -> Callable[[Any], int]:
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
