"""How many samples tar shards on this machine have, by their headers alone."""

from __future__ import annotations

import math
import os
import stat
import time
from typing import BinaryIO

from mpwds.pipeline.sources.grouping import split_name
from mpwds.storage.tar.entries import read_entries
from mpwds.storage.tar.header import BLOCK, begins_archive


class SampleCounts:
    """Counts samples of shards, of each once: a shard is known again by path, size and time of change.

    Example:
        >>> import io, tarfile, tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".tar") as shard:
        ...     with tarfile.open(shard.name, "w") as archive:
        ...         for name in "a/0.png", "a/0.cls", "a/1.png":
        ...             archive.addfile(tarfile.TarInfo(name), io.BytesIO())
        ...     counts = SampleCounts()
        ...     counts.count(shard.name), counts.count(shard.name, deadline=0)
        (2, 2)
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], int]] = {}

    def count(self, path: str, deadline: float = math.inf) -> int | None:
        """The number of samples of a shard; ``None`` if it is no file, or as :func:`count_samples` says.

        Args:
            path: A tar archive on this machine.
            deadline: When to give up, in the time of ``time.monotonic``.

        Raises:
            ShardError, OSError: The archive is damaged, or cannot be read.
        """
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return None
        version = status.st_size, status.st_mtime_ns
        known = self._known.get(path)
        if known is not None and known[0] == version:
            return known[1]
        number = count_samples(path, deadline)
        if number is not None:
            self._known[path] = version, number
        return number


def count_samples(path: str, deadline: float = math.inf) -> int | None:
    """How many samples ``read_samples`` finds in a shard.

    Args:
        path: A tar archive on this machine.
        deadline: When to give up, in the time of ``time.monotonic``.

    Returns:
        The number; ``None`` if the archive is compressed, so that its headers are not to be had without
        its data, or if the deadline has come.

    Raises:
        ShardError, OSError: The archive is damaged, or cannot be read.
    """
    with open(path, "rb") as file:
        if not begins_archive(file.read(BLOCK)):
            return None
    counted = 0
    last = ""

    def skip(name: str) -> None:
        nonlocal counted, last
        if time.monotonic() > deadline:
            raise _DeadlineReached
        key, _ = split_name(name)
        if key and key != last:
            counted, last = counted + 1, key

    try:
        for _ in read_entries(path, 0, _open, skip, warn_of_no_end=False):
            pass  # none comes: `skip` passes over all members
    except _DeadlineReached:
        return None
    return counted


class _DeadlineReached(Exception):
    """There is no time to count the rest."""


def _open(path: str, _offset: int) -> BinaryIO:
    return open(path, "rb")
