"""Making and changing descriptions of datasets: what the commands ``mpwds index`` do."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from mpwds.storage.indexed.descriptions import load_description, pack, read_description
from mpwds.storage.indexed.offsets import Offsets, to_text
from mpwds.storage.streams.ahead import work_ahead
from mpwds.storage.streams.base import detects_truncation
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.urls import PACKED, folder_of, is_local, is_named, join_url, url_scheme
from mpwds.storage.tar.compression import LOOK_BYTES, compression_of
from mpwds.storage.tar.entries import read_members
from mpwds.storage.tar.headers import BLOCK
from mpwds.storage.tar.names import group
from mpwds.storage.writing.destinations import open_destination, write_whole

_JOBS = 8
_PIECE_BYTES = 1 << 20


def create_description(
    urls: Sequence[str],
    *,
    name: str | None = None,
    base: str | None = None,
    info: str | None = None,
    relative_to: str | None = None,
    offsets: bool = False,
    jobs: int | None = None,
    progress: Callable[[str], object] = lambda url: None,
) -> dict[str, Any]:
    """Reads shards, and returns the description of a dataset of them, sorted by URL.

    Each shard is read once, as a stream, ``jobs`` at a time; compressed shards are counted, too. Readers
    start relative URLs at ``base``, by default at the description's folder. That folder is ``relative_to``:
    local shards get paths relative to it. With ``offsets`` the description carries where samples begin, 2 or
    3 bytes a sample. ``progress`` is called with the URL of each shard that has been read, in their order.

    Raises ``ValueError`` if there are no shards, or one is given twice; ``ShardError`` if one is damaged;
    ``OSError`` if one cannot be read.
    """
    urls = list(urls)
    if not urls:
        raise ValueError("there are no shards to describe")
    if len(set(urls)) < len(urls):
        twice = next(url for number, url in enumerate(urls) if url in urls[:number])
        raise ValueError(f"{twice} is given twice")
    shards = []
    threads = jobs or min(_JOBS, os.cpu_count() or 1)
    with contextlib.closing(work_ahead(lambda url: describe_shard(url, offsets), urls, threads)) as described:
        for url, future in described:
            shard = future.result()
            if relative_to is not None:
                shard["url"] = _relative(url, relative_to)
            shards.append(shard)
            progress(url)
    shards.sort(key=lambda shard: str(shard["url"]))
    result: dict[str, Any] = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}
    name = _words(os.path.splitext(urls[0])[0]) if name is None else name
    given = {"name": name or None, "base": base, "info": info}
    return {**result, **{key: value for key, value in given.items() if value is not None}}


def describe_shard(url: str, offsets: bool) -> dict[str, Any]:
    """The entry of a shard in a description: ``url``, ``md5sum``, ``nsamples`` and ``filesize``.

    With ``offsets``, also where its samples begin, unless it is compressed. Raises as
    :func:`create_description`.
    """
    starts = array("I")
    with gopen(url) as stream:
        hashed = _Hashed(stream)
        entries = read_members(url, 0, lambda url, offset: cast(BinaryIO, hashed))
        for key, members in group((name, offset) for name, offset, _ in entries):
            if key:
                starts.append(next(offset for extension, offset in members if extension is not None) // BLOCK)
        while hashed.read(_PIECE_BYTES):
            pass
    entry: dict[str, Any] = {
        "url": url,
        "md5sum": hashed.digest.hexdigest(),
        "nsamples": len(starts),
        "filesize": hashed.size,
    }
    if offsets and compression_of(hashed.start) is None:
        starts.append(hashed.size // BLOCK)
        entry["offsets"] = to_text(Offsets(starts), hashed.size)
    return entry


class _Hashed:
    """A stream's bytes, as they pass by: their digest, number and beginning."""

    def __init__(self, stream: BinaryIO) -> None:
        self.digest = hashlib.md5(usedforsecurity=False)
        self.size = 0
        self.start = b""
        self._stream = stream

    @property
    def detects_truncation(self) -> bool:
        return detects_truncation(self._stream)

    def read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        self.start = self.start or piece[:LOOK_BYTES]
        self.size += len(piece)
        self.digest.update(piece)
        return piece

    def close(self) -> None:
        """Nothing: the stream is not read to its end yet."""


def update_description(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    info: str | None = None,
    base: str | None = None,
    keep: bool | None = None,
    directory: str | None = None,
    rebase: bool = False,
) -> dict[str, Any]:
    """Changes a description file, and keeps the earlier one as ``PATH.bak``.

    ``directory`` replaces the folder of each shard's URL; empty, it leaves the file's name alone. ``rebase``
    makes the one folder that all shards are in the ``base``. A description without a name gets the file's.

    Raises ``ValueError`` if shards are in several folders and one is to be the base, ``SpecError`` if the
    file is no description.
    """
    path = os.fspath(path)
    data = read_description(path)
    given = {"name": name, "info": info, "base": base, "keep": keep}
    data.update({key: value for key, value in given.items() if value is not None})
    shards = data.get("shardlist", [])
    if rebase:
        folders = {_absolute_folder(shard["url"]) for shard in shards}
        if len(folders) != 1:
            raise ValueError(f"{path}: the shards are in {len(folders)} folders, so none can be the base")
        data["base"] = folders.pop()
        directory = directory or ""
    if directory is not None:
        for shard in shards:
            path_of = shard["url"] if is_local(shard["url"]) else urlsplit(shard["url"]).path
            shard["url"] = os.path.join(directory, path_of.rpartition("/")[2])
        shards.sort(key=lambda shard: str(shard["url"]))
    data.setdefault("name", os.path.splitext(os.path.basename(path))[0])
    shutil.copy2(path, path + ".bak")
    write_description(data, path)
    return data


def write_description(
    description: Mapping[str, Any], path: str | os.PathLike[str], replace: bool = True
) -> None:
    """Writes a description to a path or URL: in binary form if the name says so, else as JSON.

    The file appears when it is complete. Raises ``ValueError`` if the binary form cannot hold it.
    """
    pieces = pack(description) if is_named(path, PACKED) else [json.dumps(description, indent=2).encode()]
    write_whole(open_destination(path, replace=replace), *pieces)


def convert_description(source: str | os.PathLike[str], target: str, replace: bool = True) -> dict[str, Any]:
    """Writes a description, with the shards that it refers to, in the form that the name of ``target`` says.

    Paths that are relative, or below the new file's folder, become relative to that. Returns what it wrote.
    """
    whole = load_description(source)
    for shard in whole["shardlist"]:
        shard["url"] = _relative(shard["url"], folder_of(target), if_below=True)
    description = {name: value for name, value in whole.items() if name not in ("base", "datasets")}
    write_description(description, target, replace)
    return description


def summarize(source: str | os.PathLike[str]) -> dict[str, Any]:
    """The figures of a description, with the shards that it refers to, as ``mpwds index info`` shows them.

    ``bytes`` counts shards whose size is known. Raises as ``load_description``.
    """
    whole = load_description(source)
    shards = whole["shardlist"]
    return {
        "name": whole.get("name"),
        "info": whole.get("info"),
        "base": whole.get("base") or folder_of(os.fspath(source)),
        "shards": len(shards),
        "samples": sum(shard["nsamples"] for shard in shards),
        "bytes": sum(shard.get("filesize", 0) for shard in shards),
        "first": shards[0]["url"],
        "last": shards[-1]["url"],
        "datasets": [str(part.get("name") or part.get("source_url")) for part in whole.get("datasets", [])],
    }


def _relative(url: str, folder: str, if_below: bool = False) -> str:
    """A URL relative to a folder, if it is a relative path; with ``if_below`` also if it is in the folder."""
    if url_scheme(url):
        below = url.removeprefix(f"{folder}/")
        return below if if_below and join_url(folder, below) == url else url
    path = os.path.relpath(url, folder or ".")
    return url if os.path.isabs(url) and (not if_below or path.startswith("../")) else path


def _absolute_folder(url: str) -> str:
    """A shard's folder, as a URL."""
    folder = folder_of(url)
    return folder if url_scheme(folder) else f"file://{os.path.abspath(folder)}"


def _words(path: str) -> str:
    """The distinct words of a path, joined by hyphens; numbers are left out."""
    words = [word for word in re.split(r"[^a-zA-Z0-9_]+", path) if not re.fullmatch(r"[0-9]*", word)]
    return "-".join(dict.fromkeys(words))
