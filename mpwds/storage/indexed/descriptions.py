"""Descriptions of datasets: files that list shards and their numbers of samples.

They are JSON, in the form of wids, or binary. Processes map one copy of a binary one, and read only what they
use of it. ``docs/reference/formats.md`` has its layout: a header, three tables of int64, what a description
says besides its shards, their URLs, and the details of each shard.
"""

from __future__ import annotations

import contextlib
import copy
import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import IO, Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from mpwds.errors import SpecError
from mpwds.storage.indexed.shards import Computed, Lengths
from mpwds.storage.streams.gopen import gopen, open_at
from mpwds.storage.streams.patterns import check_url
from mpwds.storage.streams.urls import (
    folder_of,
    has_rules,
    is_local,
    join_url,
    url_scheme,
    without_credentials,
)
from mpwds.suggestions import shown

MAGIC = b"mpwdsix1"
_HEADER = struct.Struct("<8sI4x4Q")
_CHECKED = 16  # where the bytes begin of which the header has the CRC

Source: TypeAlias = "str | os.PathLike[str] | IO[Any]"
Shard = dict[str, Any]


def load_description(source: Source) -> dict[str, Any]:
    """Reads a description, and all that it refers to; its ``shardlist`` then names every shard.

    ::

        {
          "wids_version": 1,
          "name": "digits",
          "base": "https://host/data",
          "shardlist": [{"url": "000.tar", "nsamples": 1000}],
          "datasets": [
            {"name": "more", "weight": 0.5, "source_url": "more/index.json"},
            {"name": "mine", "shardlist": [{"url": "/data/mine.tar", "nsamples": 7}]}
          ]
        }

    A shard is ``url`` and ``nsamples``, and perhaps ``filesize`` (bytes), ``md5sum``, ``dataset``, ``weight``
    and ``offsets`` (where its samples begin: :mod:`mpwds.storage.indexed.offsets`). Relative URLs start at
    ``base``, which by default is the folder of the file that they are in. The shards of ``datasets`` follow
    those of the ``shardlist``. They may have ``datasets`` themselves. A shard without ``weight`` or ``name``
    gets those of the description around it; ``dataset`` is the name of the part of ``datasets`` it is in.

    Raises ``SpecError``, which says where, if it is not valid, and ``SecurityError`` if a URL in it runs a
    command (``pipe:``).

    Source:
        ``wids.wids_specs.load_dsdesc_and_resolve`` (webdataset 0.2.100), which ignores the ``base`` of the
        description itself, and resolves URLs of inline ``datasets`` against nothing.
    """
    description = Description(source)
    return {**description.contents, "shardlist": description.shards}


def read_description(source: Source) -> dict[str, Any]:
    """A description as it is in its file. Raises ``SpecError`` if that holds no JSON object of version 1."""
    if isinstance(source, (str, os.PathLike)):
        file = os.fspath(source)
        with gopen(file) as stream:
            text = stream.read()
    else:
        file, text = _name_of(source), source.read()
    if text[: len(MAGIC)] == MAGIC:
        packed = PackedDescription(file, text)
        return {**packed.contents, "shardlist": [*packed.shards]}
    if text[:2] == b"\x1f\x8b":
        fail(file, "", "is compressed (gzip): decompress it")
    try:
        contents = json.loads(text)
    except ValueError as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        what = f"is not JSON: {error} (nor is it a description in binary form)"
        raise SpecError(f"{without_credentials(file)} {what}", file, line) from None
    if not isinstance(contents, dict):
        fail(file, "", "is not a JSON object, but a " + type(contents).__name__)
    if contents.get("wids_version") != 1:
        fail(file, "wids_version", f"must be 1, got {shown(contents.get('wids_version'))}")
    return contents


@dataclass(frozen=True)
class _Part:
    """A description, or a part of one, whose shards are changed in place."""

    contents: Mapping[str, Any]
    file: str
    base: str  # where its relative URLs start
    inherited: Mapping[str, Any]  # what its shards get unless they have their own
    files: tuple[str, ...]  # that led here
    key: str = ""  # where it is in the file: "datasets[0]."

    def list(self, name: str) -> list[Any]:
        value = self.contents.get(name, [])
        if not isinstance(value, list):
            fail(self.file, self.key + name, f"must be a list, got {type(value).__name__}")
        return value


class Description:
    """A description that was read. ``base`` and ``options`` override its own.

    Attributes:
        contents: What the file and ``options`` hold.
        shards: The shards, with absolute URLs and what they inherit.
        lengths: The shards' numbers of samples.
    """

    def __init__(
        self, source: Source, *, base: str | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        is_named = isinstance(source, (str, os.PathLike))
        file = os.fspath(source) if is_named else _name_of(source)  # type: ignore[arg-type]
        self.contents = {**read_description(source), **copy.deepcopy(dict(options or {}))}
        self.lengths: list[int] = []
        self.shards: list[Shard] = []
        self._has_rules = has_rules()
        if base is None:
            base = join_url(folder_of(file) if is_named else "", self.contents.get("base", ""))
        self._add(_Part(self.contents, file, base, _own(self.contents, {}), (file,)))
        if not self.lengths:
            fail(file, "shardlist", "lists no shards")

    @property
    def urls(self) -> list[str]:
        """The shards' URLs, absolute."""
        return [shard["url"] for shard in self.shards]

    def _add(self, part: _Part) -> None:
        self._add_shards(part)
        for number, inner in enumerate(part.list("datasets")):
            key = f"{part.key}datasets[{number}]"
            if not isinstance(inner, dict):
                fail(part.file, key, f"must be an object, got {shown(inner)}")
            if "source_url" in inner:
                self._add_referred(part, inner, key)
            elif "shardlist" in inner or "datasets" in inner:
                dataset = {"dataset": inner["name"]} if inner.get("name") else {}
                inherited = {**part.inherited, **_own(inner, {}), **dataset}
                base = join_url(part.base, inner.get("base", ""))
                self._add(_Part(inner, part.file, base, inherited, part.files, f"{key}."))
            else:
                fail(part.file, key, "has neither shardlist nor source_url")

    def _add_referred(self, part: _Part, reference: Mapping[str, Any], key: str) -> None:
        url = reference["source_url"]
        if not isinstance(url, str):
            fail(part.file, f"{key}.source_url", f"must be a string, got {shown(url)}")
        url = join_url(part.base, url)
        self._check(url, part.file, key)
        if url in part.files:
            fail(part.file, f"{key}.source_url", f"{url} leads back to itself")
        contents = read_description(url)
        own = _own(contents, reference)
        dataset = {"dataset": own["name"]} if own.get("name") else {}
        inherited = {**part.inherited, **own, **dataset, "source_url": url}
        base = join_url(folder_of(url), contents.get("base", reference.get("base", "")))
        self._add(_Part(contents, url, base, inherited, (*part.files, url)))

    def _add_shards(self, part: _Part) -> None:
        shards = part.list("shardlist")
        urls, counts = self._checked_columns(part, shards)
        written, start = "\n" + "\n".join(urls), join_url(part.base, "x")[:-1]
        if any(mark in written for mark in (":", "./", "//", "\n/")):
            urls = [join_url(part.base, url) for url in urls]
        else:  # as most are: there may be many
            urls = [start + url for url in urls]
        if self._has_rules or "pipe:" in f"{start}{written}".lower():  # else they are harmless
            for number, url in enumerate(urls):
                self._check(url, part.file, f"{part.key}shardlist[{number}]")
        for shard, url in zip(shards, urls, strict=True):
            shard["url"] = url
        for name, value in part.inherited.items():
            for shard in shards:
                shard.setdefault(name, value)
        self.shards += shards
        self.lengths += counts

    def _checked_columns(self, part: _Part, shards: Sequence[Any]) -> tuple[list[str], list[int]]:
        """The URLs and lengths of shards as they are given. Raises ``SpecError`` unless all are valid."""
        with contextlib.suppress(TypeError, KeyError):  # which one is wrong is found below
            urls, counts = [shard["url"] for shard in shards], [shard["nsamples"] for shard in shards]
            "".join(urls)  # raises if one is no string
            if {*map(type, counts)} == {int} and all(urls) and min(counts) >= 0:
                return urls, counts
        for number, shard in enumerate(shards):
            key = f"{part.key}shardlist[{number}]"
            if not isinstance(shard, dict):
                fail(part.file, key, f"must be an object, got {shown(shard)}")
            url, count = shard.get("url"), shard.get("nsamples")
            if type(url) is not str or not url:
                fail(part.file, f"{key}.url", f"must be a path or URL, got {shown(url)}")
            if type(count) is not int or count < 0:
                fail(part.file, f"{key}.nsamples", f"must be the number of samples, got {shown(count)}")
        return [], []

    def _check(self, url: str, file: str, key: str) -> None:
        if url_scheme(url) == "pipe" or self._has_rules:  # else it is harmless
            check_url(url, False, f"{without_credentials(file)}, {key}")


def _own(contents: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """Name and weight that a description, or else the reference to it, gives its shards."""
    own = {
        "name": contents.get("name", reference.get("name")),
        "weight": reference.get("weight", contents.get("weight")),
    }
    return {name: value for name, value in own.items() if value is not None}


def _name_of(file: Any) -> str:
    return str(getattr(file, "name", "description"))


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
