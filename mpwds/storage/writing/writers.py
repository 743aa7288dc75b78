"""Writes samples to a series of tar archives."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from mpwds.storage.closing import ClosesOrDiscards
from mpwds.storage.streams.urls import without_credentials
from mpwds.storage.writing.destinations import OwnedStream
from mpwds.storage.writing.tar_writer import Sample, TarWriter, named_sample


class ShardWriter(ClosesOrDiscards):
    """Writes samples to a series of tar archives, and begins a new one when one is full.

    Each shard appears under its name when it is complete; an exception inside ``with`` leaves the complete
    ones and drops the current one. A shard without samples is never left.

    Args:
        pattern: The shards' paths or URLs with a ``%`` directive for the number: ``"digits-%06d.tar"``.
        maxcount: Samples in a shard, at most.
        maxsize: Bytes of data in a shard: the sample that reaches it is the shard's last.
        post: Called with the name of each complete shard.
        start_shard: Number of the first shard.
        verbose: Print a line on standard error for each complete shard.
        opener: Called with each shard's name, returns the binary stream to write it to, which is closed when
            the shard is complete. To drop a shard, the writer calls the stream's ``discard`` (streams of
            ``gopen`` and fsspec have one), or else its ``__exit__`` with an error. A plain file is removed.
            Any other stream is left open, with a warning.
        **kw: Arguments of ``TarWriter``.

    Attributes:
        shard: Number of the next shard.
        fname: Name of the current shard.
        count: Samples in the current shard.
        size: Bytes of data in the current shard.
        total: Samples in all shards.

    Raises:
        ValueError: The pattern has no ``%`` directive for an integer, or a limit is not positive.

    Source:
        ``webdataset.writer.ShardWriter``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with ShardWriter(f"{directory}/x-%03d.tar", maxcount=2, verbose=0) as sink:
        ...         for index in range(3):
        ...             sink.write({"__key__": f"{index:06d}", "cls": index})
        ...     sorted(os.listdir(directory))
        ['x-000.tar', 'x-001.tar']
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        maxcount: int = 100000,
        maxsize: float = 3e9,
        post: Callable[[str], object] | None = None,
        start_shard: int = 0,
        verbose: int = 1,
        opener: Callable[[str], BinaryIO] | None = None,
        **kw: Any,
    ) -> None:
        self.pattern = check_pattern(os.fspath(pattern))
        if maxcount < 1 or maxsize <= 0:
            raise ValueError(f"maxcount ({maxcount}) and maxsize ({maxsize}) must be positive")
        self.maxcount = maxcount
        self.maxsize = maxsize
        self.post = post
        self.verbose = verbose
        self.opener = opener
        self.shard = start_shard
        self.total = 0
        self._options = kw
        self._closed = False
        self._writer: TarWriter | None = self._open_next()

    def write(self, sample: Sample) -> None:
        """Write one sample, in a new shard if the current one is full. Raises as ``TarWriter.write``."""
        self._check_open()
        if self._writer is None or self.count >= self.maxcount or self.size >= self.maxsize:
            self.finish()
            self._writer = self._open_next()
        size = self._writer.write(sample)
        self.count += 1
        self.total += 1
        self.size += size

    def dwrite(self, key: str | None = None, **fields: Any) -> None:
        """Write a sample given as keyword arguments, as ``TarWriter.dwrite`` does."""
        self.write(named_sample(key, fields))

    def next_stream(self) -> None:
        """End the current shard, if there is a sample in it, and begin the next."""
        self._check_open()
        if self._writer is None or self.count or self._writer.discarded:
            self.finish()
            self._writer = self._open_next()

    def finish(self) -> None:
        """Complete the current shard; the next sample begins another."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if not self.count or writer.discarded:
            writer.discard()
            return
        writer.close()
        if self.verbose:
            figures = f"{self.count} samples, {shown_bytes(self.size)}; {self.total} samples in all"
            print(f"wrote {self.fname}: {figures}", file=sys.stderr)
        if self.post is not None:
            self.post(self.fname)

    def close(self) -> None:
        """Complete the last shard. Closing twice does nothing."""
        if not self._closed:
            self._closed = True
            self.finish()

    def discard(self) -> None:
        """Close and drop the shard that is being written; complete shards stay."""
        if not self._closed:
            self._closed = True
            if self._writer is not None:
                self._writer.discard()

    def _open_next(self) -> TarWriter:
        self.fname = self.pattern % self.shard
        if self.opener is None:
            writer = TarWriter(self.fname, **self._options)
        else:
            opened = OwnedStream(self.opener(self.fname), without_credentials(self.fname))
            try:
                writer = TarWriter(opened, **self._options)
            except BaseException:
                opened.discard()
                raise
        self.shard += 1
        self.count = 0
        self.size = 0
        return writer

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the shard writer is closed: no more samples can be written to it")


def shown_bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def check_pattern(pattern: str) -> str:
    try:
        if pattern % 0 != pattern % 1:
            return pattern
        reason = "it gives every shard the same name"
    except (TypeError, ValueError) as error:
        reason = str(error)
    raise ValueError(
        f"shard pattern {pattern!r} needs one % directive for the number, such as %06d: {reason}"
    )
