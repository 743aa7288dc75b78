"""Descriptions of datasets: JSON files that list shards and their numbers of samples, in the form of wids."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Mapping
from typing import IO, Any, NoReturn, TypeAlias
from urllib.parse import urlsplit

from mpwds.errors import SpecError
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.rewriting import check_url
from mpwds.storage.streams.urls import has_rules, local_path, url_scheme, without_credentials

Source: TypeAlias = "str | os.PathLike[str] | IO[Any]"
Shard = dict[str, Any]


def load_description(
    source: Source,
    *,
    base: str | None = None,
    options: Mapping[str, Any] | None = None,
    trusted: bool = False,
) -> dict[str, Any]:
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

    Args:
        source: Path, URL or open file of a description.
        base: Where relative URLs start, in place of the description's own ``base``.
        options: Override keys of the description.
        trusted: Whether URLs in it may run commands (``pipe:``).

    Returns:
        The description as a new dict.

    Raises:
        SpecError: It is no valid description; the message says where.
        SecurityError: It is not trusted, and a URL would run a command.
        OSError: A file cannot be read.

    Source:
        ``wids.wids_specs.load_dsdesc_and_resolve`` (webdataset 0.2.100), which ignores the ``base`` of the
        description itself, and resolves URLs of inline ``datasets`` against nothing.

    Example:
        >>> import io
        >>> file = io.StringIO('{"wids_version": 1, "shardlist": [{"url": "0.tar", "nsamples": 7}]}')
        >>> load_description(file, base="https://host/data")["shardlist"]
        [{'url': 'https://host/data/0.tar', 'nsamples': 7}]
    """
    given = source if isinstance(source, (str, os.PathLike)) else getattr(source, "name", "description")
    place = os.fspath(given) if isinstance(given, (str, os.PathLike)) else "description"
    contents = {**read_description(source), **(options or {})}
    reader = _Reader(trusted)
    folder = folder_of(place) if isinstance(source, (str, os.PathLike)) else ""
    reader.add(contents, place, folder, base, {}, {}, (place,))
    if not reader.shards:
        _fail(place, "shardlist", "lists no shards")
    return {**contents, "shardlist": reader.shards}


def read_description(source: Source) -> dict[str, Any]:
    """A description as it is in its file. Raises ``SpecError`` if that holds no JSON object of version 1."""
    if isinstance(source, (str, os.PathLike)):
        place = os.fspath(source)
        with gopen(place) as stream:
            text = stream.read()
    else:
        place, text = str(getattr(source, "name", "description")), source.read()
    try:
        contents = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", None)
        raise SpecError(f"{without_credentials(place)} is not JSON: {error}", place, line) from None
    if not isinstance(contents, dict):
        _fail(place, "", "is not a JSON object, but a " + type(contents).__name__)
    if contents.get("wids_version") != 1:
        _fail(place, "wids_version", f"must be 1, got {contents.get('wids_version')!r}")
    return contents


class _Reader:
    """Collects the shards of a description and of those that it refers to."""

    def __init__(self, trusted: bool) -> None:
        self.shards: list[Shard] = []
        self._trusted = trusted

    def add(
        self,
        contents: Mapping[str, Any],
        place: str,
        folder: str,
        base: str | None,
        reference: Mapping[str, Any],
        inherited: Mapping[str, Any],
        chain: tuple[str, ...],
        key: str = "",
    ) -> None:
        """Adds the shards of ``contents``, which is at ``key`` of the file ``place``.

        ``reference`` is what referred to it, ``inherited`` what shards get from further out, and ``chain``
        the files that led here.
        """
        if base is None:
            base = join_url(folder, contents.get("base", reference.get("base", "")))
        weight = reference.get("weight", contents.get("weight"))
        own = {"name": contents.get("name", reference.get("name")), "weight": weight}
        inherited = {**inherited, **{name: value for name, value in own.items() if value is not None}}
        shards = self._list(contents, "shardlist", place, key)
        for number, shard in enumerate(shards):
            self._add_shard(shard, base, inherited, place, f"{key}shardlist[{number}]")
        parts = self._list(contents, "datasets", place, key)
        for number, part in enumerate(parts):
            at = f"{key}datasets[{number}]"
            if not isinstance(part, dict):
                _fail(place, at, f"must be an object, got {part!r}")
            if "source_url" in part:
                self._add_referred(part, base, inherited, chain, place, at)
            elif "shardlist" in part or "datasets" in part:
                name = {"dataset": part["name"]} if part.get("name") else {}
                self.add(part, place, base, None, {}, {**inherited, **name}, chain, f"{at}.")
            else:
                _fail(place, at, "has neither shardlist nor source_url")

    def _add_referred(
        self,
        part: Mapping[str, Any],
        base: str,
        inherited: Mapping[str, Any],
        chain: tuple[str, ...],
        place: str,
        at: str,
    ) -> None:
        url = part["source_url"]
        if not isinstance(url, str):
            _fail(place, f"{at}.source_url", f"must be a string, got {url!r}")
        url = join_url(base, url)
        self._check(url, place, at)
        if url in chain:
            _fail(place, f"{at}.source_url", f"{url} leads back to itself")
        contents = read_description(url)
        name = contents.get("name") or part.get("name")
        inherited = {**inherited, "source_url": url, **({"dataset": name} if name else {})}
        self.add(contents, url, folder_of(url), None, part, inherited, (*chain, url))

    def _add_shard(self, shard: Any, base: str, inherited: Mapping[str, Any], place: str, key: str) -> None:
        if not isinstance(shard, dict):
            _fail(place, key, f"must be an object, got {shard!r}")
        url, count = shard.get("url"), shard.get("nsamples")
        if not isinstance(url, str) or not url:
            _fail(place, f"{key}.url", f"must be a path or URL, got {url!r}")
        if type(count) is not int or count < 0:
            _fail(place, f"{key}.nsamples", f"must be the number of samples, got {count!r}")
        url = join_url(base, url)
        self._check(url, place, key)
        self.shards.append({**inherited, **shard, "url": url})

    def _check(self, url: str, place: str, key: str) -> None:
        if url_scheme(url) == "pipe" or has_rules():  # else it is harmless
            check_url(url, self._trusted, f"{without_credentials(place)}, {key}")

    def _list(self, contents: Mapping[str, Any], name: str, place: str, key: str) -> list[Any]:
        value = contents.get(name, [])
        if not isinstance(value, list):
            _fail(place, key + name, f"must be a list, got {type(value).__name__}")
        return value


def folder_of(url: str) -> str:
    """The folder of a path or URL; empty for a command.

    Example:
        >>> folder_of("data/index.json"), folder_of("https://host/data/index.json?version=1")
        ('data', 'https://host/data')
    """
    scheme = url_scheme(url)
    if not scheme or scheme == "file":
        return os.path.dirname(local_path(url))
    if scheme == "pipe" or "//" not in url:
        return ""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{posixpath.dirname(parts.path)}"


def join_url(base: str, url: str) -> str:
    """A URL that may be relative to the folder ``base``. A path that begins with ``/`` keeps only the host.

    Example:
        >>> join_url("https://host/a/b", "../0.tar"), join_url("https://host/a", "/b/0.tar")
        ('https://host/a/0.tar', 'https://host/b/0.tar')
        >>> join_url("data", "x/0.tar"), join_url("data", "s3://bucket/0.tar")
        ('data/x/0.tar', 's3://bucket/0.tar')
    """
    if not base or url_scheme(url):
        return url
    host = ""
    if "://" in base:
        parts = urlsplit(base)
        host, base = f"{parts.scheme}://{parts.netloc}", parts.path or "/"
    joined = posixpath.join(base, url)
    return host + (posixpath.normpath(joined) if "./" in joined or "//" in joined else joined)


def _fail(place: str, key: str, what: str) -> NoReturn:
    at = f", {key}:" if key else ""
    raise SpecError(f"{without_credentials(place)}{at} {what}", place, key=key)
