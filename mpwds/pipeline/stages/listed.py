"""Gather elements into plain lists."""

from __future__ import annotations

from mpwds.pipeline.stages.batched import Batched


def listed(batchsize: int = 20, partial: bool = True) -> Batched:
    """Stage that gathers elements into lists: ``batched`` without collation.

    Args:
        batchsize: Elements per list.
        partial: Whether what remains at the end makes a shorter list; else it is dropped.

    Raises:
        ValueError: ``batchsize`` is below 1.

    Example:
        >>> list(listed(2)("abc"))
        [['a', 'b'], ['c']]
    """
    return Batched(batchsize, None, partial)
