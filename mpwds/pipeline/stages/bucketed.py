"""Gather elements of similar size into batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mpwds.pipeline.collation.padded import PADDED
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import rows_in
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stages.batches import CollationFunction, check_collation_fn
from mpwds.pipeline.stages.bins import Bin, Binned, check_sizes
from mpwds.pipeline.stream import Stream


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
    """Stage that gathers elements of similar size into batches, so that padding them wastes little.

    Each bucket fills up by itself and is passed on when its batch is complete. So elements leave in another
    order than they came in, and up to one batch for each bucket is held. Shuffle before this stage: batches
    of all sizes then mix as the elements do. At the end the rest of the buckets follows, the small ones
    first.

    Args:
        by: Measures an element, its number of tokens for example: a number, 0 or above.
        edges: Sizes at which one bucket ends and the next begins, in ascending order: with ``[64, 256]`` the
            buckets are below 64, from 64 to below 256, and from 256 on.
        batchsize: Elements in a batch, or a number for each bucket (one more than there are edges): 20 by
            default, or as many as fit if ``max_total`` is given.
        collation_fn: Makes the batch from the list of elements; ``None`` leaves it a list. By default
            ``mpwds.padded()``, which pads arrays of different shapes with 0, up to the largest of the batch.
        partial: Whether the rest of the buckets makes smaller batches at the end; else it is dropped.
        max_total: The largest sum of the measures of a batch's elements. An element above it becomes a batch
            of its own; the first one causes a warning.
        include_padding: Whether each element counts as much as the largest one of its batch, as it does once
            the batch is padded.
        handler: What to do about an element that cannot be measured or a batch that cannot be made; raises by
            default.

    Raises:
        ValueError: The edges do not ascend, a number is not above 0, or there are not as many batch sizes as
            buckets; or, while iterating, ``by`` returns no size.
        TypeError: An argument is not a number, or a function cannot be called.

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
    sizes = batchsize if batchsize is None or isinstance(batchsize, int) else tuple(batchsize)
    return Bucketed(by, tuple(edges), sizes, collation_fn, partial, max_total, include_padding, handler)


@dataclass(frozen=True)
class Bucketed(Filter):
    """The stage that ``bucketed`` makes."""

    by: Callable[[Any], float]
    edges: tuple[float, ...]
    batchsize: int | tuple[int, ...] | None = 20
    collation_fn: CollationFunction | None = PADDED
    partial: bool = True
    max_total: float | None = None
    include_padding: bool = False
    handler: Handler = reraise_exception

    samples_in = staticmethod(rows_in)

    def __post_init__(self) -> None:
        if not all(low < high for low, high in pairwise(self.edges)):
            raise ValueError(f"bucketed: edges must ascend, got {list(self.edges)}")
        sizes = self._batchsizes()
        if len(sizes) != len(self.edges) + 1:
            raise ValueError(
                f"bucketed: {len(self.edges)} edges make {len(self.edges) + 1} buckets, "
                f"got {len(sizes)} batch sizes"
            )
        if self.batchsize is None and self.max_total is None:
            raise ValueError("bucketed: batchsize or max_total must say when a batch is complete")
        if self.include_padding and self.max_total is None:
            raise ValueError("bucketed: include_padding says how max_total is counted, so it goes with that")
        check_sizes("bucketed", self.by, self.max_total, sizes)
        check_collation_fn("bucketed", self.collation_fn)
        check_handler("bucketed", self.handler)

    def __str__(self) -> str:
        more = options(
            batchsize=(self.batchsize, None),
            collation_fn=(self.collation_fn, PADDED),
            partial=(self.partial, True),
            max_total=(self.max_total, None),
            include_padding=(self.include_padding, False),
            handler=(self.handler, reraise_exception),
        )
        return f"bucketed({arguments(self.by, list(self.edges), **more)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        buckets = [Bin(size, self.max_total, self.include_padding) for size in self._batchsizes()]
        return Binned(
            source, self, buckets, lambda size: bisect_right(self.edges, size), seeded(context), context
        )

    def _batchsizes(self) -> tuple[int | None, ...]:
        if isinstance(self.batchsize, tuple):
            return self.batchsize
        return (self.batchsize,) * (len(self.edges) + 1)
