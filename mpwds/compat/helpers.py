"""webdataset's small parts: datasets of another length, ``repeatedly``, ``identity``, checks of arguments."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sized
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import Epochs, RepeatedStream, Repetitions, Start
from mpwds.pipeline.stream import Address, Count, OrderedStream, Origin, Stream
from mpwds.suggestions import shown
from mpwds.warn import warn

T = TypeVar("T")


class ResizedDataset(DataPipeline):
    """A dataset that is repeated without end, cut into epochs of a number of elements.

    Each epoch continues where the one before ended, in each worker by itself, so all elements come in turn.
    An epoch that was left early counts as a whole. Workers that are new in each epoch must run through all
    epochs before, so keep them (``persistent_workers=True``; workers of ``MultiLoader`` stay). Workers of
    torch's own ``DataLoader`` do not know the epoch, so each of its epochs starts the dataset again.

    Args:
        dataset: Anything that a pipeline can begin with: another pipeline, a list, an iterable.
        length: Elements in an epoch, in each worker, at least 1; ``len(dataset)`` by default.
        nominal: Result of ``len()``; ``length`` by default.

    Example:
        >>> dataset = ResizedDataset([1, 2, 3], length=5, nominal=100)
        >>> list(dataset), len(dataset)
        ([1, 2, 3, 1, 2], 100)
        >>> list(dataset)
        [3, 1, 2, 3, 1]
    """

    def __init__(self, dataset: Any, length: int | None = None, nominal: int | None = None) -> None:
        length = len(dataset) if length is None else length
        repeated = DataPipeline(dataset)
        repeated.given_epochs = ContinuedEpochs(None, length)
        super().__init__(repeated)
        self._call = f"ResizedDataset({type(dataset).__name__}, {length})"
        self.with_length(length if nominal is None else nominal, silent=True)


ChoppedDataset = ResizedDataset


class _Latest:
    """Holds the stream of the latest epoch that this process has begun. A copy of it is empty."""

    stream: _Continued | None = None

    def __reduce__(self) -> Any:
        return _Latest, ()


@dataclass(frozen=True)
class ContinuedEpochs(Epochs):
    """Epochs of ``limit`` elements, each of which begins where the one before ended.

    So epoch ``e`` begins at element ``e * limit`` of the endless repetition. A process that ran the epoch
    before goes on with its stream; another one must run through the elements that come before.
    """

    _latest: _Latest = field(default_factory=_Latest, compare=False, repr=False)

    def stream(self, start: Start, context: Context) -> Stream[Any]:
        return _Continued(self, start, context, self._latest)


class _Continued(RepeatedStream):
    _counters = (*RepeatedStream._counters, "_is_there")

    def __init__(self, epochs: ContinuedEpochs, start: Start, context: Context, latest: _Latest) -> None:
        super().__init__(epochs, start, replace(context, epoch=0))
        self._start = start
        self._latest = latest
        self._limit = epochs.limit or 0
        self._before = context.epoch * self._limit
        self._is_there = False  # the runs have come to the next element

    def __next__(self) -> tuple[Address, Any]:
        if not self._is_there and self._left:
            self._go_there()
        return super().__next__()

    @property
    def _place(self) -> int:
        """The number, in the endless repetition, of the next element."""
        return self._before + self._limit - (self._left or 0)

    def _go_there(self) -> None:
        latest, self._latest.stream = self._latest.stream, self
        place = 0
        usable = latest is not None and latest._is_there and latest._context == self._context
        if latest is not None and usable and latest._place <= self._place:
            place, self._runs, self._empty = latest._place, latest._runs, latest._empty
            latest._is_there = False  # a program that still iterates it gets other runs
        else:
            self._runs, self._empty = Repetitions(self._start, self._context), True
        if self._place - place > self._limit:
            warn(
                f"ResizedDataset: epoch {self._before // self._limit} begins after {self._place} elements, "
                f"and this process must run through {self._place - place} of them first: use a loader that "
                "keeps its workers (persistent_workers=True), or resume from a state within an epoch"
            )
        self._is_there = True
        for _ in range(self._place - place):
            self._advance()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._runs = Repetitions(self._start, self._context)
        super().load_state_dict(state)
        self._latest.stream = self


def with_epoch(dataset: Any, length: int) -> DataPipeline:
    """A dataset with epochs of ``length`` elements: ``DataPipeline(dataset).with_epoch(length)``.

    Example:
        >>> list(with_epoch("abc", 5))
        ['a', 'b', 'c', 'a', 'b']
    """
    return DataPipeline(dataset).with_epoch(length)


def with_length(dataset: Any, length: int) -> DataPipeline:
    """A dataset whose ``len()`` is ``length``: ``DataPipeline(dataset).with_length(length, silent=True)``.

    Example:
        >>> len(with_length("abc", 1000))
        1000
    """
    return DataPipeline(dataset).with_length(length, silent=True)


def repeatedly(
    source: Iterable[Any],
    nepochs: int | None = None,
    nbatches: int | None = None,
    nsamples: int | None = None,
    batchsize: Callable[[Any], int] | None = None,
) -> Iterator[Any]:
    """Yields the elements of ``source`` again and again; nothing if it is empty.

    Args:
        source: An iterable, such as a loader.
        nepochs: How often to iterate it; without end by default.
        nbatches: Elements after which to end.
        nsamples: Samples after which to end, if the elements are batches.
        batchsize: Returns the number of samples in a batch; by default the length of its first column.

    Example:
        >>> list(repeatedly("ab", nbatches=5))
        ['a', 'b', 'a', 'b', 'a']
    """
    epoch = batches = samples = 0
    while True:
        before = batches
        for batch in source:
            yield batch
            batches += 1
            if nbatches is not None and batches >= nbatches:
                return
            if nsamples is not None:
                samples += guess_batchsize(batch) if batchsize is None else batchsize(batch)
                if samples >= nsamples:
                    return
        epoch += 1
        if batches == before or (nepochs is not None and epoch >= nepochs):
            return


def guess_batchsize(batch: Any) -> int:
    """The number of samples in a batch: the length of its first column."""
    columns = list(batch.values()) if isinstance(batch, dict) else batch
    column: Sized = columns[0]
    return len(column)


class MockDataset(DataPipeline):
    """A dataset that yields ``sample`` again and again: what a pipeline costs without reading.

    As in webdataset, an epoch yields it ``length`` times in every worker.

    Example:
        >>> list(MockDataset("x", 3).map(str.upper))
        ['X', 'X', 'X']
    """

    def __init__(self, sample: Any, length: int) -> None:
        mock = _Mock(sample, length)
        super().__init__(mock)
        self._call = str(mock)
        self.sample = sample
        self.length = length


class _Mock(Origin):
    def __init__(self, sample: Any, length: int) -> None:
        if length < 0:
            raise ValueError(f"MockDataset: length must not be negative, got {length}")
        self._sample = sample
        self._length = length

    def __str__(self) -> str:
        return f"MockDataset({type(self._sample).__name__}, {self._length})"

    def count_in(self, context: Context, exact: bool = True) -> Count:
        return Count(self._length)

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return _Repeated(self._sample, self._length)


class _Repeated(OrderedStream[Any]):
    def __init__(self, sample: Any, length: int) -> None:
        super().__init__(range(length))
        self._sample = sample

    def fetch(self, address: Any) -> Any:
        return self._sample


def identity(x: T) -> T:
    """Returns its argument: for places that want a function, in pipelines that are pickled."""
    return x


def check(value: object, msg: str = "") -> None:
    """Checks that ``value`` is true; raises ``ValueError`` with ``msg`` in its text otherwise, as all checks.

    Example:
        >>> check(0, "shards")
        Traceback (most recent call last):
        ValueError: shards: expected a true value, got 0
    """
    _require(bool(value), msg, "a true value", value)


def checktype(value: object, types: type | tuple[type, ...], msg: str = "") -> None:
    """Checks that ``value`` is an instance of ``types``."""
    _require(isinstance(value, types), msg, f"an instance of {types}", value)


def checkmember(value: object, values: Container[Any], msg: str = "") -> None:
    """Checks that ``value`` is in ``values``."""
    _require(value in values, msg, f"one of {values}", value)


def checkrange(value: Any, lo: Any, hi: Any, msg: str = "") -> None:
    """Checks that ``lo <= value <= hi``."""
    _require(lo <= value <= hi, msg, f"a value from {lo} to {hi}", value)


def checkcallable(value: object, msg: str = "") -> None:
    """Checks that ``value`` can be called."""
    _require(callable(value), msg, "a function", value)


def checknotnone(value: object, msg: str = "") -> None:
    """Checks that ``value`` is not ``None``."""
    _require(value is not None, msg, "a value other than None", value)


def _require(holds: bool, msg: str, expected: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{msg or 'check'}: expected {expected}, got {shown(value)}")
