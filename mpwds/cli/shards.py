"""The shards, and the objects in programs, that a command line names."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from mpwds.cli.jobs import noted
from mpwds.pipeline.sources.formats import tar_urls
from mpwds.storage.streams.base import stream_version
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.patterns import expand_urls
from mpwds.storage.streams.urls import is_local, local_path, url_scheme


def expanded(patterns: Iterable[str]) -> list[str]:
    """The names that patterns stand for, in order. Raises as ``expand_urls`` does.

    Example:
        >>> expanded(["x-{0..1}.tar", "-"])
        ['x-0.tar', 'x-1.tar', '-']
    """
    return [name for pattern in patterns for name in expand_urls(pattern)]


def shard_urls(patterns: Iterable[str]) -> list[str]:
    """The tar shards that patterns, descriptions (``.json``) and folders of shards name, in order."""
    return [url for pattern in patterns for url in tar_urls(pattern)]


def version_of(url: str) -> object:
    """The size and time of a local file, or the version that a server tells; ``None`` of a pipe.

    Raises ``OSError`` if there is no such file.
    """
    if url == "-" or url_scheme(url) == "pipe":
        return None
    if is_local(url):
        status = os.stat(local_path(url))
        return status.st_size, status.st_mtime_ns
    with open_at(url, read_ahead=0) as stream:
        return stream_version(stream)


def load(source: str) -> Any:
    """The object that ``FILE.py:NAME`` or ``package.module:NAME`` names. Workers import the same module."""
    where, _, name = source.rpartition(":")
    if not where or not name:
        raise typer.BadParameter(f"{source!r}: expected FILE.py:NAME, such as pipeline.py:dataset")
    path = Path(where)
    if path.suffix == ".py":
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        sys.path.insert(0, str(path.parent.resolve()))
        where = path.stem
    else:
        sys.path.insert(0, "")
    with noted(f"in importing {where}"):
        value: Any = importlib.import_module(where)
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise typer.BadParameter(f"{source}: the module {where} has no {part!r}") from None
    return value
