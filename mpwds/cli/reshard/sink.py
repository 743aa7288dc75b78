"""Writes raw samples to shards."""

from __future__ import annotations

import itertools

from mpwds.cli.options import Duplicates, Resharding
from mpwds.cli.outputs import make_folders, refuse_existing
from mpwds.cli.reshard.raw_samples import Blocks, FileBlocks, RawSample
from mpwds.errors import ShardError, WrongArgument
from mpwds.storage.streams.base import ClosesOrDiscards
from mpwds.storage.streams.urls import without_credentials
from mpwds.storage.writing.destinations import is_series, numbered
from mpwds.storage.writing.tar_members import archive_bytes
from mpwds.storage.writing.tar_writer import TarWriter

_LONG_BYTES = 64 * 1024
_BUFFER_BYTES = 256 * 1024  # larger writes cost ext4 four times the processor time, in pages as large


class ShardSink(ClosesOrDiscards):
    """Writes raw samples to one shard, or to a series of ``shards``; counts ``samples`` and their ``bytes``.

    A shard appears under its name when it is complete; an exception inside ``with`` leaves the complete ones
    and drops the current one. As with ``cp``, the system decides when it writes them to the disk, unless
    ``sync``. A single sample may exceed ``maxsize``.
    """

    def __init__(self, options: Resharding, sync: bool = False) -> None:
        self.shards: list[str] = []
        self.samples = 0
        self.bytes = 0
        self._options = options
        self._sync = sync
        target = options.output
        self._is_series = is_series(target)
        if not self._is_series and (options.maxcount or options.maxsize):
            raise WrongArgument(f"{target} is one shard, so limits mean nothing: name a series, out-%06d.tar")
        refuse_existing([target], options.force)
        make_folders([target])
        self._writer: TarWriter | None = None
        if not self._is_series:
            self._open_next()

    def add(self, sample: RawSample) -> None:
        """Appends a sample to the current shard, or begins the next one if it does not fit."""
        if self._writer is not None and self._is_full(sample.size):
            self._finish()
        if self._writer is None:
            self._open_next()
        if sample.key in self._keys:
            sample = self._of_twin(sample)
        self._keys.add(sample.key)
        self._last_key = sample.key
        self._size += sample.size
        self._in_shard += 1
        self.samples += 1
        self.bytes += sample.size
        for start, stop in sample.extents:
            self._copier.copy(sample.blocks, start, stop)

    def close(self) -> None:
        try:
            self._finish()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Drops the shard that is being written; complete shards stay."""
        if self._writer is not None:
            self._writer.discard()

    def _is_full(self, size: int) -> bool:
        maxcount, maxsize = self._options.maxcount, self._options.maxsize
        return self._is_series and (
            (maxcount is not None and self._in_shard >= maxcount)
            or (maxsize is not None and archive_bytes(self._size + size) > maxsize)
        )

    def _open_next(self) -> None:
        name = numbered(self._options.output, len(self.shards))
        refuse_existing([name], self._options.force)
        self._writer = TarWriter(name, sync=self._sync, replace=self._options.force)
        self._copier = Copier(self._writer)
        self.shards.append(name)
        self._size = self._in_shard = 0
        self._keys: set[str] = set()
        self._last_key = ""

    def _finish(self) -> None:
        if self._writer is not None:
            self._copier.finish()
            self._writer.close()
            self._writer = None

    def _of_twin(self, sample: RawSample) -> RawSample:
        if self._options.duplicates is Duplicates.rename:
            keys = (f"{sample.key}-{number}" for number in itertools.count(1))
            return sample.renamed(next(key for key in keys if key not in self._keys))
        if self._options.duplicates is Duplicates.error:
            raise ShardError(
                f"{sample}: {without_credentials(self.shards[-1])} has a sample of this key already; "
                "--duplicates rename writes it under another key, --duplicates keep as it is"
            )
        if sample.key == self._last_key:
            raise ShardError(
                f"{sample}: the sample before it has the same key, so the two would be read as one; "
                "--duplicates rename writes it under another key"
            )
        return sample


class Copier:
    """Appends blocks to an archive, in order.

    Blocks of a file that follow each other are one run. The system copies long runs from file to file; short
    ones are put together in a buffer first.
    """

    def __init__(self, writer: TarWriter) -> None:
        self._writer = writer
        self._run: FileBlocks | None = None
        self._start = self._stop = 0
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._filled = 0

    def copy(self, blocks: Blocks, start: int, stop: int) -> None:
        """Appends the bytes from ``start`` to ``stop``, now or later. Errors may be of earlier ones."""
        if self._run is blocks and self._stop == start:
            self._stop = stop
            return
        self._end_run()
        if isinstance(blocks, FileBlocks):
            self._run, self._start, self._stop = blocks, start, stop
        else:  # they may be gone later
            self._append(blocks, start, stop)

    def finish(self) -> None:
        """Returns when everything is written."""
        self._end_run()
        self._flush()

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            self._append(run, self._start, self._stop)

    def _append(self, blocks: Blocks, start: int, stop: int) -> None:
        if stop - start >= _LONG_BYTES and (descriptor := blocks.descriptor) is not None:
            self._flush()
            start = self._writer.write_from(descriptor, start, stop)
        while start < stop:
            taken = min(stop - start, _BUFFER_BYTES - self._filled)
            blocks.read_into(self._buffer[self._filled : self._filled + taken], start)
            self._filled += taken
            start += taken
            if self._filled == _BUFFER_BYTES:
                self._flush()

    def _flush(self) -> None:
        self._writer.write_blocks(self._buffer[: self._filled])
        self._filled = 0
