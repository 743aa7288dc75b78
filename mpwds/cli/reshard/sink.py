"""Writes raw samples to shards."""

from __future__ import annotations

import itertools
from functools import partial

from mpwds.cli.options import Duplicates, Resharding
from mpwds.cli.outputs import make_folders, refuse_existing, refuse_limits
from mpwds.cli.reshard.raw_samples import Blocks, FileBlocks, RawSample
from mpwds.errors import ShardError
from mpwds.storage.streams.urls import without_credentials
from mpwds.storage.writing.sinks import SeriesSink
from mpwds.storage.writing.tar_writer import TarWriter

_LONG_BYTES = 64 * 1024
_BUFFER_BYTES = 256 * 1024  # larger writes cost ext4 four times the processor time, in pages as large


class ShardSink(SeriesSink["Copier"]):
    """Writes raw samples to one shard, or to a series of ``shards``; counts ``samples`` and their ``bytes``.

    As with ``cp``, the system decides when it writes them to the disk, unless ``sync``.
    """

    def __init__(self, options: Resharding, sync: bool = False) -> None:
        self.samples = 0
        self.bytes = 0
        self._duplicates = options.duplicates
        target, force = options.output, options.force
        refuse_limits(target, options.maxcount or options.maxsize)
        refuse_existing([target], force)
        make_folders([target])
        open = partial(Copier, sync=sync, replace=force)
        super().__init__(target, open, options.maxcount, options.maxsize, force)

    def add(self, sample: RawSample) -> None:
        """Appends a sample to the current shard, or begins the next one if it does not fit."""
        shard = self.shard_for(sample.size)
        if sample.key in shard.keys:
            sample = self._of_twin(sample, shard)
        shard.keys.add(sample.key)
        shard.last_key = sample.key
        self.samples += 1
        self.bytes += sample.size
        for start, stop in sample.extents:
            shard.copy(sample.blocks, start, stop)

    def _of_twin(self, sample: RawSample, shard: Copier) -> RawSample:
        if self._duplicates is Duplicates.rename:
            keys = (f"{sample.key}-{number}" for number in itertools.count(1))
            renamed = sample.renamed(next(key for key in keys if key not in shard.keys))
            self._size += renamed.size - sample.size  # headers of a longer name may take more
            return renamed
        if self._duplicates is Duplicates.error:
            raise ShardError(
                f"{sample}: {without_credentials(self.shards[-1])} has a sample of this key already; "
                "--duplicates rename writes it under another key, --duplicates keep as it is"
            )
        if sample.key == shard.last_key:
            raise ShardError(
                f"{sample}: the sample before it has the same key, so the two would be read as one; "
                "--duplicates rename writes it under another key"
            )
        return sample


class Copier:
    """A tar archive to which blocks are appended, in order; ``keys`` are those of its samples.

    Blocks of a file that follow each other are one run. The system copies long runs from file to file; short
    ones are put together in a buffer first.
    """

    def __init__(self, name: str, sync: bool, replace: bool) -> None:
        self.keys: set[str] = set()
        self.last_key = ""
        self._writer = TarWriter(name, sync=sync, replace=replace)
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

    def close(self) -> None:
        """Completes the archive; on an error it is discarded."""
        try:
            self._end_run()
            self._flush()
        except BaseException:
            self.discard()
            raise
        self._writer.close()

    def discard(self) -> None:
        self._writer.discard()

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
