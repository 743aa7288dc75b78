"""The bytes of an archive: a file is read at any offset, a stream once from its start."""

from __future__ import annotations

import fcntl
import io
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, Protocol, TypeAlias

from mpwds.errors import ShardError

_WINDOW_BYTES = 256 * 1024
_LEAST_WINDOW_BYTES = 4 * 1024
_PIECE_BYTES = 256 * 1024
_PIPE_BYTES = 256 * 1024

# glibc gives freed memory back to the system and then has it cleared anew for the next large member, 5 us for
# 100 kB, until it has seen a block this large freed. Nothing touches the block, so this costs 20 us once.
bytes(16 * 1024 * 1024)


class Readable(Protocol):
    """A stream: a file, a pipe, a response or a decompressor."""

    def read(self, size: int, /) -> bytes | None: ...
    def close(self) -> None: ...


class FileInput:
    """A regular file, read with ``pread``: skipped bytes are not read, and large data is copied once.

    Mapping the file would replace the copy by page faults, which cost about the same once the bytes are used
    (100 kB: 27 to 36 us mapped, 29 to 30 read; see ``tools/bench/pipeline.py``), and a mapped file that gets
    shorter kills the process. ``close`` closes the stream.

    Attributes:
        url: The archive's name in errors.
        end: Where the archive ends; ``sys.maxsize`` until that is known.
        apart_bytes: Data of this size or more should be read with ``data`` rather than with ``window``.
        largest: The most data that a member may have; ``sys.maxsize`` unless the archive is compressed.
    """

    apart_bytes = 32 * 1024
    largest = sys.maxsize

    def __init__(self, stream: BinaryIO, url: str) -> None:
        self.url = url
        self._stream = stream
        self._descriptor = stream.fileno()
        self.end = os.fstat(self._descriptor).st_size
        # Behind large data there often is a small member and then large data again: start small.
        self._window_bytes = _LEAST_WINDOW_BYTES

    def window(self, position: int, need: int) -> tuple[bytes, int]:
        """Bytes, and the index of ``position`` among them. Positions rise from call to call.

        At least ``need`` bytes from there on, often more; fewer only where the archive ends.
        """
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
        return window, 0

    def data(self, position: int, size: int, padding: int) -> bytes:
        """The ``size`` bytes from ``position`` on; fewer, or less padding behind them, only at the end."""
        self._window_bytes = _LEAST_WINDOW_BYTES
        data = os.pread(self._descriptor, size, position)
        return data if len(data) == size else data + self._rest(position + len(data), size - len(data))

    def close(self) -> None:
        _close(self._stream)

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


class StreamInput:
    """A stream at an offset of the archive, read in pieces as they come: waits for no more than it needs."""

    apart_bytes = 32 * 1024

    def __init__(self, stream: Readable, url: str, offset: int, largest: int = sys.maxsize) -> None:
        self.url = url
        self.largest = largest
        self.end = sys.maxsize
        self._stream = stream
        widen_pipe(stream)
        self._read = reader(stream)
        self._chunk = b""
        self._position = offset  # of the chunk

    def window(self, position: int, need: int) -> tuple[bytes, int]:
        self._skip_to(position)
        at = position - self._position
        have = len(self._chunk) - at
        if have >= need:
            return self._chunk, at
        pieces = [self._chunk[at:]] if have > 0 else []
        while have < need and (piece := self._read(_PIECE_BYTES)):
            pieces.append(piece)
            have += len(piece)
        if have < need:
            self.end = min(self.end, position + have)
        self._chunk = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._position = position
        return self._chunk, 0

    def data(self, position: int, size: int, padding: int) -> bytes:
        self._skip_to(position)
        at = position - self._position
        if at + size <= len(self._chunk):
            data = self._chunk[at : at + size]
        else:
            # The rest is copied, so that the chunk's memory can be used again; later pieces are views.
            pieces: list[bytes | memoryview] = [self._chunk[at:]]
            missing = size - len(pieces[0])
            while missing > 0 and (piece := self._read(_PIECE_BYTES)):
                self._position += len(self._chunk)
                self._chunk = piece
                pieces.append(memoryview(piece)[:missing])
                missing -= len(pieces[-1])
            data = b"".join(pieces)
            if missing > 0:
                self.end = min(self.end, self._position + len(self._chunk))
                return data
        self.window(position + size, padding)
        return data

    def close(self) -> None:
        _close(self._stream)

    def _skip_to(self, position: int) -> None:
        """Reads until the chunk, or its end, is at ``position``, or the stream ends."""
        while position > self._position + len(self._chunk):
            self._position += len(self._chunk)
            self._chunk = self._read(_PIECE_BYTES)
            if not self._chunk:
                self.end, self._position = self._position, position


Input: TypeAlias = "FileInput | StreamInput"


def input_of(stream: BinaryIO, url: str, offset: int) -> Input:
    """The fastest input for ``stream``, which stands at ``offset`` of the archive."""
    if is_regular_file(stream) and stream.tell() == offset:
        return FileInput(stream, url)
    return StreamInput(stream, url, offset)


def _close(stream: Readable) -> None:
    if stream is not getattr(sys.stdin, "buffer", None):  # which is the program's
        stream.close()


def is_regular_file(stream: BinaryIO) -> bool:
    """Whether ``stream`` yields a regular file's bytes unchanged.

    Objects that decompress or decrypt have the descriptor of their file, too, so only Python's own plain
    files count.
    """
    raw = stream.raw if type(stream) is io.BufferedReader else stream
    return type(raw) is io.FileIO and stat.S_ISREG(os.fstat(raw.fileno()).st_mode)


def reader(stream: Readable) -> Callable[[int], bytes]:
    """A function that returns up to ``size`` bytes of ``stream``, as soon as there are any."""
    if isinstance(stream, io.RawIOBase):
        # Its own read copies once more than that of a buffer around it, which is never filled.
        stream = io.BufferedReader(stream)
    read: Callable[[int], bytes | None] = getattr(stream, "read1", stream.read)
    buffered = isinstance(stream, io.BufferedReader)

    def read_some(size: int) -> bytes:
        piece = read(size)
        if not piece and buffered:  # at its end; or it would block, which only `read` tells
            piece = stream.read(1)
        if piece is None:
            raise BlockingIOError(f"{stream!r} does not block: shards are read from blocking streams")
        return piece

    return read_some


def widen_pipe(stream: object) -> None:
    """Lets a pipe hold 256 KiB instead of 64, if allowed: large members arrive three times as fast."""
    with suppress(AttributeError, OSError, ValueError):  # no descriptor, no pipe, or not allowed
        descriptor = stream.fileno()  # type: ignore[attr-defined]  # see above
        if fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ) < _PIPE_BYTES:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
