"""Gather elements into batches of a limited size."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.collation.collate import default_collation_fn
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import rows_in
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.randomness import seeded, unseeded
from mpwds.pipeline.stages.batches import CollationFunction, check_collation_fn
from mpwds.pipeline.stages.bins import Bin, Binned, check_sizes
from mpwds.pipeline.stream import Stream


def size_in_bytes(element: Any) -> int:
    """Bytes of an element's data: what ``batched(max_bytes=...)`` counts.

    Args:
        element: Arrays and tensors count with their data, strings and bytes with their lengths, a dict, list
            or tuple with what it holds, other objects with the memory that they say to take.

    Example:
        >>> import numpy as np
        >>> size_in_bytes({"__key__": "a", "image": np.zeros((3, 4), np.float32)})
        49
    """
    size = getattr(element, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(element, (bytes, bytearray, str)):
        return len(element)
    if isinstance(element, dict):
        return sum(map(size_in_bytes, element.values()))
    if isinstance(element, (list, tuple)):
        return sum(map(size_in_bytes, element))
    return sys.getsizeof(element)


@dataclass(frozen=True)
class BatchedBySize(Filter):
    """The stage that ``batched(max_bytes=...)`` and ``batched(by=..., max_total=...)`` make."""

    by: Callable[[Any], float]
    max_total: float
    batchsize: int | None = None
    collation_fn: CollationFunction | None = default_collation_fn
    partial: bool = True
    include_padding: bool = False
    handler: Handler = reraise_exception

    samples_in = staticmethod(rows_in)

    def __post_init__(self) -> None:
        check_sizes("batched", self.by, self.max_total, (self.batchsize,))
        check_collation_fn("batched", self.collation_fn)
        check_handler("batched", self.handler)

    def __str__(self) -> str:
        count = [] if self.batchsize is None else [self.batchsize]
        limit: dict[str, object] = {"by": self.by, "max_total": self.max_total}
        if self.by is size_in_bytes:
            limit = {"max_bytes": self.max_total}
        more = options(
            collation_fn=(self.collation_fn, default_collation_fn),
            partial=(self.partial, True),
            include_padding=(self.include_padding, False),
            handler=(self.handler, reraise_exception),
        )
        return f"batched({arguments(*count, **limit, **more)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        only = Bin(self.batchsize, self.max_total, self.include_padding)
        call = unseeded if self.by is size_in_bytes else seeded(context)
        return Binned(source, self, [only], lambda size: 0, call, context)
