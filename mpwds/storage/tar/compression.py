"""Compressed archives: gzip, bzip2, xz and zstd. Readers recognize them by their first bytes."""

from __future__ import annotations

import lzma
import re
import zlib
from bz2 import BZ2Compressor, BZ2Decompressor
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from mpwds.imports import require

LOOK_BYTES = 10

_LEVEL = 6  # gzip's own default: 9 takes twice the time for 1 % less

_XZ_MEMORY_BYTES = 512 * 1024 * 1024
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_RUN = 1  # the type of a block of one byte, repeated


class Codec(NamedTuple):
    """A format of compressed archives."""

    name: str  # in messages
    start: bytes  # a regular expression that matches the first bytes
    decompressor: Callable[[], Any]  # makes one of one member, with the interface of lzma's
    compressor: Callable[[], Any]
    endings: tuple[str, ...]  # of file names; the first is the format's name as an argument


def compression_of(start: bytes) -> Codec | None:
    """The format of data that begins with ``start`` (at least ``LOOK_BYTES``); ``None`` if not compressed."""
    return next((codec for codec in _CODECS if re.match(codec.start, start)), None)


def compression_for(compress: bool | str | None, name: str) -> str | None:
    """``"gz"``, ``"bz2"``, ``"xz"``, ``"zst"`` or ``None``, by the argument or the name's last suffix."""
    if compress is None:
        is_url = "://" in name and not name.startswith("pipe:")
        _, dot, suffix = (name.partition("?")[0] if is_url else name).rpartition(".")
        fitting = (codec.endings[0] for codec in _CODECS if suffix.lower() in codec.endings)
        return next(fitting, None) if dot else None
    if compress is False:
        return None
    if compress is True:
        return "gz"
    if compress not in COMPRESSORS:
        raise ValueError(
            f"compress={compress!r} is not one of True, False, {', '.join(map(repr, COMPRESSORS))}"
        )
    return compress


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

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
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

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        self._input += data
        while not self._output and not self._frame.eof and (size := self._next_bytes()):
            unit, self._input = self._input[:size], self._input[size:]
            self._output = self._frame.decompress(unit)
            if not self._has_begun:
                self._has_begun = True
                self._is_skipped = not unit.startswith(_ZSTD_MAGIC)
                self._checksum_bytes = 4 if unit[4] & 4 else 0
        piece, self._output = self._output[:max_length], self._output[max_length:]
        self.needs_input = not self._output and not self._next_bytes()
        return piece

    def _next_bytes(self) -> int:
        """The number of bytes to decompress next: a header or a block, or 0 while it is not complete."""
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


def _zstd() -> Any:
    zstandard = require("zstandard", "zstd is written with zstandard: pip install 'mpwds[zstd]'")
    return zstandard.ZstdCompressor(write_checksum=True).compressobj()  # as the command zstd does


_gzip = partial(zlib.compressobj, _LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
_xz = partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)

_CODECS = (
    Codec("gzip", rb"\x1f\x8b\x08", _Gzip, _gzip, ("gz", "tgz")),
    Codec("bzip2", rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", BZ2Decompressor, BZ2Compressor, ("bz2", "tbz2")),
    Codec("xz", rb"\xfd7zXZ\0", _xz, lzma.LZMACompressor, ("xz", "txz")),
    Codec("zstd", rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", _ZstdFrame, _zstd, ("zst",)),
)

COMPRESSORS = {codec.endings[0]: codec.compressor for codec in _CODECS}
