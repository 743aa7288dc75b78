"""Samples as they lie in tar shards, to be copied whole: neither decoded nor packed anew."""

from __future__ import annotations

import io
import os
import tarfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from mpwds.errors import ShardError
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.rewriting import rewrite_url
from mpwds.storage.streams.urls import is_local, local_path
from mpwds.storage.tar.entries import MAX_DECOMPRESSED_BYTES
from mpwds.storage.tar.input import FileInput, open_archive
from mpwds.storage.tar.names import split_name
from mpwds.storage.tar.streams import Input
from mpwds.storage.tar.walk import Place, walk
from mpwds.warn import warn

_OPEN_FILES = 64
_LOOK_AHEAD_BYTES = 4096

OBJECT_BYTES = 1000
"""About the memory that a sample takes that is found, but not read."""

Extents = list[tuple[int, int]]
"""From where to where."""


class Blocks(Protocol):
    """The bytes of an archive, or of a part of it."""

    url: str

    def read_into(self, target: memoryview, position: int) -> None:
        """Fills ``target`` with the bytes from ``position`` of the archive on."""


@dataclass
class RawSample:
    """A sample in an archive.

    Members that belong to no sample (directories, links, ``__meta__/...``) go with the sample behind them,
    and with the last one at the archive's end.

    Args:
        key: The sample's key.
        blocks: The archive.
        extents: Where the sample is in it, with headers and padding.
        members: Where its members are, if they were looked for.
    """

    key: str
    blocks: Blocks
    extents: Extents
    members: list[Place] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes in the archive."""
        return sum(stop - start for start, stop in self.extents)

    def __str__(self) -> str:
        return f"sample {self.key!r} at offset {self.extents[0][0]} of {self.blocks.url}"

    def read(self) -> bytearray:
        """All of its blocks."""
        data = bytearray(self.size)
        left = memoryview(data)
        for start, stop in self.extents:
            self.blocks.read_into(left[: stop - start], start)
            left = left[stop - start :]
        return data

    def field(self, name: str) -> bytes | None:
        """The data of the member with this extension; ``None`` if there is none."""
        for member in self.members:
            if split_name(member.name or "")[1] == name:
                data = bytearray(member.size)
                self.blocks.read_into(memoryview(data), member.data)
                return bytes(data)
        return None

    def renamed(self, key: str) -> RawSample:
        """The same sample under another key. Its headers are written anew."""
        written = io.BytesIO()
        with tarfile.open(fileobj=io.BytesIO(self.read()), errors="surrogateescape") as archive:
            for info in archive:
                data = archive.extractfile(info) if info.isreg() else None
                if split_name(info.name)[0] == self.key:
                    info.name = key + info.name[len(self.key) :]
                    info.pax_headers = {**info.pax_headers, "path": info.name}
                written.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
                if data is not None:
                    written.write(data.read() + bytes(-info.size % tarfile.BLOCKSIZE))
        blocks = HeldBlocks(self.blocks.url, 0, written.getvalue())
        return RawSample(key, blocks, [(0, written.tell())])


class OpenFiles:
    """Files to read from. When there are many, the one that was not used for longest is closed."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, BinaryIO] = OrderedDict()

    def descriptor(self, path: str) -> int:
        """Opens the file unless it is open."""
        file = self._files.pop(path, None)
        if file is None:
            if len(self._files) >= _OPEN_FILES:
                self._files.popitem(last=False)[1].close()
            file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed above or by close()
        self._files[path] = file
        return file.fileno()

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()


class FileBlocks:
    """A local archive, which is opened when bytes are wanted."""

    def __init__(self, url: str, path: str, files: OpenFiles) -> None:
        self.url = url
        self._path = path
        self._files = files

    def take(self, extents: Extents) -> FileBlocks:
        """Where a sample's bytes are: in the file."""
        return self

    def read_into(self, target: memoryview, position: int) -> None:
        fill(target, self._files.descriptor(self._path), position, self.url)


class HeldBlocks:
    """Bytes in memory: those of an archive from ``start`` on."""

    def __init__(self, url: str, start: int, data: bytes) -> None:
        self.url = url
        self._start = start
        self._data = memoryview(data)

    def read_into(self, target: memoryview, position: int) -> None:
        begin = position - self._start
        target[:] = self._data[begin : begin + len(target)]


def read_raw_samples(urls: Iterable[str], files: OpenFiles) -> Iterator[RawSample]:
    """Yields the samples of tar shards.

    Those of local shards that are not compressed are found by their headers alone. Those of other shards are
    held in memory, as long as the sample is.

    Raises:
        ShardError: A shard is damaged; the samples before the fault have been yielded.
    """
    for url in urls:
        with closing(open_archive(url, 0, open_at, MAX_DECOMPRESSED_BYTES)) as source:
            if isinstance(source, FileInput) and url != "-" and is_local(rewrite_url(url)):
                blocks = FileBlocks(source.url, os.path.abspath(local_path(rewrite_url(url))), files)
                yield from _samples(source, blocks.take)
            else:
                recorded = _Recorded(source)
                yield from _samples(recorded, recorded.take)


def _samples(source: Input, blocks_of: Callable[[Extents], Blocks]) -> Iterator[RawSample]:
    key = ""
    extents: Extents = []
    members: list[Place] = []
    between: Extents = []  # members of no sample since the last that has one
    for member in walk(source):
        found = "" if member.name is None else split_name(member.name)[0]
        if not found:
            _extend(between, member.start, member.stop)
            continue
        if found != key:
            if key:
                yield RawSample(key, blocks_of(extents), extents, members)
            key, extents, members = found, [], []
        for extent in between:
            _extend(extents, *extent)
        between = []
        _extend(extents, member.start, member.stop)
        members.append(member)
    if key:
        for extent in between:
            _extend(extents, *extent)
        yield RawSample(key, blocks_of(extents), extents, members)
    elif between:
        warn(f"{source.url} has members that belong to no sample, and no samples: they are left out")


def _extend(extents: Extents, start: int, stop: int) -> None:
    if extents and extents[-1][1] == start:
        extents[-1] = (extents[-1][0], stop)
    else:
        extents.append((start, stop))


class _Recorded:
    """An ``Input`` that keeps the bytes of a stream until they are taken."""

    def __init__(self, source: Input) -> None:
        self.url = source.url
        self.end = source.end
        self.largest = source.largest
        self._source = source
        self._held = bytearray()
        self._start = 0  # of what is held, in the archive

    def window(self, position: int, need: int) -> tuple[bytes, int]:
        self._read_to(position + need)
        return self._bytes(position, position + max(need, _LOOK_AHEAD_BYTES)), 0

    def data(self, position: int, size: int, padding: int) -> bytes:
        self._read_to(position + size)
        return self._bytes(position, position + size)

    def take(self, extents: Extents) -> HeldBlocks:
        """The bytes of a sample. Those up to its end are kept no longer."""
        start, stop = extents[0][0], extents[-1][1]
        self._read_to(stop)
        taken = HeldBlocks(self.url, start, self._bytes(start, stop))
        del self._held[: stop - self._start]
        self._start = stop
        return taken

    def _read_to(self, stop: int) -> None:
        while (reached := self._start + len(self._held)) < min(stop, self.end):
            piece, at = self._source.window(reached, 1)
            self._held += memoryview(piece)[at:]
            self.end = self._source.end

    def _bytes(self, start: int, stop: int) -> bytes:
        return bytes(memoryview(self._held)[start - self._start : stop - self._start])

    def close(self) -> None:
        self._source.close()


def fill(target: memoryview, descriptor: int, position: int, url: str) -> None:
    """Fills ``target`` from ``position`` of a file on."""
    while target:
        count = os.preadv(descriptor, [target], position)
        if not count:
            raise ShardError(f"{url} became shorter while it was read: nothing is left at {position}")
        target, position = target[count:], position + count
