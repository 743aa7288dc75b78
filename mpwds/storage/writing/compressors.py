"""Compression of archives while they are written."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Protocol

_LEVEL = 6  # gzip's own default: 9 takes twice the time for 1 % less
_SUFFIXES = {"gz": "gz", "tgz": "gz", "bz2": "bz2", "tbz2": "bz2", "xz": "xz", "txz": "xz", "zst": "zst"}


class Compressor(Protocol):
    """What turns pieces of data into pieces of a compressed stream.

    The same pieces always give the same bytes: neither a name nor a time is stored.
    """

    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


def compression_of(compress: bool | str | None, name: str) -> str | None:
    """Which compression a writer's ``compress`` argument and the archive's name ask for.

    Args:
        compress: ``True`` for gzip, ``"gz"``, ``"bz2"``, ``"xz"`` or ``"zst"``, ``False`` for none;
            ``None`` goes by the name's last suffix.
        name: The path or URL, or an empty string.

    Returns:
        ``"gz"``, ``"bz2"``, ``"xz"``, ``"zst"`` or ``None``.

    Raises:
        ValueError: ``compress`` is something else.

    Source:
        ``webdataset.writer.TarWriter.tarmode``.

    Example:
        >>> [compression_of(None, name) for name in ("x.tar", "x.tar.gz", "x.tgz", "pipe:cat > x.tar.zst")]
        [None, 'gz', 'gz', 'zst']
        >>> compression_of(False, "x.tgz") is None
        True
    """
    if compress is None:
        _, dot, suffix = name.rpartition(".")
        return _SUFFIXES.get(suffix.lower()) if dot else None
    if compress is False:
        return None
    if compress is True:
        return "gz"
    if compress not in _MAKERS:
        raise ValueError(f"compress={compress!r} is not one of True, False, {', '.join(map(repr, _MAKERS))}")
    return compress


def make_compressor(compression: str) -> Compressor:
    """A compressor of a kind that ``compression_of`` returns.

    Raises:
        ImportError: It is ``"zst"`` and zstandard is missing.

    Example:
        >>> compressor = make_compressor("gz")
        >>> zlib.decompress(compressor.compress(b"data") + compressor.flush(), wbits=31)
        b'data'
    """
    return _MAKERS[compression]()


def _gzip() -> Compressor:
    return zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)


def _zstd() -> Compressor:
    try:
        import zstandard
    except ImportError as error:
        raise ImportError("zstd is written with zstandard: pip install 'mpwds[zstd]'") from error
    return zstandard.ZstdCompressor().compressobj()


_MAKERS: dict[str, Callable[[], Compressor]] = {
    "gz": _gzip,
    "bz2": bz2.BZ2Compressor,
    "xz": lzma.LZMACompressor,
    "zst": _zstd,
}
