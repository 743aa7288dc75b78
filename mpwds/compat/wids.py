"""wids: indexed access to the samples of tar shards. ``from mpwds import wids`` replaces ``import wids``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial
from typing import IO
from urllib.parse import quote, urlsplit

from mpwds.pipeline.indexed.shard_list import SamplesOfShard
from mpwds.storage.indexed.tar_shards import TarShards

_PIECE_BYTES = 1 << 20


class IndexedTarSamples(SamplesOfShard):
    """The samples of a local tar file, by number: dicts of streams.

    Args:
        path: The file.
        md5sum: Digest that the file must have, in hexadecimal.
        expected_size: Number of samples that it must have.
        use_mmap: Has no effect.

    Raises:
        ValueError: The file has another digest.
        ShardError: On reading, it has another number of samples, or is no uncompressed tar file.

    Source:
        ``wids.wids.IndexedTarSamples``.
    """

    def __init__(
        self,
        *,
        path: str | os.PathLike[str],
        md5sum: str | None = None,
        expected_size: int | None = None,
        use_mmap: bool = True,
    ) -> None:
        path = os.fspath(path)
        if md5sum is not None and (found := compute_file_md5sum(path)) != md5sum:
            raise ValueError(f"{path} has the MD5 digest {found}, expected {md5sum}")
        super().__init__(TarShards([path], None if expected_size is None else [expected_size]), 0)

    def close(self) -> None:
        self._shards.close()


def compute_file_md5sum(fname: str | os.PathLike[str] | IO[bytes], chunksize: int = _PIECE_BYTES) -> str:
    """The MD5 digest of a file, in hexadecimal."""
    if isinstance(fname, (str, os.PathLike)):
        with open(fname, "rb") as file:
            return compute_file_md5sum(file, chunksize)
    digest = hashlib.md5(usedforsecurity=False)
    fname.seek(0)
    while piece := fname.read(chunksize):
        digest.update(piece)
    return digest.hexdigest()


def compute_num_samples(fname: str | os.PathLike[str]) -> int:
    """The number of samples in a local tar file."""
    return len(TarShards([os.fspath(fname)]))


def default_localname(dldir: str | os.PathLike[str] = "/tmp/_wids_cache") -> Callable[[str], str]:
    """A ``localname=`` that keeps copies in a folder, under their whole URLs, quoted.

    Example:
        >>> default_localname("/data")("https://host/x.tar")
        '/data/https%3A%2F%2Fhost%2Fx.tar'
    """
    return partial(_quoted, os.fspath(dldir))


def cache_localname(cachedir: str | os.PathLike[str]) -> Callable[[str], str]:
    """A ``localname=`` that keeps copies in a folder, under the last part of their URLs.

    Example:
        >>> cache_localname("/data")("https://host/x.tar")
        '/data/x.tar'
    """
    return partial(_last_part, os.fspath(cachedir))


def _quoted(folder: str, url: str) -> str:
    return os.path.join(folder, quote(url, safe="+-"))


def _last_part(folder: str, url: str) -> str:
    return os.path.join(folder, os.path.basename(urlsplit(url).path))
