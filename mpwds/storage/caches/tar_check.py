"""Whether a file looks like a shard, by its first bytes."""

from __future__ import annotations

import os

_BLOCK = 512
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\0")


def check_tar_format(fname: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a tar archive or a compressed file does (gzip, zstd, bzip2, xz).

    Args:
        fname: Its path.

    Raises:
        OSError: It cannot be read.

    Source:
        ``webdataset.cache.check_tar_format``.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as page:
        ...     written = page.write(b"<html>Please log in</html>")
        ...     page.flush()
        ...     check_tar_format(page.name)
        False
    """
    with open(fname, "rb") as file:
        header = file.read(_BLOCK)
    if header.startswith(_COMPRESSED):
        return True
    if len(header) < _BLOCK:
        return False
    return not any(header) or _checksum(header) == _stored_checksum(header)


def _checksum(header: bytes) -> int:
    """The sum of a header's bytes, its checksum's own eight counted as spaces."""
    return sum(header[:148]) + 8 * ord(" ") + sum(header[156:])


def _stored_checksum(header: bytes) -> int:
    try:
        return int(header[148:156].partition(b"\0")[0], 8)
    except ValueError:
        return -1
