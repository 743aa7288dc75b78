"""Gather elements into batches: ``batched`` and ``listed``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpwds.mistakes import explained
from mpwds.pipeline.collation.collate import default_collation_fn
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.stages.batches import Batched, CollationFunction
from mpwds.pipeline.stages.bucketed import BatchedBySize, size_in_bytes


@explained
def batched(
    batchsize: int | None = None,
    collation_fn: CollationFunction | None = default_collation_fn,
    partial: bool = True,
    *,
    max_bytes: int | None = None,
    by: Callable[[Any], float] | None = None,
    max_total: float | None = None,
    include_padding: bool = False,
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
        handler: Called when a batch cannot be made or an element cannot be measured; the default raises the
            exception. To continue skips all elements of the batch, or that element.

    Raises:
        ValueError: ``batchsize`` or a limit is not above 0, or the limits do not go together; or, while
            iterating, ``by`` returns something other than a size.
        TypeError: An argument is not a number, or a function is not callable.

    Source:
        ``webdataset.filters.batched``, without the limits on the size.

    Example:
        >>> list(batched(2)([(1, "a"), (2, "b"), (3, "c")]))
        [(array([1, 2]), ['a', 'b']), (array([3]), ['c'])]
        >>> list(batched(by=len, max_total=4, collation_fn=None)(["ab", "cd", "efg", "h"]))
        [['ab', 'cd'], ['efg', 'h']]
    """
    if max_bytes is None and by is None and max_total is None:
        if include_padding:
            raise ValueError("batched: include_padding changes how by= counts, so pass by and max_total too")
        return Batched(20 if batchsize is None else batchsize, collation_fn, partial, handler)
    if max_bytes is not None:
        if by is not None or max_total is not None:
            raise ValueError("batched: pass max_bytes, or by and max_total")
        by, max_total = size_in_bytes, max_bytes
    if by is None or max_total is None:
        raise ValueError("batched: by measures an element and max_total limits the sum: pass both")
    return BatchedBySize(by, (), batchsize, collation_fn, partial, max_total, include_padding, handler)


@explained
def listed(batchsize: int = 20, partial: bool = True) -> Batched:
    """Stage that gathers elements into lists: ``batched`` without collation.

    Args:
        batchsize: Elements in a list.
        partial: Whether the elements that remain at the end make a shorter list; otherwise they are dropped.

    Raises:
        ValueError: ``batchsize`` is below 1.
        TypeError: ``batchsize`` is not an integer.

    Example:
        >>> list(listed(2)("abc"))
        [['a', 'b'], ['c']]
    """
    return Batched(batchsize, None, partial)


batch = batched  # in webdataset 0.1's documentation
