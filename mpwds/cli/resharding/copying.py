"""Copies blocks to an archive."""

from __future__ import annotations

from mpwds.cli.resharding.raw_samples import Blocks, FileBlocks
from mpwds.storage.writing.tar_writer import TarWriter

_LONG_BYTES = 64 * 1024
_BUFFER_BYTES = 256 * 1024  # larger writes cost ext4 four times the processor time, in pages as large


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
        if blocks.descriptor is not None and stop - start >= _LONG_BYTES:
            self._flush()
            start = self._writer.write_from(blocks.descriptor, start, stop)
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
