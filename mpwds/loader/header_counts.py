"""How many batches this rank has, by the headers of the shards that it reads."""

from __future__ import annotations

import time
from typing import Final

from mpwds.errors import MpwdsError
from mpwds.loader.lengths import CountOf, LengthUnknown
from mpwds.pipeline.context import Context
from mpwds.pipeline.sources.sample_counts import SampleCounts
from mpwds.pipeline.sources.shard_stream import file_of

COUNTING_S = 1.0
"""How long an epoch's beginning may wait for shards to be counted: about what workers take to start."""

_counts: Final = SampleCounts()


def count_by_headers(count: CountOf, context: Context, seconds: float = COUNTING_S) -> int | None:
    """The number of batches of a rank.

    What was counted is remembered, so that what one epoch has no time for is done by the next.

    Args:
        count: The number, if the samples of shards can be counted.
        context: Epoch, seed and rank.
        seconds: How long it may take.

    Returns:
        ``None`` if it cannot be known: the pipeline may drop or add samples, shards are not on this machine,
            are compressed, or are damaged (which the worker that reads them reports), or it takes too long.
    """
    deadline = time.monotonic() + seconds

    def samples_of(url: str) -> int:
        path = file_of(url)
        number = None if path is None else _counts.count(path, deadline)
        if number is None:
            raise LengthUnknown(f"the samples of {url} are not quickly counted")
        return number

    try:
        return count(context, exact=True, samples_of=samples_of)
    except (LengthUnknown, MpwdsError, OSError):
        return None
