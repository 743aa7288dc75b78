"""Descriptions of datasets: JSON files that list shards and their numbers of samples, in the form of wids."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeAlias

from mpwds.errors import SpecError
from mpwds.storage.indexed.packed import MAGIC, PackedDescription, fail
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.patterns import check_url
from mpwds.storage.streams.urls import folder_of, has_rules, join_url, url_scheme, without_credentials
from mpwds.suggestions import shown

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
