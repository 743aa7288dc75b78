"""Whether a loader makes its epochs even, and their length; see ``even_iterator`` for how."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Protocol, get_args

from mpwds.loader.engine.options import Even
from mpwds.loader.ranks.lengths import CountOf
from mpwds.pipeline.context import Context

EVEN: tuple[Even, ...] = get_args(Even)

WINDOW = 4
"""Batches that ranks agree on at once: an agreement takes about as long as three threads take to wake up."""

MOST_AHEAD = WINDOW + 1
"""Batches that may be taken ahead of the training loop."""


class Evened(Protocol):
    """The attributes of a loader that even epochs depend on; see ``MultiLoader``."""

    even: Even | None
    timeout: float | None
    seed: int | None


def is_to_be_even(loader: Evened) -> bool:
    """Whether a loader's epochs are made even: the loader asks for it, and there are several ranks."""
    return loader.even is not None and world_size() > 1


def even_length(even: Even | None, count: CountOf) -> int:
    """The ``len()`` of a loader: batches on this rank, or on every rank if epochs are even.

    Raises:
        LengthUnknown: The number is not known; the message says why.
    """
    here = Context.current()
    if even is None:
        return count(here)
    counts = [count(rank) for rank in all_ranks(here)]
    return min(counts) if even == "drop" else max(counts)


def all_ranks(here: Context) -> list[Context]:
    """The contexts of all ranks, from that of one."""
    return [replace(here, rank=rank) for rank in range(here.world_size)]


def world_size() -> int:
    """The number of ranks among which shards are dealt, or that ``torch.distributed`` knows."""
    distributed = torch_distributed()
    return max(Context.current().world_size, 1 if distributed is None else distributed.get_world_size())


def torch_distributed() -> Any:
    """``torch.distributed`` if it is initialised."""
    distributed = sys.modules.get("torch.distributed")
    usable = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if usable else None
