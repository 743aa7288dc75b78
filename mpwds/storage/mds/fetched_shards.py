"""The place of an MDS dataset, and its shards on a local disk: fetched when needed, and uncompressed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeVar

from mpwds.errors import ShardError, StreamError
from mpwds.storage.caches.directory import PRIVATE
from mpwds.storage.caches.locks import lock_open, remove_unlocked_folder, same_file
from mpwds.storage.caches.shard_cache import ShardCache
from mpwds.storage.indexed.shards import OpenShards, most_open_files
from mpwds.storage.mds.stored_files import Compression, ShardFiles, StoredFile, mismatch
from mpwds.storage.streams.base import piece_reader, stream_version
from mpwds.storage.streams.gopen import gopen, open_at
from mpwds.storage.streams.resuming import Retries, retrying
from mpwds.storage.streams.urls import absolute_path, is_local, local_path, without_credentials
from mpwds.storage.writing.destinations import PendingFile, write_whole
from mpwds.warn import warn

_SCHEME = "mds:"  # shards in the cache: it would not keep those whose URL is a local file's
_PIECE_BYTES = 1024 * 1024
_READERS = {
    "index.json": "version 2: MDSDataset",
    **dict.fromkeys(("index.mds", "index.mds.gz"), "version 1: StreamingDataset"),
}
_ORIGIN = os.path.join(PRIVATE, "origin")  # in a local folder: a digest of the remote and its index

_HASHES, _NO_HASHES = re.compile(rb'"hashes"\s*:\s*\{\s*"'), re.compile(rb'"hashes"\s*:\s*\{\s*\}')

T = TypeVar("T")


@dataclass(frozen=True)
class DatasetLocation:
    """The place of a dataset, and the folder in which its shards are read."""

    local: str
    remote: str | None  # the folder or URL that shards are fetched from; None if they are in ``local``
    retries: int = 2  # further attempts, when fetching fails
    timeout_s: float = 60.0  # that fetching one file may take
    temporary: TemporaryFolder | None = None  # keeps ``local``, if the user named no folder
    index_bytes: int = 0  # of the index that is kept beside the fetched shards

    @staticmethod
    def of(
        local: str | os.PathLike[str] | None,
        remote: str | os.PathLike[str] | None,
        split: str | None = None,
        retries: int = 2,
        timeout_s: float = 60.0,
    ) -> DatasetLocation:
        """The location that a user's arguments name. ``local`` is empty for a temporary folder.

        A ``local`` that is the URL of another machine counts as ``remote``, and a ``remote`` folder without
        ``local`` is read where it is. Raises ``ValueError`` if neither is given, or a number is negative.
        """
        if local is not None and remote is None and not is_local(local):
            local, remote = None, local
        if local is None and remote is not None and is_local(remote):
            local, remote = remote, None
        if retries < 0 or timeout_s <= 0:
            raise ValueError(f"retries ({retries}) must not be negative, the time-out ({timeout_s}) positive")
        if local is None and remote is None:
            raise ValueError(
                "an MDS dataset needs local=, the folder it is in, or remote=, its folder or URL"
            )
        source = None if remote is None else os.path.join(os.fspath(remote), split or "")
        folder = "" if local is None else absolute_path(os.path.join(local_path(local), split or ""))
        if source is not None and is_local(source):
            source = absolute_path(local_path(source))
            source = None if source == folder else source
        return DatasetLocation(folder, source, retries, timeout_s)

    def opened(self, *names: str) -> tuple[DatasetLocation, str, bytes]:
        """The location with its folder, and the name and content of the index, which has one of these names.

        A remote index is compared with the one that the folder was made of, and kept there. Raises
        ``FileNotFoundError`` if there is none, ``FileExistsError`` if the folder holds another dataset, or
        another version of this one.
        """
        if self.remote is None:
            return self, *_first(names, self._read_local)
        try:
            name, (data, version) = _first(names, self._read)
        except (OSError, ValueError, ImportError) as error:  # also of a scheme that nothing opens
            if not any(os.path.exists(os.path.join(self.local, name)) for name in names if self.local):
                raise
            warn(f"{self.local} may be out of date: the index of the remote dataset cannot be read: {error}")
            name, data = _first(names, self._read_local)
            return replace(self, index_bytes=len(data)), name, data
        shown = without_credentials(self.remote)
        if _HASHES.search(data) and not _NO_HASHES.search(data):  # equal indexes prove equal shards
            version = ""
        origin = hashlib.sha256(repr((shown, data, version)).encode()).hexdigest()[:32]
        if not self.local:
            folder = TemporaryFolder.named(origin)
            return replace(self, local=folder.path, temporary=folder), name, data
        path, note = (os.path.join(self.local, each) for each in (name, _ORIGIN))
        known, noted = _content(path), _content(note)
        if known is not None and (known != data or noted not in (None, origin.encode())):
            raise FileExistsError(
                f"{self.local} holds another dataset than {shown}, or an earlier version of it: remove the "
                "folder, or pass another local="
            )
        if known is None:
            for target, content in ((note, origin.encode()), (path, data)):  # no index without its origin
                os.makedirs(os.path.dirname(target), exist_ok=True)
                write_whole(PendingFile(target), content)
        return replace(self, index_bytes=len(data)), name, data

    def unpacked_elsewhere(self) -> DatasetLocation:
        """This location, but what has to be uncompressed is kept in a temporary folder."""
        if self.remote is not None:
            return self
        folder = TemporaryFolder.named(hashlib.sha256(f"unpacked {self.local}".encode()).hexdigest()[:32])
        return replace(self, local=folder.path, remote=self.local, temporary=folder)

    def url(self, name: str) -> str:
        """Returns the path or URL of the dataset's file of this name."""
        return os.path.join(self.local if self.remote is None else self.remote, name)

    def fetch(self, name: str) -> bytes:
        """A file of the dataset. Raises ``StreamError`` if it cannot be read."""
        return self._read(name)[0]

    def _read(self, name: str) -> tuple[bytes, str]:
        """A file's content, and its version as the server or the file system tells it."""
        url = self.url(name)
        deadline = time.monotonic() + self.timeout_s
        retries = Retries(self.retries + 1, within_s=self.timeout_s)

        def read() -> tuple[bytes, str]:
            pieces = []
            with gopen(url, retries=retries) as stream:
                version = repr(stream_version(stream))
                read_piece = piece_reader(stream)
                is_late = False
                while piece := read_piece(_PIECE_BYTES):
                    if is_late:  # and more comes: a file that is complete is not thrown away
                        raise StreamError(
                            f"{without_credentials(url)} was not fetched within {self.timeout_s:g} s: raise "
                            "the time-out",
                            url,
                        )
                    pieces.append(piece)
                    is_late = time.monotonic() > deadline
            return b"".join(pieces), version

        return retrying(read, retries)

    def _read_local(self, name: str) -> bytes:
        data = _content(os.path.join(self.local, name))
        if data is None:
            for index, reader in _READERS.items():
                if os.path.exists(os.path.join(self.local, index)):
                    raise FileNotFoundError(f"{self.local} holds an MDS dataset of {reader} reads it")
            raise FileNotFoundError(
                f"there is no {name} in {self.local}: it is no MDS dataset, or its writer did not finish"
            )
        return data


def _first(names: Sequence[str], read: Callable[[str], T]) -> tuple[str, T]:
    """The first of these files that exists, and what ``read`` returns for it."""
    try:
        return names[0], read(names[0])
    except FileNotFoundError:
        for other in names[1:]:
            with contextlib.suppress(FileNotFoundError):
                return other, read(other)
        raise


def _content(path: str) -> bytes | None:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read()
    return None


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


def _source_of(shard: ShardFiles) -> str:
    """The name by which the cache knows a shard's file: by its content, wherever the dataset lies.

    A folder holds one dataset only (``DatasetLocation.opened``), so sizes tell a newer version of a shard.
    """
    content = repr((shard.stored.size, shard.raw.size, sorted(shard.stored.hashes.items())))
    return f"{_SCHEME}{shard.stored.name}#{hashlib.sha256(content.encode()).hexdigest()[:16]}"


class LocalFile:
    """An open shard (see ``OpenShards``) of ``end`` bytes. The caller closes ``stream``.

    ``tables`` say where its samples begin, as its reader has found out.
    """

    __slots__ = ("_descriptor", "end", "tables", "url")

    def __init__(self, url: str, stream: BinaryIO) -> None:
        self.url = url
        # A stream warns that it was not closed if the garbage collector finds it before this object.
        self._descriptor = os.dup(stream.fileno())
        self.end = os.fstat(self._descriptor).st_size
        self.tables: dict[int, Any] = {}

    def read(self, size: int, offset: int) -> bytes:
        """Its bytes from ``offset`` on; fewer than ``size`` at the end alone."""
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size and (more := os.pread(self._descriptor, size - len(data), offset + len(data))):
            data += more  # a system call returns at most 2 GiB
        return data

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
        # A limit is for what is fetched: the shards that lie in the folder would count.
        if not (in_place and cache_limit is None) and any(shard.packed for shard in files):
            location = location.unpacked_elsewhere()
        self.files = files
        self.lengths = lengths
        self.folder = location.local
        self.urls: Sequence[str] = [os.path.join(location.local, shard.raw.name) for shard in files]
        self._location = location
        self._validate_hash = validate_hash
        self._sources = list(map(_source_of, files))
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
        if limit >= 0:
            limit += location.index_bytes
        self._cache = ShardCache(location.local, limit, fetcher.name, validator=None, opener=fetcher)
        self._checked: set[int] = set()

    _open: dict[int, LocalFile]

    def _file_of(self, shard: int, index: int) -> LocalFile:
        """The file of a sample's shard, which stays open for a while.

        Raises ``ShardError`` if it is missing or damaged, ``StreamError`` if it cannot be fetched or kept,
        ``IndexError`` if there is no such sample.
        """
        count = self.lengths[shard]
        if not 0 <= index < count:
            raise IndexError(f"{self.urls[shard]} has {count} samples, there is no sample {index}")
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
        # Another process writes it at once, when it is whole: until then its file does not grow.
        named = self._location.url(self.files[shard].stored.name)
        return self._cache.open_whole(self._sources[shard], named)


class TemporaryFolder:
    """A folder of this user's in the temporary directory, which all users of a name share.

    The last process that uses it removes it. What a killed process left is removed when the next folder is
    made. Copies by pickling use the same folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        parent = os.path.dirname(path)
        while True:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parent, 0o700)
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found = os.lstat(parent)
                if found.st_uid != os.getuid() or found.st_mode & 0o022:
                    raise PermissionError(
                        f"{parent} is not this user's alone: pass local=, a folder for the shards"
                    )
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path)
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                if lock_open(descriptor, shared=True, timeout_s=1.0) and same_file(descriptor, path):
                    break
                os.close(descriptor)
        weakref.finalize(self, _leave, path, descriptor)
        for each in os.listdir(parent):
            remove_unlocked_folder(os.path.join(parent, each))

    @staticmethod
    def named(name: str) -> TemporaryFolder:
        """The folder of this name."""
        return TemporaryFolder(os.path.join(tempfile.gettempdir(), f"mpwds-mds-{os.getuid()}", name))

    def __reduce__(self) -> Any:
        return TemporaryFolder, (self.path,)


def _leave(path: str, descriptor: int) -> None:
    os.close(descriptor)
    remove_unlocked_folder(path)  # not in a fork: its parent holds the lock
    with contextlib.suppress(OSError):  # others are in use
        os.rmdir(os.path.dirname(path))
