"""Samples of tar shards by number."""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from mpwds.errors import ShardError, StreamError
from mpwds.storage.indexed.offsets import Offsets, from_text, load_or_find, to_text
from mpwds.storage.indexed.shards import OpenShards
from mpwds.storage.streams.base import Version, stream_version
from mpwds.storage.streams.gopen import open_at, open_range
from mpwds.storage.streams.urls import is_local, local_path, url_to_cache_name, without_credentials
from mpwds.storage.tar.headers import BLOCK, WINDOW_BYTES, find_members
from mpwds.storage.tar.names import split_name
from mpwds.suggestions import shown

if TYPE_CHECKING:
    from mpwds.storage.caches.shard_cache import ShardCache

_File: TypeAlias = "MappedShard | RemoteShard"
_Open: TypeAlias = "tuple[str, _File, array[int], Sequence[str], bytes, struct.Struct, Any, dict[str, Any]]"
"""A shard's URL and file, its ``Offsets`` and their ``row``, its map (if there are suffixes, there is one),
and a sample without values: flat, since it is taken apart for each sample."""

_LARGE_BYTES = 16 * 1024


class TarShards(OpenShards):
    """Samples of tar shards, by number (an ``IndexedShards``).

    Needs the offsets of a shard's samples and fields. The first process that uses a shard reads all its
    headers and keeps the offsets in ``.mpwds/NAME.offsets`` beside it, or in the cache's folder if it may not
    write there; otherwise each process keeps its own in memory. A shard that has changed since, by size, time
    or inode, is read again. A global pax header is not applied to the members after it.

    Args:
        urls: The shards: local files, or URLs if there is a ``cache``.
        lengths: The number of samples in each; by default the shards tell, which opens each of them.
        described: Their descriptions, which may carry ``offsets``.
        cache: Keeps copies of shards that are not local, or of their offsets; or a function of a URL that
            returns such a cache.
        remote: Whether to read samples of such shards by ranges, without a copy. The server must answer
            ranges; each sample is a request.
        open_files: How many shards are open at a time.
        more: Makes of a shard's description what ``members`` adds to each of its samples.

    Attributes:
        accesses: How many samples were read.
        misses: For how many of them a shard was opened.
        fetches: How many times a copy of a shard was opened.

    Raises:
        ValueError: ``urls`` and ``lengths`` are of different lengths, or ``open_files`` is below 1.
    """

    def __init__(
        self,
        urls: Sequence[str],
        lengths: Sequence[int] | None = None,
        *,
        described: Sequence[Mapping[str, Any]] | None = None,
        cache: ShardCache | Callable[[str], ShardCache] | None = None,
        remote: bool = False,
        open_files: int = 100,
        more: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    ) -> None:
        if open_files < 1:
            raise ValueError(f"open_files must be at least 1, got {open_files}")
        if lengths is not None and len(lengths) != len(urls):
            raise ValueError(f"there are {len(urls)} shards and {len(lengths)} lengths")
        super().__init__(open_files)
        self.urls = urls
        self.accesses = 0
        self.misses = 0
        self.fetches = 0
        self._lengths = lengths
        self._described = described
        self._offsets: dict[int, tuple[object, str]] = {}  # of versions beside which nothing can be written
        self._cache = cache
        self._remote = remote
        self._more = more

    @property
    def lengths(self) -> Sequence[int]:
        """The number of samples in each shard."""
        if self._lengths is None:
            self._lengths = [len(self._opened(shard)[2]) - 1 for shard in range(len(self.urls))]
            if self.fetches:
                self.close()  # this process may never read them, and copies that are open take room
        return self._lengths

    @property
    def fetches_to_count(self) -> bool:
        """True if ``lengths`` would fetch shards, or their headers."""
        return self._lengths is None and not all(map(is_local, self.urls))

    def __len__(self) -> int:
        """The number of samples in all shards."""
        return sum(self.lengths)

    def read(self, shard: int, index: int) -> dict[str, Any]:
        """A sample as ``WebDataset`` yields it: ``__key__``, ``__url__``, and its fields' bytes.

        Raises:
            IndexError: The shard has no such sample.
            ShardError: The shard is damaged, compressed, has another number of samples than ``lengths`` says,
                or two members of one name in the sample.
            OSError: It cannot be opened.
        """
        url, file, starts, *_ = self._opened(shard)
        if not 0 <= index < len(starts) - 1:
            raise IndexError(f"{file.url} has {len(starts) - 1} samples, there is no sample {index}")
        members = self.members(shard, index)
        key = members.pop("__key__")
        sample: dict[str, Any] = {"__key__": key, "__url__": url}
        for suffix, data in members.items():
            field = suffix[1:].lower()
            if field in sample:
                raise self._twice(shard, key, field)
            sample[field] = data
        return sample

    def members(
        self,
        shard: int,
        index: int,
        small: Callable[[bytes], Any] = bytes,
        large: Callable[[memoryview], Any] = bytes,
    ) -> dict[str, Any]:
        """A sample's members by suffix, which is the extension with the dot, and its ``__key__``.

        ``small`` makes a member's value of its data, ``large`` of 16 KiB or more, given as a view of the
        shard. ``index`` is not checked. Raises as :meth:`read`.
        """
        self.accesses += 1
        _, _, _, suffixes, rows, row, block, blank = self._open.get(shard) or self._opened(shard)
        if not suffixes:
            return self._found(shard, index, small, large)
        numbers = row.unpack_from(rows, index * row.size)
        name = (numbers[1] - 1) * BLOCK
        sample = blank.copy()  # to add the keys one by one takes longer
        sample["__key__"] = block[name : name + numbers[0]].decode()
        place = 1
        for suffix in suffixes:
            begin = numbers[place] * BLOCK
            size = numbers[place + 1]
            if size < _LARGE_BYTES:
                sample[suffix] = small(block[begin : begin + size])
            else:
                sample[suffix] = large(memoryview(block)[begin : begin + size])
            place += 2
        return sample

    def _found(self, shard: int, index: int, small: Any, large: Any) -> dict[str, Any]:
        """The result of :meth:`members`, found by the members' headers."""
        _, file, starts, *_, blank = self._opened(shard)
        start, stop = starts[index] * BLOCK, starts[index + 1] * BLOCK
        block = file.read(stop - start + BLOCK, start)  # with the header after it
        found = find_members(block[: stop - start], start, file)
        is_sample = bool(found) and found[-1][2] + found[-1][3] <= stop
        if is_sample:
            following = find_members(block[stop - start :], stop, file)
            keys = {split_name(name)[0] for name, *_ in found} - {""}
            is_sample = len(keys) == 1 and keys.isdisjoint(split_name(name)[0] for name, *_ in following)
        if not is_sample:
            raise ShardError(
                f"the offsets of {file.url} are of another shard: at {start}, there is no sample of "
                f"{stop - start} bytes; remove the file of offsets, or describe the shard again"
            )
        (key,) = keys
        members: dict[str, Any] = {}
        for name, _, begin, size in found:
            if name.startswith(f"{key}."):
                suffix = name[len(key) :]
                if suffix in members:
                    raise self._twice(shard, key, suffix[1:])
                data = block[begin - start : begin - start + size]
                members[suffix] = small(bytes(data)) if size < _LARGE_BYTES else large(memoryview(data))
        return {**members, **blank, "__key__": key}

    _open: dict[int, _Open]

    def _opened(self, shard: int) -> _Open:
        if shard in self._open:
            return self._open[shard]
        self.misses += 1
        self._make_room()
        url = self.urls[shard]
        file, paths = self._open_file(url)
        known = self._offsets.get(shard)
        described = self._described[shard].get("offsets") if self._described else None
        carried = known[1] if known and known[0] == file.version else described
        offsets = from_text(carried, file) if carried else None
        if offsets is None:
            offsets, is_kept = load_or_find(file, paths)
            if not is_kept:
                self._offsets[shard] = file.version, to_text(offsets, file.end)
        count, expected = len(offsets.starts) - 1, self._lengths and self._lengths[shard]
        if expected is not None and count != expected:
            raise ShardError(
                f"{file.url} has {count} samples, its description says {expected}: the shard is cut off, or "
                "the description is of another version; mpwds index create makes a new one"
            )
        block: Any = file.map
        if block is None:
            offsets = Offsets(offsets.starts)
        blank: dict[str, Any] = {**dict.fromkeys(offsets.suffixes), "__key__": None}
        if self._more and self._described:
            blank.update(self._more(self._described[shard]))
        opened = self._open[shard] = url, file, *offsets, offsets.row, block, blank
        return opened

    def _open_file(self, url: str) -> tuple[_File, list[str]]:
        """A shard, open, and where its offsets may be kept."""
        from mpwds.storage.caches.directory import distinct_name, offsets_path, source_digest

        cache = self._cache(url) if callable(self._cache) else self._cache
        if is_local(url):
            path = local_path(url)
            paths = [offsets_path(*os.path.split(path))]
            if cache is not None:
                name = distinct_name(os.path.basename(path), source_digest(os.path.abspath(path)))
                paths.append(offsets_path(cache.directory, name))
            return MappedShard(url, open_at(url)), paths
        if self._remote:
            name = distinct_name(url_to_cache_name(url).rpartition("/")[2], source_digest(url))
            return RemoteShard(url), [] if cache is None else [offsets_path(cache.directory, name)]
        shown = without_credentials(url)
        if cache is None:
            raise ValueError(
                f"{shown} is not a local file: to read its samples by number, give a cache for copies, or "
                "remote=True if its server answers ranges"
            )
        self.fetches += 1
        for number, (_, file, *_) in list(self._open.items()):
            if file.is_removed:  # the cache needs its room
                self._open.pop(number, None)
        stream = cache.open_whole(url)
        name = os.path.relpath(cache.path(url), cache.directory)
        return MappedShard(shown, stream), [offsets_path(cache.directory, name)]

    def _twice(self, shard: int, key: str, field: str) -> ShardError:
        return ShardError(
            f"{without_credentials(self.urls[shard])}: sample {shown(key)} has two members {shown(field)}; "
            "each extension of a sample must be unique in the shard"
        )


class MappedShard:
    """A shard's file, mapped into memory: copying 100 kB of it takes half as long as reading them.

    As with any mapped file, reading what somebody cuts off meanwhile ends the process (SIGBUS).

    ``version`` differs from that of any other file: times of modification and of change in ns, inode.
    """

    window_bytes = WINDOW_BYTES
    is_remote = False

    def __init__(self, url: str, stream: BinaryIO) -> None:
        self.url = url
        with stream:
            status = os.fstat(stream.fileno())
            if status.st_size == 0:
                raise ShardError(f"{url} is empty: a tar file without members has blocks of zeros")
            self.map = mmap.mmap(stream.fileno(), status.st_size, access=mmap.ACCESS_READ)
        self.end = status.st_size
        self.version: tuple[int | str, ...] = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        self._path, self._status = stream.name, status

    @property
    def is_removed(self) -> bool:
        """True if the file has lost its name, so that only this object keeps it on the disk."""
        try:
            return not os.path.samestat(os.stat(self._path), self._status)
        except OSError:
            return True

    def read(self, size: int, offset: int) -> memoryview:
        """A view of ``size`` bytes from ``offset`` on; fewer at the end."""
        return memoryview(self.map)[offset : offset + size]


_HEAD_BYTES = 16 * 1024


class RemoteShard:
    """A shard that is read by ranges, each a request of its own; its first bytes are kept.

    ``version`` is its entity tag or date; empty if the server gives neither. ``StreamError`` if it cannot be
    read by ranges or, while reading, has changed.
    """

    # A round trip of 20 ms is as long as 256 KiB take at 100 Mbit/s.
    window_bytes = 256 * 1024, 8 * 1024 * 1024
    is_remote = True
    is_removed = False
    map = None

    def __init__(self, url: str) -> None:
        self.url = without_credentials(url)
        self._address = url
        self._version: Version | None = None
        self.end = _HEAD_BYTES
        self._head = self._fetch(_HEAD_BYTES, 0)
        if self._version is None or self._version.size is None:
            raise StreamError(
                f"{self.url} cannot be read by ranges: that takes a web server or cloud storage that tells a "
                "file's size; read a copy, without remote=True",
                self.url,
            )
        self.end = self._version.size
        self.version: tuple[int | str, ...] = tuple(
            filter(None, (self._version.etag or self._version.modified,))
        )

    def read(self, size: int, offset: int) -> bytes:
        """``size`` bytes from ``offset`` on; fewer at the end."""
        end = min(offset + size, self.end)
        if end <= len(self._head):
            return self._head[offset:end]
        data = self._fetch(end - offset, offset)
        if len(data) < end - offset:
            raise ShardError(f"{self.url} ends at byte {offset + len(data)}, and had {self.end} bytes before")
        return data

    def _fetch(self, size: int, offset: int) -> bytes:
        with open_range(self._address, offset, size) as stream:
            now = stream_version(stream)
            self._version = known = self._version or now
            if known.is_recognisable and (difference := known.difference(now)):
                raise StreamError(
                    f"{self.url} changed while it was read: {difference}; open the dataset again, and do "
                    "not write over shards in use",
                    self.url,
                    offset,
                )
            return stream.read(size)
