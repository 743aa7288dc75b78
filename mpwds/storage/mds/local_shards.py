"""The files of a dataset's shards, on a local disk and uncompressed: fetched there when they are needed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from mpwds.errors import ShardError, StreamError, StreamNotFound
from mpwds.storage.caches.shard_cache import ShardCache
from mpwds.storage.mds.compression import Compression
from mpwds.storage.mds.hashes import mismatch
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.urls import is_local, local_path, without_credentials
from mpwds.storage.writing.destinations import PendingFile

_PIECE_BYTES = 1024 * 1024
_OPEN_FILES = 32
_SCHEME = "mds:"  # shards in the cache: it would not keep those whose URL is a local file's


@dataclass(frozen=True)
class StoredFile:
    """A file as an index describes it; ``size`` is ``None`` if the index does not say."""

    name: str
    size: int | None
    hashes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardFiles:
    """A shard as it is read, and the compressed file that it comes from, if there is one.

    Attributes:
        raw: The uncompressed file. Its size is known.
        packed: The compressed file.
        compression: How it is compressed.
    """

    raw: StoredFile
    packed: StoredFile | None = None
    compression: str = ""

    @property
    def stored(self) -> StoredFile:
        """The file that a writer left."""
        return self.packed or self.raw


@dataclass(frozen=True)
class Place:
    """Where a dataset is, and where its shards are read.

    Attributes:
        local: The folder in which shards are read.
        remote: The folder or URL that they are fetched from; ``None`` if they are in ``local``.
        retries: Further attempts, when fetching fails.
        timeout_s: Seconds that fetching one file may take.
    """

    local: str
    remote: str | None
    retries: int
    timeout_s: float

    @staticmethod
    def of(
        local: str | os.PathLike[str] | None,
        remote: str | os.PathLike[str] | None,
        split: str | None = None,
        retries: int = 2,
        timeout_s: float = 60.0,
    ) -> Place:
        """The place that a user's arguments name.

        A ``local`` that is the URL of another machine counts as ``remote``, and a ``remote`` folder without
        ``local`` is read where it is. What is fetched without ``local`` goes to a folder of this user's in
        the temporary directory.

        Raises:
            ValueError: Neither is given, or a number is negative.
        """
        if local is not None and remote is None and not is_local(local):
            local, remote = None, local
        if local is None and remote is not None and is_local(remote):
            local, remote = remote, None
        if local is None and remote is None:
            raise ValueError("an MDS dataset needs local=, the folder it is in, or remote=, its folder or URL")
        if retries < 0 or timeout_s <= 0:
            raise ValueError(f"retries ({retries}) must not be negative, the time-out ({timeout_s}) positive")
        source = None if remote is None else os.path.join(os.fspath(remote), split or "")
        if local is None:
            folder = _own_folder(os.fspath(source))
        else:
            folder = os.path.join(os.path.expanduser(local_path(local)), split or "")
        if source is not None and is_local(source):
            source = os.path.abspath(os.path.expanduser(local_path(source)))
            source = None if source == os.path.abspath(folder) else source
        return Place(os.path.abspath(folder), source, retries, timeout_s)

    def url(self, name: str) -> str:
        """Where the dataset's file of this name comes from."""
        return os.path.join(self.local if self.remote is None else self.remote, name)

    def load_index(self, name: str) -> bytes:
        """The dataset's index: the local file, or, if there is none, the remote one, which is kept there.

        Raises:
            FileNotFoundError: There is none.
        """
        path = os.path.join(self.local, name)
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            return file.read()
        if self.remote is None:
            raise FileNotFoundError(
                f"there is no {name} in {self.local}: it is no MDS dataset, or its writer did not finish"
            )
        data = self.fetch(name)
        os.makedirs(self.local, exist_ok=True)
        pending = PendingFile(path)
        pending.stream.write(data)
        pending.publish()
        return data

    def fetch(self, name: str) -> bytes:
        """A file of the dataset. Raises ``StreamError`` if it cannot be read."""
        url = self.url(name)
        for attempt in range(self.retries + 1):
            try:
                return _read(url, time.monotonic() + self.timeout_s)
            except (FileNotFoundError, StreamNotFound):
                raise
            except OSError:
                if attempt == self.retries:
                    raise
        raise AssertionError


def _read(url: str, deadline: float) -> bytes:
    pieces = []
    with gopen(url) as stream:
        while piece := stream.read(_PIECE_BYTES):
            pieces.append(piece)
            if time.monotonic() > deadline:
                raise StreamError(f"{without_credentials(url)} was not fetched in time: raise the time-out", url)
    return b"".join(pieces)


def _own_folder(remote: str) -> str:
    """A folder for what comes from ``remote``, into which nobody else can put anything."""
    parent = os.path.join(tempfile.gettempdir(), f"mpwds-mds-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(parent, 0o700)
    found = os.lstat(parent)
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{parent} is not this user's alone: pass local=, a folder for the shards")
    return os.path.join(parent, hashlib.blake2s(remote.encode(), digest_size=16).hexdigest())


@dataclass(frozen=True)
class _Fetcher:
    """Opens a shard's uncompressed bytes, for the cache."""

    place: Place
    files: Mapping[str, ShardFiles]  # by the cache's URL
    validate_hash: str | None

    def __call__(self, url: str, offset: int) -> BinaryIO:
        shard = self.files[url]
        data = self.place.fetch(shard.stored.name)
        shown = without_credentials(self.place.url(shard.stored.name))
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


class LocalShards:
    """Reads bytes of shards. Fetches each shard first, once on a machine, and uncompresses it.

    Shards that are in the folder already are read there. Their sizes are compared with the index, and their
    hashes if ``validate_hash`` is given; what is fetched is compared with all hashes of the index. A few
    files are kept open. Objects can be pickled, and used in forks and threads.

    Args:
        place: Where the dataset is.
        files: The shards' files.
        validate_hash: The only hash to compare.
        cache_limit: Bytes that fetched shards may have in all; the least recently used are removed.

    Raises:
        ValueError: ``validate_hash`` is not among the index's hashes.
    """

    def __init__(
        self,
        place: Place,
        files: Sequence[ShardFiles],
        validate_hash: str | None = None,
        cache_limit: int | None = None,
    ) -> None:
        self.place = place
        self.files = files
        self._validate_hash = validate_hash
        self._urls = [_SCHEME + place.url(shard.stored.name) for shard in files]
        if validate_hash is not None:
            for shard in files:
                _to_check(shard, validate_hash)
        fetcher = _Fetcher(place, dict(zip(self._urls, files, strict=True)), validate_hash)
        limit = -1 if cache_limit is None else cache_limit
        self._cache = ShardCache(place.local, limit, fetcher.name, validator=None, opener=fetcher)
        self._start()

    def _start(self) -> None:
        self._open: OrderedDict[int, LocalFile] = OrderedDict()
        self._lock = threading.Lock()
        self._checked: set[int] = set()

    def open(self, shard: int) -> LocalFile:
        """A shard's file, which stays open for a while.

        Raises:
            ShardError: Its size or hash is wrong.
            StreamError: It cannot be fetched or kept.
        """
        with self._lock:
            file = self._open.get(shard)
            if file is not None:
                self._open.move_to_end(shard)
                return file
        file = self._opened(shard)
        with self._lock:
            self._open[shard] = file
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)
        return file

    def prefetch(self, shard: int) -> None:
        """Begins to fetch a shard in the background, unless it is there."""
        if self._is_fetched(shard):
            self._cache.prefetch(self._urls[shard])

    def close(self) -> None:
        """Closes the open files."""
        with self._lock:
            self._open.clear()

    def _is_fetched(self, shard: int) -> bool:
        return self.place.remote is not None or self.files[shard].packed is not None

    def _opened(self, shard: int) -> LocalFile:
        stored = self.files[shard].raw
        path = os.path.join(self.place.local, stored.name)
        if not self._is_fetched(shard):
            try:
                file = LocalFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)
            except FileNotFoundError as error:
                raise ShardError(f"the index names the shard {path}, and there is no such file") from error
        else:
            file = LocalFile(self._kept(shard), path)
        wrong = _wrong_size(file.size, stored)
        if not wrong and self._validate_hash in stored.hashes and shard not in self._checked:
            wrong = mismatch(file.read(0, file.size), {self._validate_hash: stored.hashes[self._validate_hash]})
        if wrong:
            raise ShardError(f"{path} is damaged: {wrong}")
        self._checked.add(shard)
        return file

    def _kept(self, shard: int) -> int:
        """A descriptor of the shard's file in the cache, which keeps it from being removed."""
        url = self._urls[shard]
        stream = self._cache.open_file(url)
        if stream is not None:
            with stream:
                return os.dup(stream.fileno())
        raise StreamError(
            f"{without_credentials(self.place.url(self.files[shard].stored.name))} cannot be kept in "
            f"{self.place.local}: a warning says why; pass local=, a folder with room for shards"
        )

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_open"], state["_lock"], state["_checked"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()


class LocalFile:
    """An open file that reads at any place, in any thread; closed when the last user drops it.

    Attributes:
        path: Its path.
        size: Its size in bytes.
        table: For a reader's own use.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self.path = path
        self.size = os.fstat(descriptor).st_size
        self.table: Any = None

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the file; fewer only if it ends before."""
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size and (more := os.pread(self._descriptor, size - len(data), offset + len(data))):
            data += more  # one call reads 2 GB at most
        return data

    def __del__(self) -> None:
        os.close(self._descriptor)
