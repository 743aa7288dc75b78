"""Streams that decompress what they read: gzip, bzip2, xz and zstd, told by their first bytes."""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

from mpwds.errors import ShardError
from mpwds.storage.tar.input import Input
from mpwds.storage.tar.zstd_frame import ZstdFrame

LOOK_BYTES = 10

_XZ_MEMORY_BYTES = 512 * 1024 * 1024


class Decompressor(Protocol):
    """What ``bz2`` and ``lzma`` have for one compressed member."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes: ...


class Compression(NamedTuple):
    """A format: its name, and how to make a decompressor of one member."""

    name: str
    decompressor: Callable[[], Decompressor]


def compression_of(start: bytes) -> Compression | None:
    """The format of what begins with ``start``; ``None`` if it is none of these.

    Args:
        start: The first bytes, ``LOOK_BYTES`` or more.

    Example:
        >>> import gzip
        >>> compression_of(gzip.compress(b"abc")).name, compression_of(b"train/0001.png")
        ('gzip', None)
    """
    for pattern, compression in _COMPRESSIONS:
        if pattern.match(start):
            return compression
    return None


class Decompressed:
    """The decompressed bytes of a stream, made as they are read; members one after the other are one stream.

    Zero bytes behind the last member are padding; anything else there is an error.

    Args:
        source: Gives the compressed bytes; closed with this object.
        compression: Their format.

    Raises:
        ShardError: While reading, the data are damaged or end too early.
        ImportError: The format needs a package that is missing.

    Example:
        >>> import gzip, io
        >>> from mpwds.storage.tar.input import StreamInput
        >>> compressed = gzip.compress(b"abc") + gzip.compress(b"def")
        >>> source = StreamInput(io.BytesIO(compressed), "x.gz", 0)
        >>> stream = Decompressed(source, compression_of(compressed))
        >>> stream.read(100), stream.read(100), stream.read(100)
        (b'abc', b'def', b'')
    """

    def __init__(self, source: Input, compression: Compression) -> None:
        self._source = source
        self._compression = compression
        self._decompressor = compression.decompressor()
        self._position = 0  # in the compressed bytes
        self._pending = b""  # bytes before that which no decompressor has got
        self._ended = False

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, as soon as there are some; none at the end."""
        while not self._ended:
            decompressor = self._decompressor
            if decompressor.eof:
                self._begin_next(decompressor.unused_data)
                continue
            data = self._input() if decompressor.needs_input else b""
            try:
                piece = decompressor.decompress(data, size)
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
        """Turns to the member that follows, of which ``unused`` was given to the last decompressor."""
        rest = (unused + self._pending).lstrip(b"\0")
        while len(rest) < LOOK_BYTES and (more := self._more()):
            rest = (rest + more).lstrip(b"\0")
        self._pending = rest
        following = compression_of(rest)
        if not rest:
            self._ended = True
        elif following is None or following.name != self._compression.name:
            raise self._damaged(f"what follows its end is not {self._compression.name}: cut it off")
        else:
            self._decompressor = following.decompressor()

    def _damaged(self, why: str) -> ShardError:
        return ShardError(
            f"{self._source.url} cannot be decompressed ({self._compression.name}), {self._position} bytes "
            f"read: {why}"
        )


class _Gzip:
    """One gzip member, with the interface that ``bz2`` and ``lzma`` have."""

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


def _xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)


_COMPRESSIONS = [
    (re.compile(rb"\x1f\x8b\x08"), Compression("gzip", _Gzip)),
    (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), Compression("zstd", ZstdFrame)),
    (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), Compression("bzip2", bz2.BZ2Decompressor)),
    (re.compile(rb"\xfd7zXZ\0"), Compression("xz", _xz)),
]
