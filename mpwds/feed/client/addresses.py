"""Addresses of servers. Those of servers that come and go are looked up again and again, not read once."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from mpwds.errors import SecurityError
from mpwds.names import service
from mpwds.storage.streams.patterns import Names
from mpwds.warn import warn

if TYPE_CHECKING:
    from mpwds.loader.multi_loader import MultiLoader

LOOK_EVERY_S = 3.0
"""The time between two look-ups."""

Urls: TypeAlias = str | Sequence[str] | Callable[[], Sequence[str]]
"""One URL or several, or what returns those of the moment."""

_DNS, _FILE, _RAY = "dns+tcp://", "file:", "ray://"


class ServerDirectory(ABC):
    """Knows the URLs of servers at any moment, and with which keys they are reached."""

    @abstractmethod
    def __call__(self) -> Sequence[str]: ...

    @property
    def keys(self) -> str | None:
        """The folder of keys, for a loader that is given none."""
        return None

    def watch(self, loader: MultiLoader) -> None:  # noqa: B027 - most have no use for it
        """Learns which loader uses the servers."""


def directory_of(urls: Urls) -> Urls:
    """The same, or for ``ray://NAMESPACE/NAME`` the directory there."""
    if isinstance(urls, str) and urls.startswith(_RAY):
        found: ServerDirectory = service("servers_in_ray")(urls)
        return found
    return urls


class ServerAddresses:
    """The URLs of a loader's servers: what ``RemoteLoader`` takes as ``urls``.

    Args:
        urls: ``tcp://`` and ``ipc://`` URLs, whose braces are expanded, stand for themselves. These are
            looked up: ``dns+tcp://HOST:PORT``, all addresses of a name; ``file:PATH``, a file with a URL in
            each line, or a folder of such files; a function that returns URLs, or a :class:`ServerDirectory`.
        checked: Raises unless a ``tcp://`` or ``ipc://`` URL may be used.
        tell: Gets a text about an address that is left out.

    Attributes:
        is_followed: They are looked up, so servers may come and go.
        why: Why the last look-up of one of them failed; empty if it did not.

    Raises:
        ValueError: There is no URL, or one is of no kind that is known.
        SecurityError: A URL needs keys; a look-up raises it, too.
    """

    def __init__(
        self, urls: Urls, checked: Callable[[str], None], tell: Callable[[str], None] = warn
    ) -> None:
        entries = [urls] if isinstance(urls, str) or callable(urls) else list(urls)
        self._entries, self._checked, self._tell = entries, checked, tell
        self._sources = [_look_up_of(entry, checked) for entry in entries]
        self._found: list[list[str]] = [[] for _ in entries]
        self.is_followed = not all(isinstance(source, list) for source in self._sources)
        self.why = ""
        self._told: set[str] = set()
        if not any(self._sources):
            raise ValueError("RemoteLoader: there is no URL of a server")

    def look_up(self) -> list[str]:
        """The URLs of the moment. What cannot be looked up counts as it was last."""
        why = ""
        for index, source in enumerate(self._sources):
            try:
                self._found[index] = source if isinstance(source, list) else self._good(index, source())
            except SecurityError:
                raise
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
        self.why = why
        return list(dict.fromkeys(url for found in self._found for url in found))

    def _good(self, index: int, found: Sequence[str]) -> list[str]:
        """The URLs that may be used, after braces are expanded; tells of others, once."""
        good, source = [], self._sources[index]
        places = source.places if isinstance(source, _UrlLines) else {}
        for entry in found:
            for url in Names(entry):
                try:
                    self._checked(url)
                    good.append(url)
                except SecurityError:
                    raise
                except ValueError as error:
                    if url not in self._told:
                        self._told.add(url)
                        where = places.get(entry, self._entries[index])
                        self._tell(f"an address of {where} is left out: {error}")
        return good


def _look_up_of(entry: object, checked: Callable[[str], None]) -> list[str] | Callable[[], Sequence[str]]:
    """The URLs of an entry, or what looks them up."""
    if callable(entry):
        return entry
    if not isinstance(entry, str):
        raise ValueError(f"RemoteLoader: a URL is a str, got {entry!r}")
    if entry.startswith(_DNS):
        checked(entry.removeprefix("dns+"))
        return partial(_dns_records, entry)
    if entry.startswith(_FILE):
        return _UrlLines(entry[len(_FILE) :])
    urls = list(Names(entry))
    for url in urls:
        checked(url)
    return urls


def _dns_records(url: str) -> list[str]:
    """All addresses of a name: those of a headless service, for example."""
    parts = urlsplit(url)
    records = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    hosts = sorted({str(address[0]) for *_, address in records})
    return [f"tcp://{f'[{host}]' if ':' in host else host}:{parts.port}" for host in hosts]


class _UrlLines:
    """A URL in each line of a file, or of the files of a folder. ``#`` begins a comment.

    ``places`` says in which file and line each was found last.
    """

    def __init__(self, path: str) -> None:
        self.places: dict[str, str] = {}
        self._path = Path(path.removeprefix("//"))
        if not path:
            raise ValueError("RemoteLoader: file: needs the path of a file with URLs")

    def __call__(self) -> list[str]:
        is_folder = self._path.is_dir()
        names = sorted(os.listdir(self._path)) if is_folder else [""]
        files = [self._path / name if name else self._path for name in names if not name.startswith(".")]
        self.places = {
            url: f"{_FILE}{file}, line {number},"
            for file in files
            for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
            if (url := line.partition("#")[0].strip())
        }
        return list(self.places)
