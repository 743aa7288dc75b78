"""The elements of any kind of dataset, as a worker or a loader without workers iterates it."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import inspect
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from mpwds.closing import close_all
from mpwds.loader.resume.progress import START, Position, made_fewer, pack_state, unpack_state
from mpwds.pipeline.coercion import takes_any_order
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline, is_pipeline
from mpwds.pipeline.epochs import Epochs, RepeatedStream
from mpwds.pipeline.error_context import arguments
from mpwds.pipeline.filter import rows_in
from mpwds.pipeline.iterable_sources import iter_elements
from mpwds.pipeline.randomness import States, generator_states, restore_rng, seed_generators
from mpwds.pipeline.stream import (
    Address,
    Count,
    FromWorkers,
    LengthUnknown,
    Stream,
    WrappedStream,
    as_address,
    not_for_workers,
)

if TYPE_CHECKING:
    from mpwds.loader.processes.setup import WorkerSetup

STATE_EVERY_S = 1.0  # between two states; a resumed run makes the elements since the last one again
STATE_SHARE = 0.01  # of a worker's time, at most: an expensive state is saved less often


def as_dataset(dataset: Any) -> Any:
    """The dataset, which is iterable or a function; of a map-style one a pipeline, which workers share."""
    if isinstance(dataset, (str, bytes)):
        raise TypeError(
            f"{dataset!r} is no dataset: for shards of that name write mpwds.WebDataset({dataset!r})"
        )
    data = sys.modules.get("torch.utils.data")
    is_loader = isinstance(dataset, FromWorkers)
    if data is not None and isinstance(dataset, data.DataLoader):  # whose pipeline divides itself
        is_loader = dataset.num_workers > 0 or not isinstance(dataset.dataset, DataPipeline)
    if is_loader:
        raise not_for_workers(dataset)
    if isinstance(dataset, DataPipeline):
        return dataset
    is_iterable_dataset = data is not None and isinstance(dataset, data.IterableDataset)
    if isinstance(dataset, Sized) and hasattr(dataset, "__getitem__") and not is_iterable_dataset:
        return DataPipeline(dataset)
    if type(dataset).__module__ in ("builtins", "itertools") and isinstance(dataset, Iterator):
        raise TypeError(
            f"a {type(dataset).__name__} can be iterated only once, by one process: pass the function or the "
            "iterable that makes it"
        )
    if isinstance(dataset, Iterable) or callable(dataset):
        return dataset
    raise TypeError(
        "a loader's dataset must be an iterable, a map-style dataset or a function that returns an iterator, "
        f"got {dataset!r}"
    )


def elements(dataset: Any, context: Context) -> Iterator[Any]:
    """The elements of one epoch of a dataset that is no pipeline of ours: ``set_epoch`` tells it which."""
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(context.epoch)
    if isinstance(dataset, Iterable):
        return iter(dataset)
    made = dataset()
    if not isinstance(made, Iterable):  # iter() of a map-style dataset may never end
        raise TypeError(
            f"the loader's dataset is a function, {arguments(dataset)}, which must return an iterator or "
            f"be a generator function, but it returned {made!r}"
        )
    return iter(made)


ENDED = object()
"""Stands for the end of a stream."""


class CarriedStreams(Iterator["tuple[int, WorkerIterator, Any]"]):
    """The streams that one process makes in an epoch. They take turns, an element each.

    Yields a stream's number, its iterator, and its next element or, once, ``ENDED``. Streams whose elements
    are sent again come first, each until it is where it was. So turns go on as if there had been no break.

    Args:
        streams: Number and iterator of each stream, in the order of their turns.
    """

    def __init__(self, streams: Iterable[tuple[int, WorkerIterator]]) -> None:
        self._all = tuple(streams)
        self._turns = deque(self._all)
        self._late = deque(turn for turn in self._all if turn[1].position.first < turn[1].position.delivered)

    def __next__(self) -> tuple[int, WorkerIterator, Any]:
        if not self._turns:
            raise StopIteration
        number, stream = turn = (self._late or self._turns)[0]
        try:
            element = next(stream)
        except StopIteration:
            self._turns.remove(turn)
            element = ENDED
        position = stream.position
        if self._late:
            if element is ENDED or stream.number + 1 >= position.delivered:
                self._late.popleft()
        elif element is not ENDED and stream.number >= position.first:
            self._turns.rotate(-1)
        return number, stream, element

    def close(self) -> None:
        """Closes all iterators, and the files that they read."""
        with contextlib.ExitStack() as parts:
            for _, stream in self._all:
                parts.callback(stream.close)


def carried_streams(
    setup: WorkerSetup, epoch: int, positions: Mapping[int, Position], **facts: Any
) -> CarriedStreams:
    """Begins the streams that a process makes in an epoch; ``facts`` are those of the process' contexts."""
    contexts = {stream: replace(setup.context(stream, epoch), **facts) for stream in positions}
    own_process = facts.get("owns_process", False) or isinstance(setup.dataset, DataPipeline)
    around = None if own_process and setup.streams is None else with_own_generators
    begin = functools.partial(WorkerIterator, setup.dataset, around=around, streams=len(contexts))
    kind = "worker" if setup.streams is None else "stream"
    return CarriedStreams(
        (stream, begin(context, positions[stream], name=f"{kind} {context.worker}"))
        for stream, context in contexts.items()
    )


class OwnElements(Iterator[Any]):
    """The elements of a dataset that is no pipeline of ours, and the state that it has of its own.

    The dataset, its iterator or both may have the methods ``state_dict`` and ``load_state_dict``. ``start``
    makes the iterator for the first element. If the epoch is left early, the dataset gets the state back that
    it had at its start.
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
        close_all([iterator])
        for state in self._at_start:
            self._dataset.load_state_dict(state)
        self._at_start = []


class WrappedAround(RepeatedStream):
    """Yields a stream's elements, then those of other passes. It ends after a pass without elements."""

    @property
    def repeats(self) -> bool:
        """True if the last element came after the first pass."""
        return self._runs.number > 0


class PaddedStream(WrappedStream[Any]):
    """Yields a stream's elements, then the last one again and again. An empty stream stays empty.

    A stream that ``fetches`` makes the last element again when it is wanted. Another one keeps it.
    """

    def __init__(self, source: Stream[Any], fetches: bool) -> None:
        super().__init__(source)
        self._fetches = fetches
        self._last: tuple[Address, Any] | None = None  # the element is None until it is fetched
        self.repeats = False

    def __next__(self) -> tuple[Address, Any]:
        if not self.repeats:
            try:
                address, element = item = self._next()
            except StopIteration:
                if self._last is None:
                    raise
                self.repeats = True
            else:
                self._last = (address, None) if self._fetches else item
                return address, element
        assert self._last is not None
        address, element = self._last
        if element is None and self._fetches:
            self._last = address, self._source.fetch(address)
        return self._last

    def state_dict(self) -> dict[str, Any]:
        last = [] if self._last is None else [self._last[0]]
        return {**super().state_dict(), "held": last, "repeats": self.repeats}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._last = next(((as_address(address), None) for address in state["held"]), None)
        self.repeats = state["repeats"]


class WorkerIterator(Iterator[Any]):
    """Iterates a dataset in one worker, for one epoch.

    It yields the elements from ``position.at`` on, of which ``number`` is the last; the caller drops those
    before ``position.first``. ``start`` makes the iterator of a dataset that is no pipeline of ours, and
    ``around`` may wrap what gives elements without addresses. The process makes so many ``streams``. Errors
    call this one ``name``. If it goes on after its end, ``endless`` tells whether the last was a repeat.
    """

    def __init__(
        self,
        dataset: Any,
        context: Context,
        position: Position = START,
        start: Callable[[Any, Context], Iterator[Any]] = elements,
        around: Callable[[Iterator[Any], Context], Iterator[Any]] | None = None,
        streams: int = 1,
        name: str = "",
    ) -> None:
        self._streams = streams
        self._name = name or f"worker {context.worker}"
        self.position = position
        self._stream: Stream[Any] | OwnElements | None = None
        self.endless: WrappedAround | PaddedStream | None = None
        self._elements: Iterator[Any]
        state = None if position.state is None else unpack_state(position.state)
        self._due = time.monotonic() + STATE_EVERY_S
        self._exactly = self._each = False
        if is_pipeline(dataset):
            stream: Stream[Any] = dataset.stream(context)
            # In epochs of whole rounds (``loader.rounds``), it goes on as long as it is asked.
            if position.after_end == "wrap":
                stream = self.endless = WrappedAround(Epochs(repetitions=None), dataset.stream, context)
            elif position.after_end:
                stream = self.endless = PaddedStream(stream, fetches=dataset.non_resumable_part is None)
            # Where results come in any order, only a state right after an element tells which came before.
            self._each = takes_any_order(dataset)
            if self._each and position.at < position.first:
                raise ValueError(
                    f"this epoch cannot be continued: elements come in any order, and the state of "
                    f"{self._name} is {position.first - position.at} batches old. Begin the epoch again"
                )
            if dataset.non_resumable_part is None:
                self._stream = stream
                if state is not None:
                    stream.load_state_dict(state)
            self._elements = iter_elements(stream)
            if self._stream is None and around is not None:
                self._elements = around(self._elements, context)
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
            if self.number + 1 < self.position.first:
                raise made_fewer(self._name, self.number + 1, self.position.first) from None
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
        self._due = done + max(STATE_EVERY_S, (done - now) * self._streams / STATE_SHARE)
        return packed

    def close(self) -> None:
        """Closes the iterator, if it can be closed, and the files that it reads."""
        close_all([self._elements, self._stream])
        self._elements, self._stream = iter(()), None


def is_stateful(part: Any) -> bool:
    """True if an object has ``state_dict()`` and ``load_state_dict(state)``, as torchdata's loader asks for.

    Those of mosaicml's StreamingDataset take other arguments.
    """
    try:
        inspect.signature(part.state_dict).bind()
        inspect.signature(part.load_state_dict).bind({})
    except (AttributeError, TypeError, ValueError):
        return False
    return True


CountOf: TypeAlias = Callable[[Context, bool], int]
"""Counts the elements of an epoch; the arguments are ``context`` and ``exact`` of ``count_delivered``."""


def count_delivered(dataset: Any, contexts: Sequence[Context], exact: bool = False) -> Count:
    """Counts the elements that streams in these contexts give of a dataset from ``as_dataset``.

    Raises LengthUnknown. With ``exact``, trusts no description, ``with_length``, or ``len()`` of another
    dataset than a pipeline.
    """
    if not is_pipeline(dataset):
        if exact or not isinstance(dataset, Sized):
            raise LengthUnknown(f"a {type(dataset).__name__} has none")
        return Count(len(dataset))
    if dataset.given_length is not None and not exact:
        return Count(dataset.given_length)
    return sum((dataset.count_in(context, exact) for context in contexts), Count(0, 0))


def sample_counter(dataset: Any) -> Callable[[Any], int]:
    return dataset.samples_in if is_pipeline(dataset) and dataset.pipeline else rows_in


def with_own_generators(source: Iterator[Any], context: Context) -> Iterator[Any]:
    """The elements of a dataset or stream that appears to have random generators of its own."""
    own: States | None = None
    while True:
        users = generator_states()
        if own is None:
            seed_generators(process_seed(context))
        else:
            restore_rng(own)
        try:
            element = next(source)
        except StopIteration:
            return
        finally:
            own = generator_states()
            restore_rng(users)
        yield element


def process_seed(context: Context) -> int:
    """A seed of 64 bits for all random generators of this process in this epoch."""
    facts = (context.seed or 0, context.epoch, context.rank, context.worker)
    return int.from_bytes(hashlib.blake2b(repr(facts).encode(), digest_size=8).digest(), "little")
