"""The place of an MDS dataset, and the folder in which it is read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mpwds.errors import StreamError
from mpwds.storage.caches.directory import PRIVATE
from mpwds.storage.caches.locks import lock, lock_open, release, same_file
from mpwds.storage.streams.base import piece_reader, stream_version
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.resuming import Retries, retrying
from mpwds.storage.streams.urls import absolute_path, is_local, local_path, without_credentials
from mpwds.storage.writing.destinations import PendingFile, write_whole
from mpwds.warn import warn

_PIECE_BYTES = 1024 * 1024
_READERS = {
    "index.json": "version 2: MDSDataset",
    **dict.fromkeys(("index.mds", "index.mds.gz"), "version 1: StreamingDataset"),
}
_ORIGIN = os.path.join(PRIVATE, "origin")  # in a local folder: a digest of the remote and its index

_HASHES, _NO_HASHES = re.compile(rb'"hashes"\s*:\s*\{\s*"'), re.compile(rb'"hashes"\s*:\s*\{\s*\}')

T = TypeVar("T")


@dataclass(frozen=True)
class DatasetLocation:
    """The place of a dataset, and the folder in which its shards are read."""

    local: str
    remote: str | None  # the folder or URL that shards are fetched from; None if they are in ``local``
    retries: int = 2  # further attempts, when fetching fails
    timeout_s: float = 60.0  # that fetching one file may take
    temporary: TemporaryFolder | None = None  # keeps ``local``, if the user named no folder

    @staticmethod
    def of(
        local: str | os.PathLike[str] | None,
        remote: str | os.PathLike[str] | None,
        split: str | None = None,
        retries: int = 2,
        timeout_s: float = 60.0,
    ) -> DatasetLocation:
        """The location that a user's arguments name. ``local`` is empty for a temporary folder.

        A ``local`` that is the URL of another machine counts as ``remote``, and a ``remote`` folder without
        ``local`` is read where it is. Raises ``ValueError`` if neither is given, or a number is negative.
        """
        if local is not None and remote is None and not is_local(local):
            local, remote = None, local
        if local is None and remote is not None and is_local(remote):
            local, remote = remote, None
        if retries < 0 or timeout_s <= 0:
            raise ValueError(f"retries ({retries}) must not be negative, the time-out ({timeout_s}) positive")
        if local is None and remote is None:
            raise ValueError(
                "an MDS dataset needs local=, the folder it is in, or remote=, its folder or URL"
            )
        source = None if remote is None else os.path.join(os.fspath(remote), split or "")
        folder = "" if local is None else absolute_path(os.path.join(local_path(local), split or ""))
        if source is not None and is_local(source):
            source = absolute_path(local_path(source))
            source = None if source == folder else source
        return DatasetLocation(folder, source, retries, timeout_s)

    def opened(self, *names: str) -> tuple[DatasetLocation, str, bytes]:
        """The location with its folder, and the name and content of the index, which has one of these names.

        A remote index is compared with the one that the folder was made of, and kept there. Raises
        ``FileNotFoundError`` if there is none, ``FileExistsError`` if the folder holds another dataset, or
        another version of this one.
        """
        if self.remote is None:
            return self, *_first(names, self._read_local)
        try:
            name, (data, version) = _first(names, self._read)
        except (OSError, ValueError, ImportError) as error:  # also of a scheme that nothing opens
            if not any(os.path.exists(os.path.join(self.local, name)) for name in names if self.local):
                raise
            warn(f"{self.local} may be out of date: the index of the remote dataset cannot be read: {error}")
            return self, *_first(names, self._read_local)
        shown = without_credentials(self.remote)
        if _HASHES.search(data) and not _NO_HASHES.search(data):  # equal indexes prove equal shards
            version = ""
        origin = hashlib.sha256(repr((shown, data, version)).encode()).hexdigest()[:32]
        if not self.local:
            folder = TemporaryFolder.named(origin)
            return replace(self, local=folder.path, temporary=folder), name, data
        path, note = (os.path.join(self.local, each) for each in (name, _ORIGIN))
        known, noted = _content(path), _content(note)
        if known not in (None, data) or noted not in (None, origin.encode()):
            raise FileExistsError(
                f"{self.local} holds another dataset than {shown}, or an earlier version of it: remove the "
                "folder, or pass another local="
            )
        if known is None:
            for target, content in ((path, data), (note, origin.encode())):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                write_whole(PendingFile(target), content)
        return self, name, data

    def unpacked_elsewhere(self) -> DatasetLocation:
        """This location, but what has to be uncompressed is kept in a temporary folder."""
        if self.remote is not None:
            return self
        folder = TemporaryFolder.named(hashlib.sha256(f"unpacked {self.local}".encode()).hexdigest()[:32])
        return replace(self, local=folder.path, remote=self.local, temporary=folder)

    def url(self, name: str) -> str:
        """Returns the path or URL of the dataset's file of this name."""
        return os.path.join(self.local if self.remote is None else self.remote, name)

    def fetch(self, name: str) -> bytes:
        """A file of the dataset. Raises ``StreamError`` if it cannot be read."""
        return self._read(name)[0]

    def _read(self, name: str) -> tuple[bytes, str]:
        """A file's content, and its version as the server or the file system tells it."""
        url = self.url(name)
        deadline = time.monotonic() + self.timeout_s
        retries = Retries(self.retries + 1, within_s=self.timeout_s)

        def read() -> tuple[bytes, str]:
            pieces = []
            with gopen(url, retries=retries) as stream:
                version = repr(stream_version(stream))
                read_piece = piece_reader(stream)
                is_late = False
                while piece := read_piece(_PIECE_BYTES):
                    if is_late:  # and more comes: a file that is complete is not thrown away
                        raise StreamError(
                            f"{without_credentials(url)} was not fetched within {self.timeout_s:g} s: raise "
                            "the time-out",
                            url,
                        )
                    pieces.append(piece)
                    is_late = time.monotonic() > deadline
            return b"".join(pieces), version

        return retrying(read, retries)

    def _read_local(self, name: str) -> bytes:
        data = _content(os.path.join(self.local, name))
        if data is None:
            for index, reader in _READERS.items():
                if os.path.exists(os.path.join(self.local, index)):
                    raise FileNotFoundError(f"{self.local} holds an MDS dataset of {reader} reads it")
            raise FileNotFoundError(
                f"there is no {name} in {self.local}: it is no MDS dataset, or its writer did not finish"
            )
        return data


def _first(names: Sequence[str], read: Callable[[str], T]) -> tuple[str, T]:
    """The first of these files that exists, and what ``read`` returns for it."""
    missing: FileNotFoundError | None = None
    for name in names:
        try:
            return name, read(name)
        except FileNotFoundError as error:
            missing = missing or error
    assert missing is not None
    raise missing


def _content(path: str) -> bytes | None:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read()
    return None


class TemporaryFolder:
    """A folder of this user's in the temporary directory, which all users of a name share.

    The last process that uses it removes it. What a killed process left is removed when the next folder is
    made. Copies by pickling use the same folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        parent = os.path.dirname(path)
        while True:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parent, 0o700)
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found = os.lstat(parent)
                if found.st_uid != os.getuid() or found.st_mode & 0o022:
                    raise PermissionError(
                        f"{parent} is not this user's alone: pass local=, a folder for the shards"
                    )
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path)
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                if lock_open(descriptor, shared=True, timeout_s=1.0) and same_file(descriptor, path):
                    break
                os.close(descriptor)
        weakref.finalize(self, _leave, path, descriptor)
        for each in os.listdir(parent):
            _remove_unused(os.path.join(parent, each))

    @staticmethod
    def named(name: str) -> TemporaryFolder:
        """The folder of this name."""
        return TemporaryFolder(os.path.join(tempfile.gettempdir(), f"mpwds-mds-{os.getuid()}", name))

    def __reduce__(self) -> Any:
        return TemporaryFolder, (self.path,)


def _leave(path: str, descriptor: int) -> None:
    os.close(descriptor)
    _remove_unused(path)  # not in a fork: its parent holds the lock
    with contextlib.suppress(OSError):  # others are in use
        os.rmdir(os.path.dirname(path))


def _remove_unused(folder: str) -> None:
    """Removes a folder unless a process holds its lock."""
    with contextlib.suppress(OSError):
        if (descriptor := lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            release(descriptor)
