"""The files of a dataset's shards, on a local disk and uncompressed: fetched there when they are needed."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from mpwds.errors import ShardError
from mpwds.storage.caches.shard_cache import ShardCache
from mpwds.storage.indexed.shards import OpenShards, most_open_files
from mpwds.storage.mds.location import DatasetLocation
from mpwds.storage.mds.stored_files import Compression, ShardFiles, StoredFile, mismatch
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.urls import without_credentials

_SCHEME = "mds:"  # shards in the cache: it would not keep those whose URL is a local file's


@dataclass(frozen=True)
class _Fetcher:
    """Opens a shard's uncompressed bytes, for the cache."""

    location: DatasetLocation
    files: Mapping[str, ShardFiles]  # by the cache's URL
    validate_hash: str | None

    def __call__(self, url: str, offset: int) -> BinaryIO:
        shard = self.files[url]
        data = self.location.fetch(shard.stored.name)
        shown = without_credentials(self.location.url(shard.stored.name))
        wrong = _wrong_size(len(data), shard.stored) or mismatch(data, _to_check(shard, self.validate_hash))
        if wrong:
            raise ShardError(f"{shown} is damaged: {wrong}")
        if shard.packed is not None:
            limit = shard.raw.size or 0
            try:
                data = Compression.of(shard.compression).decompress(data, limit)
            except ValueError as error:
                raise ShardError(f"{shown} is damaged: {error}") from error
            if wrong := _wrong_size(len(data), shard.raw):
                raise ShardError(f"{shown} is damaged: decompressed, {wrong}")
        stream = io.BytesIO(data)
        stream.seek(offset)
        return stream

    def name(self, url: str) -> str:
        return self.files[url].raw.name


def _wrong_size(found: int, expected: StoredFile) -> str:
    same = expected.size in (None, found)
    return "" if same else f"it has {found} bytes, and the index says {expected.size}"


def _to_check(shard: ShardFiles, validate_hash: str | None) -> Mapping[str, str]:
    """The hashes to compare: the one that the user names, or all."""
    hashes = shard.stored.hashes
    if validate_hash is None:
        return hashes
    if validate_hash not in hashes:
        listed = f"it lists {', '.join(sorted(hashes))}" if hashes else "it lists none"
        raise ValueError(f"the index has no {validate_hash} hash of {shard.stored.name}: {listed}")
    return {validate_hash: hashes[validate_hash]}


class LocalFile:
    """An open shard (see ``OpenShards``) of ``end`` bytes. The caller closes ``stream``.

    ``read(size, offset)`` returns its bytes; fewer at the end, or if a system call returns fewer. ``tables``
    say where its samples begin, as its reader has found out.
    """

    __slots__ = ("_descriptor", "end", "read", "tables", "url")

    def __init__(self, url: str, stream: BinaryIO) -> None:
        self.url = url
        # A stream warns that it was not closed if the garbage collector finds it before this object.
        self._descriptor = os.dup(stream.fileno())
        self.end = os.fstat(self._descriptor).st_size
        self.read: Callable[[int, int], bytes] = functools.partial(os.pread, self._descriptor)
        self.tables: dict[int, Any] = {}

    @property
    def is_removed(self) -> bool:
        """True if the file has lost its name, so that only this object keeps it on the disk."""
        return os.fstat(self._descriptor).st_nlink == 0

    def __del__(self) -> None:
        os.close(self._descriptor)


class FetchedShards(OpenShards):
    """Base of the readers: opens shards. Fetches each one first, once on a machine, and uncompresses it.

    Shards that are in the folder already are read there. Their sizes are compared with the index, and their
    hashes if ``validate_hash`` is given; what is fetched is compared with all hashes of the index. Some files
    stay open. Objects can be pickled, and used in forks and threads.

    Compressed shards of a local dataset are uncompressed beside themselves (``in_place``), or to a temporary
    folder. ``datasets`` such objects share ``cache_limit`` and the files that may be open; each may keep two
    shards. ``urls`` are the paths of the shards' uncompressed files, in ``folder``.

    Raises ``ValueError`` if the index lacks ``validate_hash``, or ``cache_limit`` is below the largest shard.
    """

    def __init__(
        self,
        location: DatasetLocation,
        files: Sequence[ShardFiles],
        lengths: Sequence[int],
        in_place: bool,
        validate_hash: str | None = None,
        cache_limit: int | None = None,
        datasets: int = 1,
    ) -> None:
        super().__init__(max(most_open_files() // datasets, 1))
        if not in_place and any(shard.packed for shard in files):
            location = location.unpacked_elsewhere()
        self.files = files
        self.lengths = lengths
        self.folder = location.local
        self.urls: Sequence[str] = [os.path.join(location.local, shard.raw.name) for shard in files]
        self._location = location
        self._validate_hash = validate_hash
        self._sources = [_SCHEME + location.url(shard.stored.name) for shard in files]
        if validate_hash is not None:
            for shard in files:
                _to_check(shard, validate_hash)
        fetcher = _Fetcher(location, dict(zip(self._sources, files, strict=True)), validate_hash)
        largest = max((shard.raw.size or 0 for shard in files), default=0)
        limit = -1 if cache_limit is None else min(cache_limit, max(cache_limit // datasets, 2 * largest))
        if 0 <= limit < largest and any(map(self._is_fetched, range(len(files)))):
            raise ValueError(
                f"cache_limit ({limit} bytes) has no room for the largest shard, {largest} bytes"
            )
        self._cache = ShardCache(location.local, limit, fetcher.name, validator=None, opener=fetcher)
        self._checked: set[int] = set()

    _open: dict[int, LocalFile]

    def _file(self, shard: int) -> LocalFile:
        """A shard's file, which stays open for a while.

        Raises ``ShardError`` if it is missing or damaged, ``StreamError`` if it cannot be fetched or kept.
        """
        file = self._open.get(shard)
        if file is None:
            self._make_room()
            file = self._open[shard] = self._opened(shard)
            if self._is_fetched(shard) and shard - 1 in self._open and shard + 1 < len(self.files):
                self._cache.prefetch(self._sources[shard + 1])  # they seem to be read in order
        return file

    def _is_fetched(self, shard: int) -> bool:
        return self._location.remote is not None or self.files[shard].packed is not None

    def _opened(self, shard: int) -> LocalFile:
        expected, name, path = self.files[shard].raw, self._validate_hash, self.urls[shard]
        try:
            stream = self._fetched(shard) if self._is_fetched(shard) else open_at(path)
        except FileNotFoundError as error:
            raise ShardError(
                f"the index names the shard {path}, and there is no such file: {error}"
            ) from error
        with stream:
            file = LocalFile(path, stream)
            wrong = _wrong_size(file.end, expected)
            if not wrong and name is not None and name in expected.hashes and shard not in self._checked:
                wrong = mismatch(stream.read(), {name: expected.hashes[name]})
        if wrong:
            raise ShardError(f"{path} is damaged: {wrong}")
        self._checked.add(shard)
        return file

    def _fetched(self, shard: int) -> BinaryIO:
        for number, file in list(self._open.items()):
            if file.is_removed:  # the cache needs its room
                self._open.pop(number, None)
        return self._cache.open_whole(self._sources[shard])
