"""Destinations of archives: a file that appears when it is complete, a URL, or the caller's own stream."""

from __future__ import annotations

import contextlib
import errno
import filecmp
import glob
import io
import os
import re
import secrets
import stat
import sys
import warnings
import weakref
from collections.abc import Iterable
from typing import Any, BinaryIO, TypeAlias

from mpwds.errors import StreamError, WrongArgument
from mpwds.interrupts import interrupts_deferred
from mpwds.storage.caches.locks import lock_open, release, remove_unlocked, same_file
from mpwds.storage.streams.base import unbuffered
from mpwds.storage.streams.gopen import gopen, gopen_schemes
from mpwds.storage.streams.resuming import Retries
from mpwds.storage.streams.urls import (
    is_local,
    local_path,
    refuse_in_secure_mode,
    rewrite_url,
    url_scheme,
    without_credentials,
)
from mpwds.warn import warn

_NAME_LETTERS = 50  # of a file's name in its temporary one, which may have 255 bytes
_PATIENCE_S = 60.0  # others lock temporary files for a moment, to remove them
_NUMBER = re.compile(r"%(?:0(\d+))?d")  # not the escapes of URLs, such as that in my%20data
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES, errno.EPERM)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)  # of file systems without hard links


Destination: TypeAlias = "_Given | OwnedStream | PendingFile"
"""A ``stream`` that ``publish`` completes and ``discard`` throws away. It may take less than it is given."""


def open_destination(
    target: str | os.PathLike[str] | BinaryIO | OwnedStream,
    sync: bool = True,
    replace: bool = True,
    retries: Retries | None = None,
) -> Destination:
    """Opens an archive's destination.

    A path or a ``file:`` URL becomes a ``PendingFile``, to which ``sync`` and ``replace`` go; a named pipe or
    a device is written to directly. ``gopen`` opens other URLs, with ``retries``, and they are closed at the
    end. A binary stream stays open, and so does ``"-"``, standard output.
    """
    if isinstance(target, OwnedStream):
        return target
    if not isinstance(target, (str, os.PathLike)):
        return _Given(target)
    url = os.fspath(target)
    if url == "-":
        return _Given(sys.stdout.buffer)
    place = rewrite_url(url)
    if url_scheme(place) in gopen_schemes or not is_local(place):
        options: dict[str, Any] = {} if retries is None else {"retries": retries}
        return OwnedStream(gopen(url, "wb", **options), without_credentials(url))
    refuse_in_secure_mode("local files may not be written", place)
    path = local_path(place)
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        return OwnedStream(open(path, "wb", buffering=0), path)
    return PendingFile(path, sync, replace)


def write_whole(destination: Destination, *pieces: bytes | bytearray) -> None:
    """Writes pieces to a destination and publishes it. After an error in writing it is discarded."""
    try:
        for piece in pieces:
            write_all(destination.stream, piece, destination.path)
    except BaseException:
        destination.discard()
        raise
    destination.publish()


def write_all(stream: BinaryIO, data: bytes | bytearray | memoryview, name: str | None = None) -> None:
    """Writes all of ``data`` to a stream, which may take less than it is given; ``name`` is for errors.

    Raises ``BlockingIOError`` if a raw stream does not block.
    """
    while data:
        try:
            written = stream.write(data)
        except OSError as error:  # a full disk's, which does not say where
            if error.errno and name is not None:
                error.filename = error.filename or name
            raise
        if written is None and isinstance(stream, io.RawIOBase):
            raise BlockingIOError(f"{stream!r} does not block: files and archives go to blocking streams")
        if written is None:  # a stream of the user's own, which takes everything and says nothing
            return
        data = memoryview(data)[written:]


class _Given:
    """The caller's stream: stays open, with all that was written to it."""

    path = None

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream

    def publish(self) -> None:
        if hasattr(self.stream, "flush"):  # a writer needs only the stream's write
            self.stream.flush()

    def discard(self) -> None:
        pass


class OwnedStream:
    """A stream whose ``close`` completes the output, at the other end as well."""

    path = None

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.stream = stream
        self._name = name

    def publish(self) -> None:
        """Closes the stream."""
        self.stream.close()

    def discard(self) -> None:
        """Ends the stream without completing the output, if the stream can do that.

        That takes a method ``discard``, as the streams of ``gopen`` and fsspec have, or an ``__exit__`` of
        its own that is told of an error: smart_open's, obstore's and Google's streams then abort the upload.
        A plain file is closed and removed. Any other stream is left alone, with a warning: not even garbage
        collection calls its ``close``.
        """
        discard = getattr(self.stream, "discard", None)
        if discard is not None:
            with contextlib.suppress(Exception):  # that of fsspec's local files always fails
                discard()
                return
        leave = getattr(type(self.stream), "__exit__", None)
        raw = unbuffered(self.stream)
        if type(raw) in (io.FileIO, io.BytesIO):
            if type(raw) is io.FileIO:
                _remove(raw)
            self.stream.close()
        elif leave not in (None, io.IOBase.__exit__):
            error = StreamError(f"{self._name}: writing was given up", self._name)
            self.stream.__exit__(type(error), error, None)
        else:
            warn(
                f"{self._name} is not complete, and its stream ({type(self.stream).__name__}) has no method "
                "`discard` to take it back: look for a partial archive there, and remove it"
            )
            _let_go(self.stream)


def _remove(file: io.FileIO) -> None:
    """Removes an open file, unless it is a pipe or a device, or another file has its name by now."""
    with contextlib.suppress(OSError, TypeError):  # it may have been opened by descriptor
        opened, named = os.fstat(file.fileno()), os.lstat(file.name)
        if stat.S_ISREG(opened.st_mode) and os.path.samestat(opened, named):
            os.unlink(file.name)


def _let_go(stream: Any) -> None:
    """Closes the part of a stream that is of ``io``: its finalizer would call the stream's own ``close``."""
    with contextlib.suppress(Exception):
        if type(stream) in (io.BufferedWriter, io.BufferedRandom):
            stream = stream.detach()
        closing = next((base for base in type(stream).__mro__ if base.__module__ in ("io", "_io")), None)
        if closing is not None:
            closing.close(stream)  # type: ignore[attr-defined]  # all of io's classes have it


class PendingFile:
    """A file written under a temporary name beside its final one.

    ``discard`` removes the file, and so does the end of this object or of the interpreter. A process that is
    killed leaves it as ``.NAME.XXXXXXXX.partial``, which is locked while its writer lives. A fork removes
    nothing. If the path is a symbolic link, that stays, and the file that it names is written.

    With ``sync``, the file is durable before it gets its name; with ``replace``, it replaces one that has the
    name then. ``directory`` is a descriptor of the directory that the file is in, so that renaming
    directories and symbolic links do not lead elsewhere; a link of that name is not followed.
    """

    path: str
    stream: BinaryIO

    def __init__(
        self, path: str, sync: bool = True, replace: bool = True, directory: int | None = None
    ) -> None:
        if directory is None:
            if not os.path.basename(path) or (os.path.exists(path) and not os.path.isfile(path)):
                raise FileExistsError(
                    errno.EEXIST, "cannot write here, it is a directory, a pipe or a device", path
                )
            path = os.path.realpath(path)
        self.path = path
        self._sync = sync
        self._replace = replace
        folder, name = os.path.split(path)
        inside = folder if directory is None else f"/proc/self/fd/{directory}"
        self._name = os.path.join(inside, name)
        with contextlib.suppress(FileNotFoundError):  # a name that is too long fails here, not in the end
            os.lstat(self._name)
        with interrupts_deferred():  # or Ctrl-C would leave a file that nobody removes
            try:
                descriptor, temporary = _create_locked(os.path.join(inside, f".{name[:_NAME_LETTERS]}"))
            except FileNotFoundError as error:
                raise FileNotFoundError(
                    error.errno, "cannot write here, the directory does not exist", folder
                ) from None
            # Unbuffered: a fork of this process would write the buffered bytes a second time when it exits.
            self.stream = open(descriptor, "wb", buffering=0)  # noqa: SIM115 - closed by both ends
            self._temporary = temporary
            self._owner_pid = os.getpid()
            self._remove = weakref.finalize(self, _abandoned, path, self.stream, temporary, os.getpid())

    def publish(self) -> None:
        """Gives the file its name, once it is on disk if that is wanted. On an error the file is discarded.

        Raises ``FileExistsError`` if a file of other content has the name and is not to be replaced.
        """
        try:
            if self._sync:
                os.fsync(self.stream.fileno())
            locked = os.dup(self.stream.fileno())  # until it has its name: others remove what is not locked
            try:
                self.stream.close()
                if self._replace:
                    os.replace(self._temporary, self._name)
                else:
                    self._take_free_name()
            finally:
                release(locked)
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError) and error.errno:  # a full disk's does not say where
                error.filename = error.filename or self.path
            raise
        self._remove.detach()
        if self._sync:
            _sync_directory(os.path.dirname(self._name))

    def discard(self) -> None:
        """Closes and removes the file, unless it was published or discarded already."""
        if self._remove.detach() is not None and os.getpid() == self._owner_pid:
            _close_and_remove(self.stream, self._temporary)

    def _take_free_name(self) -> None:
        try:
            rename_to_free(self._temporary, self._name)
        except FileExistsError:  # a worker that was restarted may repeat a shard
            if not filecmp.cmp(self._temporary, self._name, shallow=False):
                reason = "it was written meanwhile by another program, and is not replaced"
                raise FileExistsError(errno.EEXIST, reason, self.path) from None
            os.unlink(self._temporary)


def rename_to_free(old: str, new: str) -> None:
    """Renames a file. Raises ``FileExistsError`` if another file has the new name."""
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError as error:
        taken = os.access(new, os.F_OK)
        if error.errno in _NO_LINKS and not taken:
            os.replace(old, new)
            return
        if not taken:
            raise
        if not os.path.samefile(old, new):  # a rename that was cut off, or that NFS repeats
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from None
    os.unlink(old)


def _create_locked(beginning: str) -> tuple[int, str]:
    """Creates a file, locks it where the file system has locks, and returns its descriptor and its name."""
    while True:
        name = f"{beginning}.{secrets.token_hex(4)}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o666)
        with contextlib.suppress(OSError):
            lock_open(descriptor, timeout_s=_PATIENCE_S)
        if same_file(descriptor, name):
            return descriptor, name
        os.close(descriptor)  # remove_partial was quicker than the lock


def remove_partial(paths: Iterable[str]) -> None:
    """Removes what killed writers left of these files, or of series such as ``x-%06d.tar``."""
    folders: dict[str, set[str]] = {}
    for path in paths:
        folder, name = os.path.split(os.path.realpath(path))
        folders.setdefault(folder, set()).add(name)
    for folder, names in folders.items():
        for each in glob.glob(os.path.join(glob.escape(folder), f".*.{'[0-9a-f]' * 8}.partial")):
            beginning = os.path.basename(each)[1:].rsplit(".", 2)[0]
            if any(_begins_so(name, beginning) for name in names):
                with contextlib.suppress(OSError):
                    remove_unlocked(each)


def _begins_so(name: str, beginning: str) -> bool:
    """True if a temporary name's beginning is that of a file, or of one of a series."""
    number = _NUMBER.search(name)
    if number is None:
        return beginning == name[:_NAME_LETTERS]
    front, back = name[: number.start()], name[number.end() :]
    digits = beginning[len(front) :]
    digits = digits[: len(digits) - len(digits.lstrip("0123456789"))]
    return any(beginning == f"{front}{digits[:n]}{back}"[:_NAME_LETTERS] for n in range(len(digits) + 1))


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
    with contextlib.suppress(OSError):  # a full disk, and the content is thrown away anyway
        stream.close()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)


def _sync_directory(path: str) -> None:
    """Makes a new name durable, if the file system supports and allows it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def parts_of_series(target: str) -> tuple[str, str, str]:
    """The part before the number of a series of shards, its directive, and the rest.

    The directive is in the last part of a name, and empty if the name stands for one shard. Any other ``%``
    is a character like others. Raises ``ValueError`` if there are two directives.

    Example:
        >>> parts_of_series("100%done/50%-%06d.tar"), parts_of_series("50%.tar")
        (('100%done/50%-', '%06d', '.tar'), ('50%.tar', '', ''))
    """
    found = list(_NUMBER.finditer(target, target.rfind("/") + 1))
    if len(found) > 1:
        raise WrongArgument(f"{target!r} needs one % directive for the number, such as %06d, and has several")
    start, stop = found[0].span() if found else (len(target), len(target))
    return target[:start], target[start:stop], target[stop:]


def is_series(target: str) -> bool:
    """True if a name stands for a series of shards. Raises as ``parts_of_series``."""
    return parts_of_series(target)[1] != ""


def numbered(target: str, number: int) -> str:
    """The name of a series' shard of this number; what is no series has one name."""
    front, directive, back = parts_of_series(target)
    return f"{front}{directive and directive % number}{back}"
