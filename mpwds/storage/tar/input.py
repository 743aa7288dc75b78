"""Opens an archive: a plain file is read at any offset, a stream once from its start."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable
from typing import BinaryIO

from mpwds.errors import ShardError
from mpwds.storage.streams.urls import without_credentials
from mpwds.storage.tar.damage import no_header, nothing_there
from mpwds.storage.tar.header import BLOCK, begins_archive
from mpwds.storage.tar.streams import Decompressed, Input, StreamInput, compression_of

OpenAt = Callable[[str, int], BinaryIO]
"""``open(url, offset)``: a stream of a resource's bytes from ``offset`` on."""

_WINDOW_BYTES = 256 * 1024
_LEAST_WINDOW_BYTES = 4 * 1024

# glibc gives freed memory back to the system and has it cleared again for the next large member, 5 us for
# 100 kB, until it has seen a block this large freed. Nothing touches the block, so this costs 20 us once.
bytes(16 * 1024 * 1024)


class FileInput:
    """An ``Input`` of a regular file, by ``pread``: skipped bytes are not read, large data is copied once.

    docs/design.md says why the file is not mapped.
    """

    largest = sys.maxsize
    detects_truncation = True

    def __init__(self, stream: BinaryIO, url: str) -> None:
        self.url = url
        self._stream = stream
        self._descriptor = stream.fileno()
        self.end = os.fstat(self._descriptor).st_size
        # Behind large data there often is a small member and then large data again: start small.
        self._window_bytes = _LEAST_WINDOW_BYTES
        self._reached = 0  # the end of the last window

    def window(self, position: int, need: int) -> tuple[bytes, int]:
        if position > self._reached:  # data that nobody wants was skipped: there may be more of it
            self._window_bytes = _LEAST_WINDOW_BYTES
        size = self._window_bytes
        if size < _WINDOW_BYTES:
            self._window_bytes = 4 * size
        if size < need:
            size = need
        if position + size > self.end:
            size = max(0, self.end - position)
            need = min(need, size)
        window = os.pread(self._descriptor, size, position)
        if len(window) < need:
            window += self._rest(position + len(window), need - len(window))
        self._reached = position + len(window)
        return window, 0

    def data(self, position: int, size: int, padding: int) -> bytes:
        self._window_bytes = _LEAST_WINDOW_BYTES
        data = os.pread(self._descriptor, size, position)
        return data if len(data) == size else data + self._rest(position + len(data), size - len(data))

    def close(self) -> None:
        if self._stream is not getattr(sys.stdin, "buffer", None):  # which is the program's
            self._stream.close()

    def _rest(self, position: int, size: int) -> bytes:
        """Continues after ``pread``, which returns at most 2 GiB, and less when it is interrupted."""
        pieces = []
        while size > 0:
            piece = os.pread(self._descriptor, size, position)
            if not piece:
                raise ShardError(
                    f"{self.url} became shorter while it was read: it ended at offset {self.end}, and now "
                    f"nothing is left at {position}"
                )
            pieces.append(piece)
            position += len(piece)
            size -= len(piece)
        return b"".join(pieces)


def open_archive(url: str, offset: int, open: OpenAt, max_decompressed_bytes: int) -> Input:
    """Opens an archive, decompressed if need be, for reading from ``offset`` on. Close the result.

    Raises ``ShardError`` if nothing can be read at ``offset``.
    """
    fault: Exception | None = None
    if offset > 0:
        try:
            return _open_inside(url, offset, open)
        except Exception as error:  # as it must be if the archive is compressed: then look at its beginning
            fault = error
    source = _input_of(open(url, 0), url, 0)
    try:
        start = source.window(0, BLOCK)[0][:BLOCK]
        compression = None if begins_archive(start) else compression_of(start)
        if compression is not None:
            source = StreamInput(Decompressed(source, compression), source.url, 0, max_decompressed_bytes)
            source.window(offset, BLOCK)
            if offset > source.end or source.end == 0:
                raise nothing_there(source, offset)
        elif fault is not None:
            raise fault
        elif not start:
            raise nothing_there(source, offset)
    except BaseException:
        source.close()
        raise
    return source


def _open_inside(url: str, offset: int, open: OpenAt) -> Input:
    source = _input_of(open(url, offset), url, offset)
    try:
        block = source.window(offset, BLOCK)[0][:BLOCK]
        if offset > source.end or not (block or isinstance(source, FileInput)):
            raise nothing_there(source, offset)
        if not begins_archive(block):
            raise no_header(block, source, offset, offset, offset)
    except BaseException:
        source.close()
        raise
    return source


def _input_of(stream: BinaryIO, url: str, offset: int) -> Input:
    """The fastest input for ``stream``, which stands at ``offset`` of the archive.

    Objects that decompress or decrypt have the descriptor of their file, too, so only Python's own plain
    files are read by descriptor.
    """
    raw = stream.raw if type(stream) is io.BufferedReader else stream
    is_file = type(raw) is io.FileIO and stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
    if is_file and stream.tell() == offset:
        return FileInput(stream, without_credentials(url))
    return StreamInput(stream, without_credentials(url), offset)
