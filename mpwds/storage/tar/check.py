"""Checks that a file is a tar shard, by its first bytes or to its end."""

from __future__ import annotations

import io
import os
from typing import BinaryIO

from mpwds.errors import ShardError
from mpwds.storage.tar.entries import read_entries
from mpwds.storage.tar.header import BLOCK, begins_archive
from mpwds.storage.tar.streams import PerhapsCut, compression_of


def check_tar_format(fname: str | os.PathLike[str]) -> bool:
    """True if a file begins like a tar archive or a compressed file (gzip, zstd, bzip2, xz).

    Source:
        ``webdataset.cache.check_tar_format``.
    """
    with open(fname, "rb") as file:
        block = file.read(BLOCK)
    return compression_of(block) is not None or (len(block) == BLOCK and begins_archive(block))


def is_whole_shard(fname: str | os.PathLike[str], detects_truncation: bool = True) -> bool:
    """True if a file is a tar archive, compressed or not, that can be read to its end.

    Reads all headers, and decompresses a compressed archive, to find a download that broke off without an
    error (``pipe:curl ... || true``). An archive without an end mark counts as whole, unless the stream that
    it was copied from does not detect truncation. So does one that cannot be decompressed because a package
    is missing.
    """
    if not check_tar_format(fname):
        return False

    def opened(path: str, offset: int) -> BinaryIO:
        return io.BufferedReader((io.FileIO if detects_truncation else PerhapsCut)(path))

    try:
        for _ in read_entries(os.fspath(fname), 0, opened, lambda name: None, warn_of_no_end=False):
            pass
    except ShardError:
        return False
    except ImportError:
        pass
    return True
