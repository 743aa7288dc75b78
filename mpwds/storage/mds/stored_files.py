"""The files of shards as they are stored: their sizes, hashes and compression."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from mpwds.imports import require


@dataclass(frozen=True)
class StoredFile:
    """A file as an index describes it; ``size`` is ``None`` if the index does not say."""

    name: str
    size: int | None
    hashes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardFiles:
    """A shard as it is read, and the compressed file that it comes from, if there is one."""

    raw: StoredFile  # uncompressed; its size is known
    packed: StoredFile | None = None
    compression: str = ""

    @property
    def stored(self) -> StoredFile:
        """The file that a writer left."""
        return self.packed or self.raw


_PIECE_BYTES = 1024 * 1024
_HINT = "{} compression needs {}: pip install 'mpwds[mds]'"


@dataclass(frozen=True)
class Compression:
    """A way to compress shards. ``extension`` is its name, and the end of the names of compressed files."""

    extension: str
    level: int | None

    @staticmethod
    def of(name: str) -> Compression:
        """The compression of a name as in an index, ``"zstd:7"``; raises ``ValueError`` if there is none."""
        extension, colon, digits = name.partition(":")
        if extension not in _CODECS:
            raise ValueError(f"there is no compression {name!r}: choose one of {', '.join(_CODECS)}")
        levels = _CODECS[extension].levels
        if not colon:
            return Compression(extension, _CODECS[extension].default_level)
        if not (digits.isascii() and digits.isdigit() and int(digits) in levels):
            known = f"levels are {levels[0]} to {levels[-1]}" if levels else "it has no levels"
            raise ValueError(f"there is no compression {name!r}: {known}")
        return Compression(extension, int(digits))

    def compress(self, data: bytes | bytearray) -> bytes:
        """The compressed bytes, the same ones each time. Raises ``ImportError`` if a package is missing."""
        return _CODECS[self.extension].compress(data, self.level)

    def decompress(self, data: bytes, limit_bytes: int) -> bytes:
        """The original bytes; ``ValueError`` if they are more than ``limit_bytes``, or damaged."""
        try:
            return _CODECS[self.extension].decompress(data, limit_bytes)
        except (ImportError, MemoryError):
            raise
        except Exception as error:  # each library has errors of its own
            raise ValueError(
                f"its {self.extension} data is damaged: {error or type(error).__name__}"
            ) from error


_brotli = partial(require, "brotli", _HINT.format("br", "brotli"))
_snappy = partial(require, "snappy", _HINT.format("snappy", "python-snappy"))
_zstandard = partial(require, "zstandard", _HINT.format("zstd", "zstandard"))


def _read_all(stream: BinaryIO | Any, limit_bytes: int) -> bytes:
    return _joined(iter(lambda: stream.read(_PIECE_BYTES), b""), limit_bytes)


def _joined(pieces: Iterable[bytes], limit_bytes: int) -> bytes:
    kept, size = [], 0
    for piece in pieces:
        size += len(piece)
        _check(size, limit_bytes)
        kept.append(piece)
    return b"".join(kept)


def _check(size: int, limit_bytes: int) -> None:
    if size > limit_bytes:
        raise ValueError(f"it becomes more than the {limit_bytes} bytes that are expected")


def _brotli_pieces(data: bytes) -> Iterator[bytes]:
    decompressor = _brotli().Decompressor()
    while not decompressor.is_finished():
        piece = decompressor.process(data, output_buffer_limit=_PIECE_BYTES)
        if not piece and not decompressor.is_finished():
            raise ValueError("it is truncated")
        data = b""
        yield piece


def _decompress_snappy(data: bytes, limit_bytes: int) -> bytes:
    size = 0
    for place, byte in enumerate(data[:5]):  # the length comes first, seven bits a byte
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            break
    _check(size, limit_bytes)
    original: bytes = _snappy().uncompress(data)
    return original


class _Codec(NamedTuple):
    levels: range
    default_level: int | None
    compress: Callable[[bytes | bytearray, Any], bytes]
    decompress: Callable[[bytes, int], bytes]


_CODECS = {
    "br": _Codec(
        range(12),
        11,
        lambda data, level: bytes(_brotli().compress(bytes(data), quality=level)),
        lambda data, limit: _joined(_brotli_pieces(data), limit),
    ),
    "bz2": _Codec(
        range(1, 10), 9, bz2.compress, lambda data, limit: _read_all(bz2.BZ2File(io.BytesIO(data)), limit)
    ),
    "gz": _Codec(
        range(10),
        9,
        lambda data, level: gzip.compress(data, level, mtime=0),
        lambda data, limit: _read_all(gzip.GzipFile(fileobj=io.BytesIO(data)), limit),
    ),
    "snappy": _Codec(
        range(0), None, lambda data, level: bytes(_snappy().compress(bytes(data))), _decompress_snappy
    ),
    "zstd": _Codec(
        range(1, 23),
        3,
        lambda data, level: bytes(_zstandard().ZstdCompressor(level, write_checksum=True).compress(data)),
        lambda data, limit: _read_all(
            _zstandard().ZstdDecompressor().stream_reader(data, read_across_frames=True), limit
        ),
    ),
}
"""By name, which is also the end of file names."""


def digest(name: str, data: bytes | bytearray) -> str:
    """The hash of ``data``, in hexadecimal digits: any of ``hashlib`` of fixed length, or of xxhash.

    Raises ``ValueError`` if there is no such hash, ``ImportError`` if xxhash is missing.

    Source:
        ``streaming.base.hashing``.
    """
    if name in hashlib.algorithms_available and not name.startswith("shake_"):
        return hashlib.new(name, data, usedforsecurity=False).hexdigest()
    if name.startswith("xxh"):
        xxhash = require("xxhash", f"the hash {name} needs xxhash: pip install 'mpwds[mds]'")
        if name in xxhash.algorithms_available:
            found: str = getattr(xxhash, name)(data).hexdigest()
            return found
    raise ValueError(f"there is no hash {name!r}: choose one of hashlib, such as 'sha1', or of xxhash")


def mismatch(data: bytes, hashes: Mapping[str, str]) -> str:
    """Says which of the hashes is not that of ``data``; an empty string if all are."""
    for name, expected in hashes.items():
        found = digest(name, data)
        if found != expected:
            return f"its {name} is {found}, and the index says {expected}"
    return ""


_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_BYTES = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


def parse_binary_size(size: int | str | None) -> int | None:
    """A number of bytes, also of text such as ``"64mb"``, of 1024 kB each; ``None`` for 0.

    Example:
        >>> parse_binary_size("1.5kb"), parse_binary_size("100"), parse_binary_size(None)
        (1536, 100, None)
    """
    if isinstance(size, str):
        size = parse_amount(size, _BYTES, "a size must be a number of bytes, or text such as '64mb'")
    if size is not None and size < 0:
        raise ValueError(f"a size must not be negative, got {size}")
    return int(size) if size else None


def parse_amount(text: str, units: Mapping[str, int], expected: str) -> int:
    """The number that text such as ``"64mb"`` is; a ``ValueError`` that says what is expected otherwise."""
    match = _AMOUNT.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        raise ValueError(f"{expected}, got {text!r}")
    return int(float(match[1]) * units[match[2]])
