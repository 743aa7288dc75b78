"""A file that appears under its name only when it is complete."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import warnings
import weakref
from typing import BinaryIO

_NAME_BYTES = 255  # of a file, at most, in Linux's and macOS's file systems
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES, errno.EPERM)


class PendingFile:
    """A file written under a temporary name beside its final one.

    ``publish`` makes it durable and gives it its name, replacing what had that name; ``discard`` removes it.
    A file that was neither published nor discarded is removed when this object or the interpreter goes; a
    process that is killed leaves it, as ``.NAME.XXXXXXXX.partial`` (a long ``NAME`` without its end). A fork
    of the process that made it removes nothing.

    Args:
        path: The final name. A relative one counts from what is the current directory now; the file behind a
            symbolic link is replaced, not the link.

    Attributes:
        path: The final name, absolute.
        stream: Where to write, unbuffered.

    Raises:
        FileNotFoundError: The file's directory does not exist.
        FileExistsError: A directory, a pipe or a device has that name.
        OSError: The name is longer than the file system takes, or it refuses for another reason.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     pending = PendingFile(os.path.join(directory, "x.tar"))
        ...     written = pending.stream.write(b"data")
        ...     before = os.path.exists(pending.path)
        ...     pending.publish()
        ...     before, os.listdir(directory)
        (False, ['x.tar'])
    """

    path: str
    stream: BinaryIO

    def __init__(self, path: str) -> None:
        if not os.path.basename(path) or (os.path.exists(path) and not os.path.isfile(path)):
            raise FileExistsError(
                errno.EEXIST, "cannot write here, it is a directory, a pipe or a device", path
            )
        self.path = os.path.realpath(path)
        self._directory, name = os.path.split(self.path)
        temporary = os.path.join(self._directory, _temporary_name(name))
        with contextlib.suppress(FileNotFoundError):
            os.lstat(self.path)  # a name that is too long fails here, not when everything has been written
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                error.errno, "cannot write here, the directory does not exist", self._directory
            ) from None
        # Unbuffered: a fork of this process would write what is in the buffer a second time when it exits.
        self.stream = open(descriptor, "wb", buffering=0)  # noqa: SIM115 - closed by both ends
        self._temporary = temporary
        self._owner_pid = os.getpid()
        self._remove = weakref.finalize(self, _abandoned, self.path, self.stream, temporary, os.getpid())

    def publish(self) -> None:
        """Write everything to disk, then rename. On an error the file is discarded."""
        try:
            os.fsync(self.stream.fileno())
            self.stream.close()
            os.replace(self._temporary, self.path)
        except BaseException:
            self.discard()
            raise
        self._remove.detach()
        _sync_directory(self._directory)

    def discard(self) -> None:
        """Close and remove the file; does nothing when that is done or the file is published."""
        if self._remove.detach() is not None and os.getpid() == self._owner_pid:
            _close_and_remove(self.stream, self._temporary)


def _temporary_name(name: str) -> str:
    ending = f".{secrets.token_hex(4)}.partial"
    while len(os.fsencode(name)) > _NAME_BYTES - len(ending) - 1:
        name = name[:-1]
    return f".{name}{ending}"


def _abandoned(path: str, stream: BinaryIO, temporary: str, owner_pid: int) -> None:
    if os.getpid() != owner_pid:
        return
    _close_and_remove(stream, temporary)
    warnings.warn(
        f"{path} was not written: its writer was dropped before it was closed; use `with`, or call close()",
        RuntimeWarning,
        stacklevel=2,
    )


def _close_and_remove(stream: BinaryIO, temporary: str) -> None:
    with contextlib.suppress(OSError):  # a full disk: what could not be written is thrown away anyway
        stream.close()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)


def _sync_directory(directory: str) -> None:
    """Makes a new name durable, where the file system can do that and we may."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
