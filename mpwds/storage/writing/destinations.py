"""Where an archive is written to: a file that appears when it is complete, a URL, the caller's own stream."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from typing import BinaryIO, Protocol

from mpwds.errors import StreamError
from mpwds.storage.streams.gopen import gopen, gopen_schemes
from mpwds.storage.streams.rewrite import rewrite_url
from mpwds.storage.streams.secure import refuse_in_secure_mode
from mpwds.storage.streams.urls import is_local, local_path, url_scheme, without_credentials
from mpwds.storage.writing.publish import PendingFile


class Destination(Protocol):
    """A stream with two ends: one that makes what was written appear, one that throws it away."""

    @property
    def stream(self) -> BinaryIO:
        """Where to write; it may take less than it is given."""

    def publish(self) -> None: ...
    def discard(self) -> None: ...


def open_destination(target: str | os.PathLike[str] | BinaryIO | OwnedStream) -> Destination:
    """Opens what an archive is to be written to.

    Args:
        target: A path or a ``file:`` URL, which becomes a ``PendingFile``; a named pipe or a device is
            written to as it is. ``pipe:`` or another URL, which ``gopen`` opens and which is closed at the
            end. A binary stream or ``"-"``, standard output, which stay open. An ``OwnedStream``.

    Raises:
        OSError: It cannot be opened.
        ValueError: The URL's scheme is unknown.
        SecurityError: The secure mode forbids it.

    Example:
        >>> import io
        >>> stream = io.BytesIO()
        >>> open_destination(stream).stream is stream
        True
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
        return OwnedStream(gopen(url, "wb"), without_credentials(url))
    refuse_in_secure_mode(f"local files may not be written ({without_credentials(place)})")
    path = local_path(place)
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        return OwnedStream(open(path, "wb", buffering=0), path)
    return PendingFile(path)


class _Given:
    """The caller's stream: both ends leave it open, with what was written to it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream

    def publish(self) -> None:
        flush = getattr(self.stream, "flush", None)  # all that a writer needs of a stream is write
        if flush is not None:
            flush()

    def discard(self) -> None:
        pass


class OwnedStream:
    """A stream whose ``close`` completes what was written, at the other end as well.

    Args:
        stream: Where to write.
        name: The stream's name in messages.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.stream = stream
        self._name = name

    def publish(self) -> None:
        """Closes the stream."""
        self.stream.close()

    def discard(self) -> None:
        """Ends the stream without completing what was written, where it has a way to do that.

        That is a method ``discard``, as the streams of ``gopen`` and fsspec have, or an ``__exit__`` of its
        own, which is told of an error: smart_open's, obstore's and Google's streams then abort the upload. A
        plain file is closed. Another stream is left alone, with a warning.
        """
        discard = getattr(self.stream, "discard", None)
        if discard is not None:
            with contextlib.suppress(Exception):  # that of fsspec's local files always fails
                discard()
                return
        leave = getattr(type(self.stream), "__exit__", None)
        raw = getattr(self.stream, "raw", self.stream)
        if type(raw) in (io.FileIO, io.BytesIO):
            self.stream.close()
        elif leave not in (None, io.IOBase.__exit__):
            error = StreamError(f"{self._name}: writing was given up", self._name)
            self.stream.__exit__(type(error), error, None)
        else:
            warnings.warn(
                f"{self._name} is not complete, and its stream ({type(self.stream).__name__}) has no method "
                "`discard` to take it back: check what is there, and remove it",
                RuntimeWarning,
                stacklevel=2,
            )
