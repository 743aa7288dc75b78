"""Descriptions in binary form: processes map one copy, and read only what they use of it.

``docs/reference/formats.md`` has the layout: a header, three tables of int64, what a description says besides
its shards, their URLs, and the details of each shard, which are not read before they are asked for.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from mpwds.errors import SpecError
from mpwds.storage.indexed.shards import Computed, Lengths
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.patterns import check_url
from mpwds.storage.streams.urls import folder_of, has_rules, is_local, join_url, without_credentials

MAGIC = b"mpwdsix1"
_HEADER = struct.Struct("<8sI4x4Q")
_CHECKED = 16  # where the bytes begin of which the header has the CRC


def pack(description: Mapping[str, Any]) -> list[bytes]:
    """The pieces of a file that holds a description. Raises ``ValueError`` if that refers to others."""
    if description.get("datasets"):
        raise ValueError("the binary form has no datasets in it: write JSON, and use mpwds index convert")
    shards = description["shardlist"]
    urls = [shard["url"].encode("utf-8", "surrogatepass") for shard in shards]
    contents = _without(description, "shardlist")
    details = [_without(shard, "url", "nsamples") for shard in shards]
    columns = [[shard["nsamples"] for shard in shards], [*map(len, urls)], [*map(len, details)]]
    tables = [np.cumsum([0, *column], dtype="<i8").tobytes() for column in columns]
    sizes = len(shards), len(contents), sum(columns[1]), sum(columns[2])
    checked = b"".join([_HEADER.pack(MAGIC, 0, *sizes)[_CHECKED:], *tables, contents, *urls])
    return [_HEADER.pack(MAGIC, zlib.crc32(checked), *sizes)[:_CHECKED] + checked, *details]


def _without(given: Mapping[str, Any], *names: str) -> bytes:
    return json.dumps({name: value for name, value in given.items() if name not in names}).encode()


def open_packed(source: str | os.PathLike[str], head: bytes = b"") -> PackedDescription:
    """Opens a description: maps a local file, fetches a URL. Raises as :class:`PackedDescription`."""
    name = os.fspath(source)
    with open_at(name) as stream:
        if is_local(name) and os.fstat(stream.fileno()).st_size:
            return PackedDescription(name, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), head)
        return PackedDescription(name, stream.read(), head)


class PackedDescription:
    """A description in binary form: the file or URL ``name``, whose bytes are ``data``.

    It makes objects of a shard when it is asked for that shard. A pickle holds the name, and the ``head`` of
    the file that was checked here: the file that another process maps must begin with it. ``contents`` is
    what the description says besides its shards. Raises ``SpecError`` if the data is damaged or cut off.
    """

    def __init__(self, name: str, data: bytes | mmap.mmap, head: bytes = b"") -> None:
        self._name = name
        self._data = data
        self._head = data[: _HEADER.size]
        magic = self._head[: len(MAGIC)]
        if magic[:-1] != MAGIC[:-1]:
            self._fail(f"is no description in binary form (mpwds index makes them): it begins with {magic!r}")
        if magic != MAGIC:
            self._fail(f"has version {magic[-1:]!r} of the format, and this mpwds reads {MAGIC[-1:]!r}")
        if head and head != self._head:
            self._fail("was replaced after the dataset was opened: open the dataset again")
        if len(self._head) < _HEADER.size:
            self._fail(f"ends at byte {len(data)}, in its header: it was cut off")
        crc, self._count, *sizes = _HEADER.unpack(self._head)[1:]
        self._width = self._count + 1
        contents_at = _HEADER.size + 24 * self._width
        self._urls_at, self._details_at, end = list(accumulate(sizes, initial=contents_at))[1:]
        if len(data) != end:
            self._fail(f"has {len(data)} bytes and its header says {end}: it was cut off or written over")
        self._places = memoryview(data)[_HEADER.size : contents_at].cast("q")
        if not head:
            self._check(crc, sizes[1:])
        try:
            self.contents: dict[str, Any] = {**json.loads(data[contents_at : self._urls_at])}
            self._base = join_url(folder_of(name), self.contents.get("base", ""))
        except (ValueError, TypeError) as error:
            self._fail(f"says something that is no JSON object with a base ({error}): make it again")
        self._start = join_url(self._base, "x")[:-1]
        self._may_run = has_rules() or "pipe:" in self._start.lower()

    @property
    def lengths(self) -> Lengths:
        """The shards' numbers of samples."""
        return Lengths(self._count, self._length, self._ends)

    @property
    def urls(self) -> Sequence[str]:
        """The shards' URLs, absolute. One that runs a command is a ``SecurityError``."""
        return Computed(self._count, self._url)

    @property
    def shards(self) -> Sequence[dict[str, Any]]:
        """The descriptions of the shards. Reading a damaged one raises ``SpecError``."""
        return Computed(self._count, self._shard)

    def __reduce__(self) -> Any:
        return open_packed, (self._name, self._head)

    def _check(self, crc: int, sizes: Sequence[int]) -> None:
        if not self._count:
            self._fail("lists no shards")
        if zlib.crc32(memoryview(self._data)[_CHECKED : self._details_at]) != crc:
            self._fail("is damaged: its checksum is another one; make it again")
        columns = np.frombuffer(self._places, np.int64).reshape(3, self._width)
        for column, size in zip(columns, (None, *sizes), strict=True):
            if column[0] or (column[1:] < column[:-1]).any() or size not in (None, column[-1]):
                self._fail("has tables that are not in order: whatever wrote it did not follow the format")

    def _ends(self) -> npt.NDArray[np.int64]:
        return np.frombuffer(self._places[1 : self._width], np.int64)

    def _length(self, shard: int) -> int:
        return self._places[shard + 1] - self._places[shard]

    def _written_url(self, shard: int) -> str:
        begin, end = self._places[self._width + shard : self._width + shard + 2]
        url = self._data[self._urls_at + begin : self._urls_at + end]
        try:
            return url.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self._fail(
                f"has a URL that is not UTF-8, {url!r}: whatever wrote it did not follow the format", shard
            )

    def _url(self, shard: int) -> str:
        url = self._written_url(shard)
        if self._may_run or ":" in url or "./" in url or "//" in url or url[:1] == "/":
            url = join_url(self._base, url)
            if self._may_run or url[:5].lower() == "pipe:":  # else it is harmless
                check_url(url, False, f"{without_credentials(self._name)}, shardlist[{shard}]")
            return url
        return self._start + url  # as most are: each sample asks for one

    def _shard(self, shard: int) -> dict[str, Any]:
        begin, end = self._places[2 * self._width + shard : 2 * self._width + shard + 2]
        text = self._data[self._details_at + begin : self._details_at + end]
        found = {"url": self._written_url(shard), "nsamples": self._length(shard)}
        try:
            return {**found, **json.loads(text), **found}
        except (ValueError, TypeError) as error:
            self._fail(f"is damaged, {text[:20]!r} is no JSON object ({error}): make it again", shard)

    def _fail(self, what: str, shard: int | None = None) -> NoReturn:
        fail(self._name, "" if shard is None else f"shardlist[{shard}]", what)


def fail(file: str, key: str, what: str) -> NoReturn:
    """Raises the error for a description that is not valid at the place ``key``."""
    at = f", {key}:" if key else ""
    raise SpecError(f"{without_credentials(file)}{at} {what}", file, key=key)
