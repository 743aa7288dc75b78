"""Gather elements into batches: ``batched``, ``listed``, and ``bucketed`` by size."""

from __future__ import annotations

import sys
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import inf
from numbers import Integral, Real
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import arguments, changed, check_function, check_whole, explain, not_an_end
from mpwds.pipeline.filter import DataclassStage, Retrying, attribute, rows_in
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.randomness import Call, seeded, unseeded
from mpwds.pipeline.stages.collation import (
    PADDED,
    Padded,
    collate_by,
    default_collation_fn,
    defer,
    stack,
)
from mpwds.pipeline.stream import Address, Count, Description, RowStep, Stream, fetch_held
from mpwds.suggestions import shown, suggest_arguments
from mpwds.trees import parts
from mpwds.warn import warn


@suggest_arguments
def batched(
    batchsize: int | None = None,
    collation_fn: CollationFunction | None = default_collation_fn,
    partial: bool = True,
    *,
    max_bytes: int | None = None,
    by: Callable[[Any], float] | None = None,
    max_total: float | None = None,
    include_padding: bool = False,
    ragged: Any = (),
    handler: Handler = reraise_exception,
) -> Batched | BatchedBySize:
    """Stage that gathers successive elements into batches of a fixed number or a limited size.

    With a limit on the size, an element that does not fit begins the next batch. An element above the limit
    becomes a batch of its own; the first such element causes a warning.

    Args:
        batchsize: Elements in a batch, 20 by default. With a limit on the size, the most elements in a batch,
            by default unlimited.
        collation_fn: Makes the batch from the list of elements; ``None`` leaves it a list. ``mpwds.padded()``
            pads arrays of different shapes.
        partial: Whether the elements that remain at the end make a smaller batch; otherwise they are dropped.
        max_bytes: The most bytes of data in a batch.
        by: Measures an element and returns a number of at least 0, such as its number of tokens.
        max_total: The largest sum of the measures of a batch's elements.
        include_padding: Whether each element counts as much as the largest one of its batch, because the
            batch will be padded.
        ragged: A field of byte strings, or several (indices in tuples), for decoders on the device. Its
            column is a list of uint8 arrays of one dimension, which from workers are views of one block.
        handler: Called when a batch cannot be made, or an element cannot be measured; the default raises the
            exception. To continue skips the batch, or the element.

    Raises:
        ValueError: ``batchsize`` or a limit is not above 0, or arguments do not go together; or, while
            iterating, ``by`` returns something other than a size, or a field of ``ragged`` is missing.
        TypeError: An argument is not a number, or a function is not callable; or, while iterating, a field
            of ``ragged`` does not hold bytes.

    Source:
        ``webdataset.filters.batched``, without the limits on the size.

    Example:
        >>> list(batched(2)([(1, "a"), (2, "b"), (3, "c")]))
        [(array([1, 2]), ['a', 'b']), (array([3]), ['c'])]
        >>> list(batched(by=len, max_total=4, collation_fn=None)(["ab", "cd", "efg", "h"]))
        [['ab', 'cd'], ['efg', 'h']]
    """
    if max_bytes is None and by is None and max_total is None and not include_padding:
        fields = (ragged,) if isinstance(ragged, (str, int)) else tuple(ragged or ())
        return Batched(20 if batchsize is None else batchsize, collation_fn, partial, fields, handler)
    if ragged:
        raise ValueError("batched: ragged takes a fixed number of elements, no limit on their size")
    if max_bytes is not None and by is None and max_total is None:
        by, max_total = size_in_bytes, max_bytes
    elif max_bytes is not None or by is None or max_total is None:
        raise ValueError("batched: to limit the size of a batch, pass either max_bytes, or by and max_total")
    return BatchedBySize(by, [], batchsize, collation_fn, partial, max_total, include_padding, handler)


@suggest_arguments
def listed(batchsize: int = 20, partial: bool = True) -> Batched:
    """Stage that gathers elements into lists: ``batched`` without collation.

    Example:
        >>> list(listed(2)("abc"))
        [['a', 'b'], ['c']]
    """
    return Batched(batchsize, None, partial)


@suggest_arguments
def bucketed(
    by: Callable[[Any], float],
    edges: Iterable[float],
    batchsize: int | Iterable[int] | None = None,
    collation_fn: CollationFunction | None = PADDED,
    partial: bool = True,
    *,
    max_total: float | None = None,
    include_padding: bool = False,
    handler: Handler = reraise_exception,
) -> Bucketed:
    """Stage that gathers elements of similar size into batches, so that padding wastes little.

    Elements of similar size collect in a bucket, which is yielded when its batch is complete. So elements
    leave in another order than they came in, and the stage holds up to one batch for each bucket. Shuffle
    before this stage: batches of all sizes then mix as the elements do. At the end the stage yields the
    buckets' remaining elements, small sizes first.

    Args:
        by: Measures an element, as for ``batched``.
        edges: Sizes at which one bucket ends and the next begins, in ascending order. With ``[64, 256]`` the
            buckets are below 64, from 64 to below 256, and from 256 on.
        batchsize: Elements in a batch, or a number for each bucket (one more than there are edges). By
            default 20, or with ``max_total`` as many as fit.
        collation_fn: As for ``batched``. ``mpwds.padded()``, the default, pads arrays with 0 up to the
            largest shape of the batch.
        partial: As for ``batched``, like ``max_total``, ``include_padding`` and ``handler``.

    Raises:
        ValueError: The edges do not ascend, a number is not above 0, or the number of batch sizes differs
            from the number of buckets; or, while iterating, ``by`` returns something other than a size.
        TypeError: An argument is not a number, or a function is not callable.

    Source:
        ``tf.data.Dataset.bucket_by_sequence_length``.

    Example:
        >>> import numpy as np
        >>> list(bucketed(len, edges=[3], batchsize=2, collation_fn=None)(["a", "abcd", "b", "abc", "c"]))
        [['a', 'b'], ['abcd', 'abc'], ['c']]
        >>> list(bucketed(len, edges=[3], batchsize=2)([np.array([1, 2]), np.array([3])]))
        [array([[1, 2],
               [3, 0]])]
    """
    if batchsize is None and max_total is None:
        batchsize = 20
    sizes = tuple(batchsize) if isinstance(batchsize, Iterable) else batchsize
    return Bucketed(by, list(edges), sizes, collation_fn, partial, max_total, include_padding, handler)


batch = batched  # in webdataset 0.1's documentation


CollationFunction = Callable[[list[Any]], Any]


class Batching(DataclassStage):
    """Base of the stages that make batches."""

    collation_fn: CollationFunction | None
    ragged: tuple[Any, ...] = ()
    handler: Handler

    samples_in = staticmethod(rows_in)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.collation_fn is not None:
            check_function(self.called, self.collation_fn, "a function or None as collation_fn")


@dataclass(frozen=True)
class Batched(Batching, called="batched"):
    batchsize: int
    collation_fn: CollationFunction | None = default_collation_fn
    partial: bool = True
    ragged: tuple[Any, ...] = ()
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("batched", "batchsize", self.batchsize, least=1)
        if self.ragged and self.collation_fn is not default_collation_fn:
            raise ValueError("batched: ragged works with the default collation_fn only")

    def count_of(self, incoming: Count) -> Count:
        if self.handler is not reraise_exception:
            return super().count_of(incoming)
        count = incoming.batched(self.batchsize, self.partial)
        keeps_rows = self.collation_fn is default_collation_fn or isinstance(self.collation_fn, Padded)
        return count if keeps_rows else Count(count.elements)

    @property
    def stacks_values(self) -> bool:
        return self.collation_fn is default_collation_fn

    @property
    def row_step(self) -> RowStep | None:
        if not self.stacks_values or self.ragged or self.handler is not reraise_exception:
            return None
        return RowStep("batch", {"batchsize": self.batchsize, "drop_last": not self.partial})

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _FixedBatches(source, self, context)


class Batches(Retrying):
    """Base of the streams of batches. A batch's address is the tuple of its elements' addresses."""

    def __init__(self, source: Stream[Any], stage: Batching, context: Context) -> None:
        super().__init__(source, stage, stage.handler)
        self._collate, self._call_collate = _how_to_collate(stage, context)
        self._unmade: list[Address] = []  # the elements of batches that could not be made

    def _batch(self, held: Sequence[tuple[Address, Any]]) -> tuple[Address, Any] | None:
        """The batch of some elements; ``None`` if collation failed and the handler skips the batch."""
        addresses, elements = zip(*held, strict=True)
        try:
            return addresses, self._call_collate(self._collate, addresses, list(elements))
        except Exception as error:
            unmade, self._unmade = self._unmade, [*self._unmade, *addresses]
            error = not_an_end(error)  # under a name that is deleted: it would keep this frame
            explain(error, self._stage, self, addresses)
            self._decide(error)
            self._unmade = unmade  # the handler skips the batch
            return None

    @abstractmethod
    def _held_addresses(self) -> list[Address]:
        """The addresses of the elements that wait for their batch."""

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "held": [*self._unmade, *self._held_addresses(), *state["held"]]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._unmade = []

    def fetch(self, address: Any) -> Any:
        elements = [element for _, element in fetch_held(self._source, address)]
        return self._call_collate(self._collate, address, elements)

    def describe(self, address: Any, element: object = None) -> Description:
        first, last = self._source.describe(address[0]), self._source.describe(address[-1])
        if len(address) == 1:
            return first.row_of("a batch")
        return Description(f"a batch of {len(address)}, from {first} to {last}", first.url)


class _FixedBatches(Batches):
    _stage: Batched

    def __init__(self, source: Stream[Any], stage: Batched, context: Context) -> None:
        super().__init__(source, stage, context)
        self._held: list[tuple[Address, Any]] = []

    def __next__(self) -> tuple[Address, Any]:
        while True:
            held = self._held  # filled one by one: elements taken before an error are kept
            try:
                for _ in range(self._stage.batchsize - len(held)):
                    held.append(self._next())
            except StopIteration:
                if not held or not self._stage.partial:
                    self._held = []
                    raise
            self._held = []
            batch = self._batch(held)
            if batch is not None:
                return batch

    def _held_addresses(self) -> list[Address]:
        return [address for address, _ in self._held]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._held = []


def _how_to_collate(stage: Batching, context: Context) -> tuple[CollationFunction, Call]:
    function = stage.collation_fn
    if function is None:
        return list, unseeded
    stacker = defer if context.deferred else stack
    if function is default_collation_fn:
        return partial(collate_by, stacker, stage.ragged), unseeded
    if isinstance(function, Padded):
        return partial(function.collate_by, stacker), unseeded
    return function, seeded(context)


@dataclass(frozen=True)
class Bucketed(Batching, called="bucketed"):
    by: Callable[[Any], float]
    edges: list[float]
    batchsize: int | tuple[int, ...] | None = None
    collation_fn: CollationFunction | None = PADDED
    partial: bool = True
    max_total: float | None = None
    include_padding: bool = False
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(low < high for low, high in pairwise(self.edges)):
            raise ValueError(f"bucketed: edges must ascend, got {self.edges}")
        sizes = self.batchsizes()
        if len(sizes) != len(self.edges) + 1:
            raise ValueError(
                f"bucketed: {len(self.edges)} edges make {len(self.edges) + 1} buckets, "
                f"got {len(sizes)} batch sizes"
            )
        if self.include_padding and self.max_total is None:
            raise ValueError("bucketed: include_padding changes how max_total counts, so pass max_total too")
        check_function(self.called, self.by, "by to be a function that measures an element")
        if self.max_total is not None and not isinstance(self.max_total, Real):
            raise TypeError(f"{self.called}: a limit must be a number, got {shown(self.max_total)}")
        if self.max_total is not None and not self.max_total > 0:
            raise ValueError(f"{self.called}: a limit must be above 0, got {self.max_total}")
        for batchsize in sizes:
            if batchsize is not None:
                check_whole(self.called, "batchsize", batchsize, least=1)

    def batchsizes(self) -> tuple[int | None, ...]:
        if isinstance(self.batchsize, tuple):
            return self.batchsize
        return (self.batchsize,) * (len(self.edges) + 1)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Binned(source, self, context)


@dataclass(frozen=True)
class BatchedBySize(Bucketed, called="batched"):
    """The stage that ``batched(max_bytes=...)`` and ``batched(by=..., max_total=...)`` make: one bucket."""

    collation_fn: CollationFunction | None = default_collation_fn

    def __str__(self) -> str:
        count = [] if self.batchsize is None else [self.batchsize]
        limit: dict[str, object] = {"by": self.by, "max_total": self.max_total}
        if self.by is size_in_bytes:
            limit = {"max_bytes": self.max_total}
        more = changed(self, "collation_fn", "partial", "include_padding", "handler")
        return f"batched({arguments(*count, **limit, **more)})"


def size_in_bytes(element: Any) -> int:
    """Bytes of an element's data, which ``batched(max_bytes=...)`` limits.

    Counts the data of arrays and tensors, the lengths of strings and bytes, and the items of dicts, lists,
    tuples and dataclasses; other objects count as ``sys.getsizeof`` says.
    """
    size = attribute(element, "nbytes")
    if isinstance(size, int):
        return size
    if isinstance(element, (bytes, bytearray, str)):
        return len(element)
    values = parts(element)
    return sys.getsizeof(element) if values is None else sum(map(size_in_bytes, values))


@dataclass
class _Bucket:
    """The elements of one batch that is being filled, up to ``most`` elements and ``max_total``."""

    most: float
    max_total: float
    include_padding: bool
    held: list[tuple[Address, Any]] = field(default_factory=list)
    total: float = 0
    largest: float = 0

    def add(self, item: tuple[Address, Any], size: float) -> None:
        self.held.append(item)
        self.total += size
        self.largest = max(self.largest, size)

    def empty(self) -> list[tuple[Address, Any]]:
        """Takes out all elements."""
        held, self.held, self.total, self.largest = self.held, [], 0, 0
        return held

    def has_room_for(self, size: float) -> bool:
        """True if the limits allow one more element of this size."""
        count = len(self.held) + 1
        total = max(self.largest, size) * count if self.include_padding else self.total + size
        return count <= self.most and total <= self.max_total

    @property
    def is_full(self) -> bool:
        """True if the limits allow no further element with a size above 0."""
        return not self.has_room_for(0) or (not self.include_padding and self.total >= self.max_total)


class _Binned(Batches):
    """The stream of batches that fill up side by side.

    A bucket is yielded when it is full or the next element does not fit; the others at the end, in order.
    """

    _stage: Bucketed

    def __init__(self, source: Stream[Any], stage: Bucketed, context: Context) -> None:
        super().__init__(source, stage, context)
        self._call_by = unseeded if stage.by is size_in_bytes else seeded(context)
        most_total = inf if stage.max_total is None else stage.max_total
        self._buckets = [
            _Bucket(inf if most is None else most, most_total, stage.include_padding)
            for most in stage.batchsizes()
        ]
        self._full: _Bucket | None = None  # is yielded before another element is taken
        self._warned = False

    def __next__(self) -> tuple[Address, Any]:
        while True:
            full, self._full = self._full, None
            held = self._more() if full is None else full.empty()
            if held and (batch := self._batch(held)) is not None:
                return batch

    def _more(self) -> list[tuple[Address, Any]]:
        """Takes an element; returns the elements of a batch that it completes, if any."""
        try:
            address, element = self._next()
            try:
                size = self._size(address, element)
            except Exception as error:
                self._handle(error, address, element)
                return []
            return self._put((address, element), size)
        except StopIteration:
            return self._left_over()

    def _put(self, item: tuple[Address, Any], size: float) -> list[tuple[Address, Any]]:
        bucket = self._buckets[bisect_right(self._stage.edges, size)]
        complete = [] if bucket.has_room_for(size) else bucket.empty()
        if not bucket.has_room_for(size):
            self._warn_of(item, size)
        bucket.add(item, size)
        if bucket.is_full:
            self._full = bucket
        return complete

    def _left_over(self) -> list[tuple[Address, Any]]:
        for bucket in self._buckets:
            held = bucket.empty()
            if held and self._stage.partial:
                return held
        raise StopIteration

    def _batch(self, held: Any) -> tuple[Address, Any] | None:
        try:
            return super()._batch(held)
        except StopIteration:  # the handler ends the stream here
            for bucket in self._buckets:
                bucket.empty()
            raise

    def _size(self, address: Address, element: Any) -> float:
        size = self._call_by(self._stage.by, address, element)
        if not isinstance(size, Real) or not float(size) >= 0:
            raise ValueError(f"an element's size must be a number of at least 0, got {shown(size)}")
        return int(size) if isinstance(size, Integral) else float(size)

    def _warn_of(self, item: tuple[Address, Any], size: float) -> None:
        if not self._warned:
            self._warned = True
            stage, place = self._stage, self._source.describe(*item)
            warn(
                f"{place} has a size of {size}, above the limit of {stage.max_total} for a batch in {stage}: "
                "it becomes a batch of its own, as do other elements above the limit; select() can drop them",
                UserWarning,
            )

    def _held_addresses(self) -> list[Address]:
        return [address for bucket in self._buckets for address, _ in bucket.held]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for bucket in self._buckets:
            bucket.empty()
