"""Streams: the datasets that a StreamingDataset of mosaicml-streaming mixes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from mpwds.pipeline.indexed.source import Numbers
from mpwds.storage.mds.shards_v2 import MDSShards


@dataclass(kw_only=True, eq=False)
class Stream:
    """A dataset of a mix. What is ``None`` is as the ``StreamingDataset`` says: it is in the copies of the
    streams that the dataset has in ``streams``, with all three of ``proportion``, ``repeat`` and ``choose``.

    Args:
        local: The folder in which its shards are read; one for each ``remote``.
        proportion: Its part of an epoch, relative to the other streams' proportions.
        repeat: How often an epoch has each of its samples; 0.5 chooses every second at random.
        choose: How many of its samples an epoch has.
        remote, split, download_retry, download_timeout, validate_hash, keep_zip: As for ``StreamingDataset``.

    Raises:
        ValueError: Several of ``proportion``, ``repeat`` and ``choose`` are given, or one is negative.

    Source:
        ``streaming.Stream`` (mosaicml-streaming 0.13).

    Example:
        >>> Stream(remote="s3://bucket/x", proportion=0.2).proportion
        0.2
    """

    remote: str | None = None
    local: str | None = None
    split: str | None = None
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None
    download_retry: int | None = None
    download_timeout: float | None = None
    validate_hash: str | None = None
    keep_zip: bool | None = None

    def __post_init__(self) -> None:
        weights = [each for each in (self.proportion, self.repeat, self.choose) if each is not None]
        if len(weights) > 1 or min(weights, default=0) < 0:
            raise ValueError(
                "a Stream takes one of proportion, repeat and choose, which must not be negative"
            )


def weigh(streams: Sequence[Stream], counts: Sequence[int], epoch_size: int | None, seed: int) -> list[int]:
    """Counts the samples of each stream in an epoch, as mosaicml-streaming does. The streams get all weights.

    ``counts`` are how many samples each has. ``epoch_size`` is how many an epoch is to have, if streams have
    proportions. The seed determines of which streams there is one sample more, if these do not come out even.
    Raises ``ValueError`` if some streams have proportions and others do not, or if ``epoch_size`` is given
    with ``repeat`` or ``choose``.
    """
    proportions = [stream.proportion for stream in streams]
    is_weighted = any(stream.repeat is not None or stream.choose is not None for stream in streams)
    if None in proportions and any(each is not None for each in proportions):
        raise ValueError("either all streams have a proportion, or none has")
    if is_weighted and epoch_size is not None:
        raise ValueError("epoch_size is for streams with proportions: repeat and choose set the size, too")
    own = [_own_size(stream, count) for stream, count in zip(streams, counts, strict=True)]
    parts = np.array(own if None in proportions else proportions, np.float64)
    whole, sizes = float(parts.sum()) or 1.0, np.array(own)
    if epoch_size is not None or None not in proportions:
        total = sum(counts) if epoch_size is None else epoch_size
        if total < 0 or (total and not parts.any()):
            raise ValueError(f"an epoch cannot have {total} samples of streams with the proportions {parts}")
        sizes = (total * (parts / whole)).astype(np.int64)
        sizes[np.random.default_rng(seed).choice(len(sizes), total - sizes.sum(), replace=False)] += 1
    found: list[int] = sizes.tolist()
    for stream, part, size, count in zip(streams, parts.tolist(), found, counts, strict=True):
        stream.proportion = part / whole
        stream.repeat, stream.choose = size / (count or 1), size
    return found


def samples_of_an_epoch(sizes: Sequence[int], counts: Sequence[int], seed: int, epoch: int) -> Numbers | None:
    """Numbers of the samples of an epoch, counted through all streams; ``None`` for each sample once.

    ``sizes`` and ``counts`` are how many samples of each stream an epoch has, and the stream.

    Example:
        >>> samples_of_an_epoch([4, 1], [2, 3], 0, 0)
        array([0, 1, 0, 1, 4])
    """
    if list(sizes) == list(counts):
        return None
    random = np.random.default_rng([seed, epoch])
    chosen, first = [], 0
    for size, count in zip(sizes, counts, strict=True):
        if size and not count:
            raise ValueError(f"an epoch cannot have {size} samples of a stream that has none")
        whole, rest = divmod(size, count) if count else (0, 0)
        part = np.sort(random.choice(count, rest, replace=False)) if rest else np.arange(0)
        chosen += [*[first + np.arange(count)] * whole, first + part]
        first += count
    return np.concatenate(chosen).astype(np.int64)


def _own_size(stream: Stream, count: int) -> int:
    if stream.choose is not None:
        return stream.choose
    return count if stream.repeat is None else int(stream.repeat * count)


class JoinedShards:
    """The shards of several datasets, one after the other."""

    def __init__(self, parts: Sequence[MDSShards]) -> None:
        self._parts = parts
        self._starts = [0, *accumulate(len(part.urls) for part in parts)]
        self.urls: Sequence[str] = [url for part in parts for url in part.urls]
        self.lengths: Sequence[int] = [length for part in parts for length in part.lengths]

    def read(self, shard: int, index: int) -> dict[str, Any]:
        """The fields of a sample."""
        part = bisect_right(self._starts, shard) - 1
        return self._parts[part].read(shard - self._starts[part], index)

    def close(self) -> None:
        """Closes the files that are open."""
        for part in self._parts:
            part.close()
