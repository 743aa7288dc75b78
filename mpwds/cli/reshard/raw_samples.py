"""Samples as they lie in tar shards, to be copied whole: neither decoded nor packed again."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import itemgetter
from typing import BinaryIO

from mpwds.closing import Closes, close_all
from mpwds.errors import ShardError
from mpwds.storage.streams.urls import is_local, local_path, rewrite_url, without_credentials
from mpwds.storage.tar.compression import LOOK_BYTES, compression_of
from mpwds.storage.tar.headers import BLOCK, GLOBAL, NO_END, WINDOW_BYTES, find_all_members
from mpwds.storage.tar.names import group, split_name
from mpwds.storage.tar.scanning import Damage, ScannedMember, scan
from mpwds.warn import warn

_OPEN_FILES = 64
_MOST_ZEROS = 1 << 20  # after the members; tar writes 10 kB at most

OBJECT_BYTES = 1000
"""About the memory that a sample takes that is found, but not read."""

_NAME = itemgetter(0)

Extents = list[tuple[int, int]]
"""From where to where."""

_Named = tuple["str | None", ScannedMember]  # a member, and its extension if it belongs to a sample


class Blocks:
    """The bytes of an archive, or of a part of it, by default of an open file that has them in place."""

    url: str

    @property
    def descriptor(self) -> int | None:
        """That of the file; ``None`` if there is none."""
        return None

    def read_into(self, target: memoryview, position: int) -> None:
        descriptor = self.descriptor
        assert descriptor is not None
        while target:
            count = os.preadv(descriptor, [target], position)
            if not count:
                raise ShardError(f"{self.url} became shorter while it was read: nothing is at {position}")
            target, position = target[count:], position + count


@dataclass(slots=True)
class RawSample:
    """A sample in an archive.

    Members that belong to no sample (directories, links, ``__meta__/...``) go with the sample after them,
    and with the last one at the archive's end.
    """

    key: str
    blocks: Blocks  # the archive
    extents: Extents  # where the sample is in it, with headers and padding
    size: int  # bytes, of all extents
    fields: dict[str, bytes] = field(default_factory=dict)  # data of some of its fields, by extension

    def __str__(self) -> str:
        return f"sample {self.key!r} at offset {self.extents[0][0]} of {self.blocks.url}"

    def read(self) -> bytearray:
        data = bytearray(self.size)
        left = memoryview(data)
        for start, stop in self.extents:
            self.blocks.read_into(left[: stop - start], start)
            left = left[stop - start :]
        return data

    def renamed(self, key: str) -> RawSample:
        """The same sample under another key. Its headers are written again."""
        written = io.BytesIO()
        with tarfile.open(fileobj=io.BytesIO(self.read()), errors="surrogateescape") as archive:
            for info in archive:
                data = archive.extractfile(info) if info.isreg() else None
                if split_name(info.name)[0] == self.key:
                    info.name = key + info.name[len(self.key) :]
                    info.pax_headers = {k: v for k, v in info.pax_headers.items() if k != "path"}
                written.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
                if data is not None:
                    written.write(data.read() + bytes(-info.size % tarfile.BLOCKSIZE))
        blocks = HeldBlocks(self.blocks.url, 0, written.getvalue())
        return RawSample(key, blocks, [(0, written.tell())], written.tell())


class OpenFiles(Closes):
    """Files to read from. When there are many, the one that was not used for longest is closed."""

    def __init__(self) -> None:
        self._files: dict[str, BinaryIO] = {}  # the one used last comes last

    def descriptor(self, path: str) -> int:
        """Opens the file unless it is open."""
        file = self._files.pop(path, None)
        if file is None:
            if len(self._files) >= _OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed above or by close()
        self._files[path] = file
        return file.fileno()

    def close(self) -> None:
        close_all(self._files.values())
        self._files.clear()


class FileBlocks(Blocks):
    """A local archive, which is opened when bytes are wanted. ``end`` is its size in bytes."""

    window_bytes = WINDOW_BYTES

    def __init__(self, url: str, path: str, files: OpenFiles) -> None:
        self.url = url
        self.end = os.path.getsize(path)
        self._path = path
        self._files = files

    @property
    def descriptor(self) -> int:
        """The open file, until the next one is opened."""
        return self._files.descriptor(self._path)

    def read(self, size: int, offset: int) -> memoryview:
        data = memoryview(bytearray(size))
        self.read_into(data, offset)
        return data


class HeldBlocks(Blocks):
    """Bytes in memory: those of an archive from ``start`` on."""

    def __init__(self, url: str, start: int, data: bytes) -> None:
        self.url = url
        self._start = start
        self._data = memoryview(data)

    def read_into(self, target: memoryview, position: int) -> None:
        begin = position - self._start
        target[:] = self._data[begin : begin + len(target)]


def read_raw_samples(
    urls: Iterable[str], files: OpenFiles, fields: Collection[str] = ()
) -> Iterator[RawSample]:
    """Yields the samples of tar shards, with the data of some ``fields``; those before damage as well.

    Those of local shards that are not compressed are found by their headers alone; ``files`` opens them when
    a sample's bytes are wanted. Those of other shards are held in memory, as long as the sample is.
    """
    for url in urls:
        path = _plain_file(url)
        if path is None:
            yield from _held(url, fields)
            continue
        blocks = FileBlocks(without_credentials(url), path, files)
        count = 0
        try:
            for sample in _side_by_side(blocks, fields):
                yield sample
                count += 1
        except ShardError:  # it is read again, with care: there is something else in it than samples
            found = _grouped(url, scan(url, lambda name: split_name(name)[1] in fields))
            for key, members in islice(found, count, None):
                extents = _extents(members)
                size = sum(stop - start for start, stop in extents)
                yield RawSample(key, blocks, extents, size, _data(members, fields))


def _side_by_side(blocks: FileBlocks, fields: Collection[str]) -> Iterator[RawSample]:
    """The samples of an archive that has nothing else in it; ``ShardError`` if it has."""
    alien = ShardError(f"{blocks.url} has something between its samples, or not just zeros after them")
    end = 0
    last: RawSample | None = None
    windows = (zip(map(_NAME, members), members, strict=True) for _, _, members in find_all_members(blocks))
    for key, members in group(chain.from_iterable(windows)):
        if last is not None:
            yield last
        begin = end
        data: dict[str, bytes] = {}
        for extension, (_, first, start, size) in members:
            if extension is None or first != end:
                raise alien
            if extension in fields:
                data[extension] = bytes(blocks.read(size, start))
            end = start + size + (-size & 511)
        last = RawSample(key, blocks, [(begin, end)], end - begin, data)
    zeros = blocks.end - end
    if not BLOCK <= zeros <= _MOST_ZEROS or bytes(blocks.read(zeros, end)).strip(b"\0"):
        raise alien
    if last is not None:
        yield last


def _held(url: str, fields: Collection[str]) -> Iterator[RawSample]:
    for key, members in _grouped(url, scan(url, lambda name: True)):
        for _, entry in members:
            if entry.size and entry.data is None:
                raise ShardError(f"{entry.name} at offset {entry.offset} of {url} has data, but is no file")
        data = b"".join(entry.blocks for _, entry in members)
        start = members[0][1].offset
        blocks = HeldBlocks(without_credentials(url), start, data)
        extents = [(start, start + len(data))]
        yield RawSample(key, blocks, extents, len(data), _data(members, fields))


def _plain_file(url: str) -> str | None:
    """The path of a shard that is a local file and not compressed."""
    place = rewrite_url(url)
    if url == "-" or not is_local(place):
        return None
    path = os.path.abspath(local_path(place))
    if not stat.S_ISREG(os.stat(path).st_mode):
        return None
    with open(path, "rb") as file:
        return path if compression_of(file.read(LOOK_BYTES)) is None else None


def _grouped(url: str, found: Iterable[ScannedMember | Damage]) -> Iterator[tuple[str, list[_Named]]]:
    """The samples' keys and members, with those that belong to no sample: see :class:`RawSample`."""
    for key, members in group(_checked(url, found)):
        if key:
            yield key, members
        else:
            warn(f"{url} has members that belong to no sample, and no samples: they are left out")


def _checked(url: str, found: Iterable[ScannedMember | Damage]) -> Iterator[tuple[str, ScannedMember]]:
    """The members with their names, which are empty for members that are no files."""
    for entry in found:
        if isinstance(entry, Damage):
            if not entry.reason.endswith(NO_END):
                raise ShardError(entry.reason)
            warn(entry.reason)
        else:
            _check_global(entry, url)
            yield entry.name if entry.is_file else "", entry


def _check_global(entry: ScannedMember, url: str) -> None:
    """Refuses a global pax header that says more than a comment: it would hold for other samples, too."""
    first = entry.header[BLOCK : 2 * BLOCK].rstrip(b"\0")
    if entry.header[156] == GLOBAL and (first.count(b"\n") != 1 or b" comment=" not in first[:30]):
        raise ShardError(
            f"global pax header at offset {entry.offset} of {url} holds for all members after it, also in "
            "the shards that they would go to: write the archive without it (tar xf, then tar cf)"
        )


def _extents(members: list[_Named]) -> Extents:
    extents: Extents = []
    for _, entry in members:
        if extents and extents[-1][1] == entry.offset:
            extents[-1] = (extents[-1][0], entry.end)
        else:
            extents.append((entry.offset, entry.end))
    return extents


def _data(members: list[_Named], fields: Collection[str]) -> dict[str, bytes]:
    wanted = ((name, entry.data) for name, entry in members if name in fields)
    return {name: data for name, data in wanted if name is not None and data is not None}
