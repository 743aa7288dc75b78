"""Copies blocks to archives; a thread writes some while the next are read."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from mpwds.cli.resharding.raw_samples import Blocks
from mpwds.storage.writing.tar_writer import TarWriter

_BUFFERS = 3
_BUFFER_BYTES = 1024 * 1024  # handing on smaller ones costs more than the thread gains
_WRITE_BYTES = 256 * 1024  # larger writes cost ext4 four times the processor time, in pages as large


class Copier:
    """Copies blocks through a few buffers, whose memory is used again and again.

    Args:
        in_background: Write in a thread. ``close`` waits for it, so no write may last for long: that of a
            pipe waits for its reader, that of a file does not.
    """

    def __init__(self, in_background: bool) -> None:
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._filled = 0
        self._full: SimpleQueue[tuple[TarWriter, memoryview, int] | None] = SimpleQueue()
        self._free: SimpleQueue[memoryview | Exception] = SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, daemon=True) if in_background else None
        if self._thread is not None:
            for _ in range(_BUFFERS - 1):
                self._free.put(memoryview(bytearray(_BUFFER_BYTES)))
            self._thread.start()

    def copy(self, blocks: Blocks, start: int, stop: int, writer: TarWriter) -> None:
        """Appends bytes ``start`` to ``stop`` to an archive. Errors may be of what was copied before."""
        while start < stop:
            take = min(stop - start, _BUFFER_BYTES - self._filled)
            blocks.read_into(self._buffer[self._filled : self._filled + take], start)
            self._filled += take
            start += take
            if self._filled == _BUFFER_BYTES:
                self._flush(writer)

    def finish(self, writer: TarWriter) -> None:
        """Returns when everything is written."""
        self._flush(writer)
        if self._thread is not None:
            for buffer in [self._free_buffer() for _ in range(_BUFFERS - 1)]:
                self._free.put(buffer)

    def close(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._full.put(None)
            self._thread.join()

    def _flush(self, writer: TarWriter) -> None:
        work = (writer, self._buffer, self._filled)
        self._filled = 0
        if self._thread is None:
            _write(*work)
        else:
            self._full.put(work)
            self._buffer = self._free_buffer()

    def _free_buffer(self) -> memoryview:
        buffer = self._free.get()
        if isinstance(buffer, Exception):
            raise buffer
        return buffer

    def _write_all(self) -> None:
        while (work := self._full.get()) is not None:
            try:
                _write(*work)
                self._free.put(work[1])
            except Exception as error:
                self._free.put(error)


def _write(writer: TarWriter, buffer: memoryview, size: int) -> None:
    for start in range(0, size, _WRITE_BYTES):
        writer.write_blocks(buffer[start : min(start + _WRITE_BYTES, size)])
