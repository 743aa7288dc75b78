"""Checks that a file is a tar shard, by its first bytes or to its end."""

from __future__ import annotations

import os
import tarfile
from typing import BinaryIO

from mpwds.errors import ShardError
from mpwds.storage.tar.entries import read_entries

_BLOCK = 512
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\0")


def check_tar_format(fname: str | os.PathLike[str]) -> bool:
    """Whether a file begins like a tar archive or a compressed file (gzip, zstd, bzip2, xz).

    Args:
        fname: Its path.

    Raises:
        OSError: It cannot be read.

    Source:
        ``webdataset.cache.check_tar_format``.
    """
    with open(fname, "rb") as file:
        header = file.read(_BLOCK)
    if header.startswith(_COMPRESSED):
        return True
    if len(header) == _BLOCK and not any(header):  # an empty archive
        return True
    try:
        tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def is_whole_shard(fname: str | os.PathLike[str]) -> bool:
    """Whether a file is a tar archive, compressed or not, that can be read to its end.

    Reads all headers, and decompresses a compressed archive, to find a download that broke off without an
    error (``pipe:curl ... || true``). An archive without an end mark counts as whole, and so does one that
    cannot be decompressed because a package is missing.

    Args:
        fname: Its path.

    Raises:
        OSError: It cannot be read.
    """
    if not check_tar_format(fname):
        return False
    path = os.fspath(fname)
    try:
        for _ in read_entries(path, 0, _open, lambda name: None, warn_of_no_end=False):
            pass
    except ShardError:
        return False
    except ImportError:
        pass
    return True


def _open(path: str, offset: int) -> BinaryIO:
    return open(path, "rb")
