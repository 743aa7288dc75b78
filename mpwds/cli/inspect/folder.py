"""Writes files below a folder and nowhere else, whatever their names."""

from __future__ import annotations

import errno
import os
from types import TracebackType

from mpwds.errors import MpwdsError
from mpwds.storage.writing.destinations import PendingFile, write_whole


class UnsafeName(MpwdsError, ValueError):
    """A file's name leads out of the folder."""


class Folder:
    """A folder to write files to; made when the first one is written.

    No name leads out of it: not by ``..``, not by starting at the root, and not through symbolic links, even
    those that others make at the same time.

    Args:
        path: The folder.
        force: Replace files that exist.
    """

    def __init__(self, path: str, force: bool = False) -> None:
        self._path = path
        self._force = force
        self._open: tuple[list[str], int] | None = None  # the directory written to last

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, which appears under its name when it is complete.

        Raises:
            UnsafeName: The name leads out of the folder.
            FileExistsError: There is such a file, and ``force`` is not set.
        """
        *directories, last = [part for part in name.split("/") if part != "."] or [""]
        if {"", ".."} & {*directories, last} or "\0" in name:
            raise UnsafeName(f"the name {name!r} leads out of the folder: not written")
        descriptor = self._directory(directories)
        if not self._force and _exists(last, descriptor):
            raise FileExistsError(
                errno.EEXIST,
                "it exists already: extract elsewhere, or replace it with --force",
                f"{self._path}/{name}",
            )
        shown = "/".join((self._path, *directories, last))
        write_whole(PendingFile(shown, sync=False, replace=self._force, directory=descriptor), data)

    def close(self) -> None:
        """Closes the directory that is open."""
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _directory(self, parts: list[str]) -> int:
        """A descriptor of a directory below the folder, made if need be."""
        if self._open is not None and self._open[0] == parts:
            return self._open[1]
        self.close()
        os.makedirs(self._path, exist_ok=True)
        descriptor = os.open(self._path, os.O_DIRECTORY | os.O_CLOEXEC)
        for part in parts:
            try:
                if not _exists(part, descriptor):
                    os.mkdir(part, dir_fd=descriptor)
                flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                following = os.open(part, flags, dir_fd=descriptor)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise UnsafeName(f"{part!r} is a link or a file, not a folder: not written") from None
                raise
            finally:
                os.close(descriptor)
            descriptor = following
        self._open = parts, descriptor
        return descriptor


def _exists(name: str, descriptor: int) -> bool:
    try:
        os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
