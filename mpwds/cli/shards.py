"""The shards that a command line names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable

from mpwds.pipeline.sources.directory_shards import shards_in
from mpwds.storage.indexed.descriptions import load_description
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.patterns import expand_braces, expand_urls
from mpwds.storage.streams.urls import is_local, local_path, url_scheme

_GLOB = re.compile(r"[*?[]")


def expanded(patterns: Iterable[str]) -> list[str]:
    """The names that braces, and globs of local files, stand for, in order.

    Raises ``FileNotFoundError`` if no file matches a glob, and ``ValueError`` as ``expand_urls`` does.

    Example:
        >>> expanded(["x-{0..1}.tar", "-"])
        ['x-0.tar', 'x-1.tar', '-']
    """
    names: list[str] = []
    for pattern in patterns:
        if not (_GLOB.search(pattern) and is_local(pattern)):
            names += expand_urls(pattern)
            continue
        for name in expand_braces(local_path(pattern)):
            matching = [name] if os.path.exists(name) else sorted(glob.glob(name))
            if not matching:
                raise FileNotFoundError(f"no file matches {name}")
            names += matching
    return names


def shard_urls(patterns: Iterable[str]) -> list[str]:
    """The tar shards that patterns, descriptions (``.json``) and folders of shards name, in order."""
    return [shard for url in expanded(patterns) for shard in _tar_shards(url)]


def version_of(url: str) -> object:
    """The size and time of a local file, or the version that a server tells; ``None`` of a pipe.

    Raises ``OSError`` if there is no such file.
    """
    if url == "-" or url_scheme(url) == "pipe":
        return None
    if is_local(url):
        status = os.stat(local_path(url))
        return status.st_size, status.st_mtime_ns
    with open_at(url) as stream:
        return getattr(getattr(stream, "raw", None), "version", None)


def _tar_shards(url: str) -> list[str]:
    if is_local(url) and os.path.isdir(local_path(url)):
        return shards_in(local_path(url))
    if url.partition("?")[0].endswith(".json"):
        return [str(shard["url"]) for shard in load_description(url)["shardlist"]]
    return [url]
