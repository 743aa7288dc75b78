"""The shards, and the objects in programs, that a command line names."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from mpwds.cli.jobs import noted
from mpwds.errors import WrongArgument
from mpwds.imports import load_object
from mpwds.pipeline.sources.formats import find_format, tar_urls
from mpwds.pipeline.stream import Stage
from mpwds.storage.streams.patterns import expand_urls
from mpwds.storage.streams.urls import url_scheme

_SERVERS = re.compile(r"(tcp|ipc|dns\+tcp|ray|zr?(push|pull|pub|sub|req|rep)(\+ipc)?)://")


def expanded(patterns: Iterable[str]) -> list[str]:
    """The names that patterns stand for, in order; ``-`` is one."""
    return [name for pattern in patterns for name in expand_urls(pattern)]


def shard_urls(patterns: Iterable[str]) -> list[str]:
    """The tar shards that patterns, descriptions (``.json``) and folders of shards name, in order."""
    return [url for pattern in patterns for url in tar_urls(pattern)]


def names_servers(url: str) -> bool:
    """True if a URL names feed servers or tensorcom's sockets, as ``file:servers.txt`` does, and no shards.

    Example:
        >>> [names_servers(url) for url in ("tcp://host:7880", "file:servers.txt", "file:x.tar", "x.txt")]
        [True, True, False, False]
    """
    return bool(_SERVERS.match(url)) or (url_scheme(url) == "file" and find_format(url) is None)


def load(source: str) -> Any:
    """The object that ``FILE.py:NAME`` or ``package.module:NAME`` names. Workers import the same module."""

    def importing(module: str) -> ModuleType:
        with noted(f"in importing {module}"):
            return importlib.import_module(module)

    return load_object(source, importing)


def load_dataset(source: str) -> Any:
    """The dataset that ``load`` finds. Raises ``WrongArgument`` if a loader does not take it."""
    from mpwds.loader.worker.elements import as_dataset

    dataset = load(source)
    if isinstance(dataset, list) and any(isinstance(each, Stage) for each in dataset):
        raise WrongArgument(f"{source} is a list of stages: name a dataset that begins at shards")
    what = source
    try:
        as_dataset(dataset)
        if inspect.isfunction(dataset):
            what = f"{source} is a function, which workers call without arguments"
            inspect.signature(dataset).bind()
    except TypeError as error:
        raise WrongArgument(f"{what}: {error}") from None
    return dataset
