"""Writes MDS datasets: of version 2, and of version 1, composer's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import sys
import tempfile
import warnings
import weakref
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from mpwds.storage.caches.locks import lock, release
from mpwds.storage.mds import shards_v1
from mpwds.storage.mds.encodings import encoding
from mpwds.storage.mds.shards_v2 import INDEX_NAME, OFFSET_LIMIT, describe_columns, dump_index
from mpwds.storage.mds.stored_files import Compression, digest, parse_binary_size
from mpwds.storage.streams.base import ClosesOrDiscards
from mpwds.storage.streams.gopen import exists
from mpwds.storage.streams.resuming import Retries, retrying
from mpwds.storage.streams.urls import absolute_path, is_local, local_path, without_credentials
from mpwds.storage.writing.destinations import PendingFile, open_destination, write_whole

_SHARD = r"shard\.\d{5,}\.mds(\.(br|bz2|gz|snappy|zstd))?"
_DATASET = re.compile(rf"index\.json|{_SHARD}|\.(index\.json|{_SHARD})\.[0-9a-f]{{8}}\.partial")
_ANY_FILE = re.compile(".*", re.DOTALL)
_FILES_OF_VERSION_1 = re.compile(r"(index|\d{6,})\.mds(\.gz)?|compression\.txt")
_COMPRESSION_OF_VERSION_1 = re.compile(r"gz(:[1-9])?")
_CLAIM = ".writer.lock"  # in the folder, while its writer lives
_MOST_THREADS = 4


class DatasetWriter(ClosesOrDiscards):
    """Base of the writers: fills one shard in memory while threads make and store those before it.

    Each file appears under its name when it is complete, the index after all shards. The first error of a
    thread is raised with the next shard, or by ``finish``; then there will be no index.

    ``own`` matches the names of files that the folder may not have yet. The other arguments are those of
    ``MDSWriter``, which also says what is raised.
    """

    _finished = True  # until there is something to finish

    def __init__(
        self,
        out: str | os.PathLike[str] | tuple[str, str],
        index_name: str,
        own: re.Pattern[str],
        compression: Compression | None,
        keep_local: bool = False,
        exist_ok: bool = False,
        threads: int | None = None,
        retries: int = 2,
    ) -> None:
        self.local, self.remote = _places(out, keep_local)
        self._retries = Retries(retries + 1)
        self._compression = compression
        self._end = "" if compression is None else f".{compression.extension}"
        self._index_name = index_name
        self._refuses: str | None = None  # an index that must not be there
        claims: dict[str, int] = {}
        self._release = weakref.finalize(self, _release, claims, os.getpid())
        try:
            if self.local is not None:
                _prepare(self.local, exist_ok, own, claims)
            if self.remote is not None and is_local(self.remote):
                _prepare(self.remote, exist_ok, own, claims)
            elif self.remote is not None and not exist_ok:
                self._refuses = f"{self.remote}/{index_name}"
                refuse_existing(self._refuses)
        except BaseException:
            self._release()
            raise
        if not threads:
            is_slow = compression is not None or self.remote is not None
            threads = min(_MOST_THREADS, os.cpu_count() or 1) if is_slow else 1
        self._threads = ThreadPoolExecutor(threads, "storing shards")
        self._most = threads
        self._running: list[Future[None]] = []
        self._begin_shard()
        self._finished = False

    def finish(self) -> None:
        """Waits until all shards are stored, then writes the index. Does nothing the second time."""
        if self._finished:
            return
        try:
            if self._sizes:
                self._end_shard()
            for each in self._running:
                each.result()
            if self._refuses is not None:  # there are no locks at a URL
                refuse_existing(self._refuses)
            self._store(self._index_name, self._index())
        finally:
            self.discard()

    def close(self) -> None:
        """The same as ``finish``."""
        self.finish()

    def discard(self) -> None:
        """Ends without an index; complete shards stay."""
        if not self._finished:
            self._finished = True
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._release()

    def __del__(self) -> None:
        if not self._finished and not sys.is_finalizing():
            self._threads.shutdown(wait=False, cancel_futures=True)
            warnings.warn(
                f"the MDS dataset {self.local or self.remote} has no index: its writer was dropped before it "
                "was finished; use `with`, or call finish()",
                RuntimeWarning,
                stacklevel=2,
            )

    def _begin_shard(self) -> None:
        self._data, self._sizes = bytearray(), array("q")  # the shard's samples, and the size of each

    # A first sample above the limit has an empty shard before it, as in mosaicml-streaming and composer.
    @abstractmethod
    def _end_shard(self) -> None:
        """Has the shard that is being filled stored, and begins the next."""

    @abstractmethod
    def _index(self) -> bytes | bytearray:
        """The index of all shards, as it is stored."""

    def _check_open(self) -> None:
        if self._finished:
            raise ValueError("the dataset is finished: no more samples can be written to it")

    def _in_thread(self, store: Callable[[], None]) -> None:
        """Runs a function that makes a shard and stores it. Waits while there are many already."""
        while len(self._running) >= self._most or (self._running and self._running[0].done()):
            self._running[0].result()
            del self._running[0]
        self._running.append(self._threads.submit(store))

    def _store(self, name: str, data: bytes | bytearray) -> None:
        """Writes a file, and sends it to the URL."""
        if self.local is not None:
            write_whole(PendingFile(os.path.join(self.local, name), replace=False), data)
        if self.remote is not None:
            target, tries = f"{self.remote}/{name}", self._retries
            retrying(lambda: write_whole(open_destination(target, replace=False, retries=tries), data), tries)

    def _packed(self, data: bytes | bytearray) -> bytes | bytearray:
        return data if self._compression is None else self._compression.compress(data)


class MDSWriter(DatasetWriter):
    """Writes an MDS dataset of version 2: shards and an index, for ``MDSDataset`` and mosaicml-streaming.

    Files are the same, byte for byte, as those of mosaicml-streaming; those that are compressed are the same
    once they are uncompressed. Each file appears when it is complete, the index after all shards. An
    exception inside ``with`` leaves the shards that are complete, without an index.

    Args:
        columns: The name and encoding of each column: ``{"image": "jpeg", "cls": "int"}``. All encodings:
            ``mpwds.storage.mds.encodings.encoding``.
        out: The dataset's folder or URL; or folder and URL, for ``keep_local``.
        keep_local: Keep a dataset that goes to a URL in the folder, too.
        compression: ``"br"``, ``"bz2"``, ``"gz"``, ``"snappy"`` or ``"zstd"``, with a level if you like:
            ``"zstd:7"``.
        hashes: Names of hashes that the index lists, in alphabetical order: ``["sha1", "xxh64"]``.
        size_limit: The most bytes in a shard, uncompressed; also ``"64mb"``, of 1024 kB each. ``None`` for
            one shard. A sample that is larger has a shard of its own.
        progress_bar: Has no effect; programs for mosaicml-streaming pass it.
        max_workers: Threads that hash, compress and store shards; each holds one in memory, beside the one
            that is being filled. By default up to 4 if shards are compressed or sent to a URL, else 1.
        retry: Further attempts, when sending a file fails.
        exist_ok: Remove a dataset that is in the folder already. Other files there stay.
        allow_pickle: Whether columns may be ``"pkl"``.

    Attributes:
        shards: What the index says about each shard so far.

    Raises:
        FileExistsError: The folder is not empty, another writer writes to it, or the URL has an index.
        ValueError: An argument is invalid. While writing: a value cannot be encoded.
        KeyError: While writing: a sample lacks a column.
        TypeError: While writing: a value is of the wrong type. A sample that raises is not written.
        OSError: While writing: a file cannot be stored.

    Source:
        ``streaming.MDSWriter`` (mosaicml-streaming 0.13).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with MDSWriter(columns={"text": "str", "cls": "int"}, out=folder, hashes=["md5"]) as sink:
        ...         for number in range(3):
        ...             sink.write({"text": "abc", "cls": number})
        ...     sorted(os.listdir(folder))
        ['index.json', 'shard.00000.mds']
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: str | os.PathLike[str] | tuple[str, str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        progress_bar: bool = False,
        max_workers: int | None = None,
        retry: int = 2,
        exist_ok: bool = False,
        allow_pickle: bool = False,
    ) -> None:
        self.columns = dict(columns)
        self._hashes = _check_hashes(hashes or [])
        self._size_limit = parse_binary_size(size_limit)
        if (self._size_limit or 0) >= OFFSET_LIMIT:
            raise ValueError(f"size_limit must be below 4 GiB, as offsets have 32 bits, got {size_limit}")
        names = tuple(sorted(self.columns.items()))
        self._columns = [(name, encoding(each, allow_pickle)) for name, each in names]
        packing = Compression.of(compression) if compression else None
        if packing is not None:
            packing.compress(b"")  # a missing package shows now
        self._common = describe_columns(names, compression or None, self._hashes, self._size_limit)
        self._head = json.dumps(self._common, sort_keys=True).encode()
        self._field_sizes = struct.Struct(f"<{sum(each.size is None for _, each in self._columns)}I")
        self.shards: list[dict[str, Any]] = []
        super().__init__(out, INDEX_NAME, _ANY_FILE, packing, keep_local, exist_ok, max_workers, retry)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Writes a sample: a value of each column's type, or its encoded bytes. Other fields are ignored."""
        self._check_open()
        sizes, fields = [], [b""]
        name = ""
        try:
            for name, column in self._columns:
                field = column.encode(sample[name])
                fields.append(field)
                if column.size is None:
                    sizes.append(len(field))
                elif len(field) != column.size:
                    raise ValueError(f"it has {len(field)} bytes, and {column.name} has {column.size}")
        except KeyError:
            raise KeyError(f"the sample has no field {name!r}: it has {sorted(map(str, sample))}") from None
        except (TypeError, ValueError, OverflowError, OSError) as error:  # OSError: Pillow's
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"the field {name!r} cannot be encoded: {error}") from error
        try:
            fields[0] = self._field_sizes.pack(*sizes)
        except struct.error:
            raise ValueError(f"a field cannot have {max(sizes)} bytes, 4 GiB or more") from None
        data = b"".join(fields)
        if self._size_limit and self._size_limit < self._size_with(data):
            self._end_shard()
        if (size := self._size_with(data)) >= OFFSET_LIMIT:
            raise ValueError(f"a shard cannot have {size} bytes, 4 GiB or more: set size_limit")
        self._data += data
        self._sizes.append(len(data))

    def _size_with(self, sample: bytes) -> int:
        """The size of the shard with one sample more: its table has 4 bytes for each."""
        return 8 + len(self._head) + len(self._data) + len(sample) + 4 * (len(self._sizes) + 1)

    def _index(self) -> bytes:
        return dump_index(self.shards)

    def _end_shard(self) -> None:
        data, sizes, name = self._data, self._sizes, f"shard.{len(self.shards):05}.mds"
        shard = {**self._common, "samples": len(sizes)}
        self._in_thread(lambda: self._store_shard(name, data, sizes, shard))
        self.shards.append(shard)
        self._begin_shard()

    def _store_shard(self, name: str, data: bytearray, sizes: array[int], shard: dict[str, Any]) -> None:
        offsets = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        offsets += 4 + 4 * len(offsets) + len(self._head)
        table = struct.pack("<I", len(sizes)) + offsets.astype("<u4").tobytes()
        data[:0] = table + self._head  # moves the data, which joining would copy
        shard["raw_data"] = self._describe(name, data)
        shard["zip_data"] = None
        stored = self._packed(data)
        if self._compression is not None:
            shard["zip_data"] = self._describe(name + self._end, stored)
        self._store(name + self._end, stored)

    def _describe(self, name: str, data: bytes | bytearray) -> dict[str, Any]:
        hashes = {each: digest(each, data) for each in self._hashes}
        return {"basename": name, "bytes": len(data), "hashes": hashes}


def _check_hashes(names: Sequence[str]) -> list[str]:
    if isinstance(names, str) or list(names) != sorted(set(names)):
        raise ValueError(
            f"hashes must be a list of names, each once and in alphabetical order, got {names!r}"
        )
    for name in names:
        digest(name, b"")
    return list(names)


class StreamingDatasetWriter(DatasetWriter):
    """Writes an MDS dataset of version 1: shards and an index, for ``mpwds.StreamingDataset`` and composer.

    It stores files, and ends, as ``MDSWriter``. Where composer's own writer would write sizes that its reader
    takes for negative numbers (128 to 255 bytes, for example), the index has wider ones.

    Args:
        dirname: The dataset's folder, which is created, or URL.
        fields: Names of the fields to write, in this order.
        shard_size_limit: A shard has fewer bytes than this, unless its only sample has more.
        compression: ``None``, ``"gz"``, or ``"gz:1"`` to ``"gz:9"``.

    Raises:
        FileExistsError: The folder or URL holds such a dataset or parts of one, or another writer writes to
            the folder.
        ValueError: An argument is invalid.
        KeyError: While writing: a sample lacks a field.
        TypeError: While writing: a field is not bytes. A sample that raises is not written.
        OSError: While writing: a file cannot be stored.

    Source:
        ``composer.datasets.streaming.StreamingDatasetWriter`` (composer before 0.12).

    Example:
        >>> import tempfile
        >>> samples = [{"uid": b"%06d" % number, "data": bytes(4)} for number in range(100)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with StreamingDatasetWriter(dirname=folder, fields=["uid", "data"]) as sink:
        ...         sink.write_samples(samples, use_tqdm=False)
        ...     sorted(os.listdir(folder))
        ['000000.mds', 'index.mds']
    """

    def __init__(
        self,
        dirname: str | os.PathLike[str],
        fields: Sequence[str],
        shard_size_limit: int = 1 << 24,
        compression: str | None = None,
    ) -> None:
        if len(set(fields)) < len(fields):
            raise ValueError(f"fields must be different names, got {list(fields)}")
        if shard_size_limit < 1:
            raise ValueError(f"shard_size_limit must be at least 1, got {shard_size_limit}")
        if compression is not None and not _COMPRESSION_OF_VERSION_1.fullmatch(compression):
            raise ValueError(f"compression must be None, 'gz', or 'gz:1' to 'gz:9', got {compression!r}")
        self.dirname = dirname
        self.fields = list(fields)
        self.shard_size_limit = shard_size_limit
        packing = None if compression is None else Compression.of(compression)
        index_name = shards_v1.INDEX_NAME + ("" if packing is None else ".gz")
        self._head = struct.Struct(f"<{len(self.fields)}q")
        super().__init__(dirname, index_name, _FILES_OF_VERSION_1, packing)
        if packing is not None:
            self._in_thread(lambda: self._store("compression.txt", b"gz\n"))
        self.samples_per_shard = self.shards = list[int]()
        self._bytes_per_shard: list[int] = []
        self._all_sizes = array("q")

    def write_sample(self, sample: Mapping[str, bytes]) -> None:
        """Writes the ``fields`` of a sample, and ignores others."""
        self._check_open()
        try:
            values = [sample[name] for name in self.fields]
        except KeyError as error:
            raise KeyError(f"the sample has no field {error}: it has {sorted(map(str, sample))}") from None
        for name, value in zip(self.fields, values, strict=True):
            if not isinstance(value, (bytes, bytearray)):
                raise TypeError(f"the field {name!r} must be bytes, got {type(value).__name__}")
        data = b"".join([self._head.pack(*map(len, values)), *values])
        if self.shard_size_limit <= len(self._data) + len(data):
            self._end_shard()
        self._data += data
        self._sizes.append(len(data))

    write = write_sample  # as other writers call it

    def write_samples(
        self, samples: Iterable[Mapping[str, bytes]], use_tqdm: bool = True, total: int | None = None
    ) -> None:
        """Writes many samples.

        Args:
            samples: The samples.
            use_tqdm: Show the progress on standard error, if it is a terminal and tqdm is installed.
            total: Number of samples, for the progress.
        """
        if use_tqdm and sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                pass
            else:
                samples = tqdm(samples, total=total, leave=False)
        for sample in samples:
            self.write_sample(sample)

    def _end_shard(self) -> None:
        data, name = self._data, f"{len(self.samples_per_shard):06}.mds{self._end}"
        self._in_thread(lambda: self._store(name, self._packed(data)))
        self.samples_per_shard.append(len(self._sizes))
        self._bytes_per_shard.append(len(data))
        self._all_sizes += self._sizes
        self._begin_shard()

    def _index(self) -> bytes | bytearray:
        sizes = np.frombuffer(self._all_sizes, np.int64)
        index = shards_v1.dump_index(self.samples_per_shard, self._bytes_per_shard, sizes, self.fields)
        return self._packed(index)


def _places(out: str | os.PathLike[str] | tuple[str, str], keep_local: bool) -> tuple[str | None, str | None]:
    """The folder and the URL that files are written to."""
    folder = ""
    if isinstance(out, (tuple, list)):
        if len(out) != 2:
            raise ValueError(f"out must be a folder, a URL, or a folder and a URL, got {out!r}")
        folder, out = out
    elif is_local(out):
        return absolute_path(local_path(out)), None
    remote = absolute_path(local_path(out)) if is_local(out) else os.fspath(out).rstrip("/")
    return (absolute_path(folder or tempfile.mkdtemp()) if keep_local else None), remote


def _prepare(folder: str, exist_ok: bool, own: re.Pattern[str], claims: dict[str, int]) -> None:
    """Makes a folder that this writer alone writes to, without a dataset in it."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, _CLAIM)
    try:
        claim = lock(path, create=True)
    except OSError:  # a file system without locks
        pass
    else:
        if claim is None:
            raise FileExistsError(
                f"another writer writes to {folder}: give each one a folder of its own, and merge the indexes"
            )
        claims[path] = claim
    names = sorted(name for name in os.listdir(folder) if own.fullmatch(name) and name != _CLAIM)
    if names and not exist_ok:
        raise FileExistsError(
            f"{folder} holds files already ({names[0]}), and nothing there is overwritten: choose another "
            "folder, or remove the dataset in it: MDSWriter(exist_ok=True), mpwds convert --force"
        )
    for name in filter(_DATASET.fullmatch, names):  # the index first
        os.unlink(os.path.join(folder, name))


def _release(claims: dict[str, int], pid: int) -> None:
    if os.getpid() == pid:  # a fork has closed them
        for path, claim in claims.items():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            release(claim)


def refuse_existing(url: str) -> None:
    """Raises ``FileExistsError`` if there is something at ``url``, and ``StreamError`` if nobody can say."""
    if exists(url):
        raise FileExistsError(
            f"{without_credentials(url)} exists, and no dataset is overwritten: choose another place, or "
            "pass exist_ok=True"
        )
