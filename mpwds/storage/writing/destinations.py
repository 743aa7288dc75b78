"""Where an archive is written to: a file that appears when it is complete, a URL, the caller's own stream."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO, Protocol

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


def open_destination(target: str | os.PathLike[str] | BinaryIO) -> Destination:
    """Opens what an archive is to be written to.

    Args:
        target: A path or a ``file:`` URL, for a ``PendingFile``, or, where there is a named pipe or a device,
            for what it is; ``pipe:`` or another URL, for what ``gopen``
            opens for writing, which is closed at the end; or a binary stream or ``"-"``, standard output,
            which stay open.

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
    if not isinstance(target, (str, os.PathLike)):
        return _Given(target)
    url = os.fspath(target)
    if url == "-":
        return _Given(sys.stdout.buffer)
    place = rewrite_url(url)
    if url_scheme(place) in gopen_schemes or not is_local(place):
        return _Opened(gopen(url, "wb"))
    refuse_in_secure_mode(f"local files may not be written ({without_credentials(place)})")
    path = local_path(place)
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        return _Opened(open(path, "wb", buffering=0))
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


class _Opened:
    """A stream that ``gopen`` opened: closing it completes what was written, at the other end as well."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream

    def publish(self) -> None:
        self.stream.close()

    def discard(self) -> None:
        discard = getattr(self.stream, "discard", self.stream.close)  # openers of others know no discard
        discard()
