"""Archives that are not plain files: streams, which are read once from their start, compressed or not.

The formats gzip, bzip2, xz and zstd are recognized by their first bytes.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from mpwds.errors import ShardError
from mpwds.imports import require

LOOK_BYTES = 10

_PIECE_BYTES = 256 * 1024
_XZ_MEMORY_BYTES = 512 * 1024 * 1024
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_RUN = 1  # the type of a block of one byte, repeated


class Readable(Protocol):
    """A stream: a file, a pipe, a response or a decompressor."""

    def read(self, size: int, /) -> bytes | None: ...
    def close(self) -> None: ...


class Input(Protocol):
    """The bytes of an archive, from an offset on.

    Attributes:
        url: The archive's name in errors.
        end: Where the archive ends; ``sys.maxsize`` until that is known.
        largest: The most data that a member may have; ``sys.maxsize`` unless the archive is compressed.
        detects_truncation: Whether an end that comes too early is an error, or the archive's length is known.
    """

    url: str
    end: int
    largest: int

    @property
    def detects_truncation(self) -> bool: ...

    def window(self, position: int, need: int) -> tuple[bytes, int]:
        """Bytes, and the index of ``position`` among them. Positions rise from call to call.

        At least ``need`` bytes from there on, often more; fewer only where the archive ends.
        """

    def data(self, position: int, size: int, padding: int) -> bytes:
        """The ``size`` bytes from ``position`` on; fewer, or less padding behind them, only at the end."""

    def close(self) -> None: ...


class StreamInput:
    """A stream at an offset of the archive. Reads pieces as they come: waits for no more than it needs."""

    def __init__(self, stream: Readable, url: str, offset: int, largest: int = sys.maxsize) -> None:
        self.url = url
        self.largest = largest
        self.end = sys.maxsize
        self._stream = stream
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

    @property
    def detects_truncation(self) -> bool:
        return detects_truncation(self._stream)

    def close(self) -> None:
        if self._stream is not getattr(sys.stdin, "buffer", None):  # which is the program's
            self._stream.close()

    def _skip_to(self, position: int) -> None:
        """Reads until the chunk, or its end, is at ``position``, or the stream ends."""
        while position > self._position + len(self._chunk):
            self._position += len(self._chunk)
            self._chunk = self._read(_PIECE_BYTES)
            if not self._chunk:
                self.end, self._position = self._position, position


def detects_truncation(stream: object) -> bool:
    """True if a stream raises if it ends too early; streams of the user's own are taken to do so.

    Those of ``gopen`` have an attribute that says so. Pipes and devices do not raise.
    """
    raw = getattr(stream, "raw", stream)
    is_pipe = type(raw) is io.FileIO and not stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
    return bool(getattr(raw, "detects_truncation", not is_pipe))


class PerhapsCut(io.FileIO):
    """A file that may hold only the beginning of what it was copied from."""

    detects_truncation = False


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


class Compression(NamedTuple):
    """A format. Its decompressors have the interface of ``lzma``'s, and decompress one member."""

    name: str
    decompressor: Callable[[], Any]


def compression_of(start: bytes) -> Compression | None:
    """The format of data that begins with ``start`` (at least ``LOOK_BYTES``); ``None`` if not compressed."""
    for pattern, compression in _COMPRESSIONS:
        if pattern.match(start):
            return compression
    return None


class Decompressed:
    """A stream of decompressed bytes; consecutive compressed members form one stream.

    Zero bytes behind the last member are padding; anything else there is an error.
    """

    detects_truncation = True  # the end of a member is marked

    def __init__(self, source: Input, compression: Compression) -> None:
        self._source = source
        self._compression = compression
        self._decompressor = compression.decompressor()
        self._position = 0  # in the compressed bytes
        self._pending = b""  # compressed bytes that were read and not yet decompressed
        self._ended = False

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, as soon as there are any; none at the end."""
        while not self._ended:
            decompressor = self._decompressor
            if decompressor.eof:
                self._begin_next(decompressor.unused_data)
                continue
            data = self._input() if decompressor.needs_input else b""
            try:
                piece: bytes = decompressor.decompress(data, size)
            except Exception as error:  # each of these modules raises a type of its own
                raise self._damaged(str(error)) from error
            if piece:
                return piece
        return b""

    def close(self) -> None:
        self._source.close()

    def _input(self) -> bytes:
        data, self._pending = self._pending or self._more(), b""
        if not data:
            raise self._damaged("it ends in the middle, so it is truncated")
        return data

    def _more(self) -> bytes:
        window, at = self._source.window(self._position, 1)
        data = window[at:]
        self._position += len(data)
        return data

    def _begin_next(self, unused: bytes) -> None:
        """Starts the next member. The last decompressor left ``unused``."""
        rest = (unused + self._pending).lstrip(b"\0")
        while len(rest) < LOOK_BYTES and (more := self._more()):
            rest = (rest + more).lstrip(b"\0")
        self._pending = rest
        following = compression_of(rest)
        if not rest:
            self._ended = True
        elif following is None or following.name != self._compression.name:
            raise self._damaged(f"the bytes behind its end are not {self._compression.name}: cut them off")
        else:
            self._decompressor = following.decompressor()

    def _damaged(self, why: str) -> ShardError:
        return ShardError(
            f"{self._source.url} cannot be decompressed ({self._compression.name}), {self._position} bytes "
            f"read: {why}"
        )


class _Gzip:
    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        piece = self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)
        self.needs_input = len(piece) < max_length
        return piece


class _ZstdFrame:
    """One zstd frame.

    ``zstandard`` has no limit for the result of a call, and a few kilobytes can become gigabytes. So it gets
    one block at a time, which becomes 128 KiB at most. (Pieces of a fixed size would have to be so small that
    reading takes half as long again.) A frame's window is at most 128 MiB (``zstd --long=27``).

    Source:
        RFC 8878, 3.1.1 (frames and blocks) and 3.1.2 (skippable frames).
    """

    def __init__(self) -> None:
        hint = "zstd-compressed shards need the package zstandard: pip install 'mpwds[zstd]'"
        zstandard = require("zstandard", hint)
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._input = b""
        self._output = b""
        self._has_begun = False
        self._is_skipped = False  # as frames of other magic numbers are
        self._checksum_bytes = 0
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._frame.eof and not self._output

    @property
    def unused_data(self) -> bytes:
        return bytes(self._frame.unused_data) + self._input

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        self._input += data
        while not self._output and not self._frame.eof and (size := self._next_bytes()):
            unit, self._input = self._input[:size], self._input[size:]
            self._output = self._frame.decompress(unit)
            if not self._has_begun:
                self._has_begun = True
                self._is_skipped = not unit.startswith(_ZSTD_MAGIC)
                self._checksum_bytes = 4 if unit[4] & 4 else 0
        stop = len(self._output) if max_length < 0 else max_length
        piece, self._output = self._output[:stop], self._output[stop:]
        self.needs_input = not self._output and not self._next_bytes()
        return piece

    def _next_bytes(self) -> int:
        """How many bytes to decompress next: a header or a block, or 0 while it is not complete."""
        held = self._input
        if self._is_skipped:
            return len(held)
        if self._has_begun:
            block = int.from_bytes(held[:3], "little")
            size = 3 + (1 if block >> 1 & 3 == _ZSTD_RUN else block >> 3) + (block & 1) * self._checksum_bytes
        elif len(held) < 5 or held.startswith(_ZSTD_MAGIC):
            descriptor = held[4] if len(held) > 4 else 0
            single_segment = descriptor >> 5 & 1
            size = (
                6 - single_segment + (0, 1, 2, 4)[descriptor & 3] + (single_segment, 2, 4, 8)[descriptor >> 6]
            )
        else:
            return len(held)
        return size if size <= len(held) else 0


def _xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)


_COMPRESSIONS = [
    (re.compile(rb"\x1f\x8b\x08"), Compression("gzip", _Gzip)),
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), Compression("zstd", _ZstdFrame)),
    (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), Compression("bzip2", bz2.BZ2Decompressor)),
    (re.compile(rb"\xfd7zXZ\0"), Compression("xz", _xz)),
]
