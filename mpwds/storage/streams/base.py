"""Bases of this package's streams, and what the streams of others are asked."""

from __future__ import annotations

import io
import os
import stat
import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

from mpwds.closing import Closes


class Version(NamedTuple):
    """A resource's version: strong entity tag, date as the server writes it, size; ``None`` if not known."""

    etag: str | None = None
    modified: str | None = None
    size: int | None = None

    @property
    def is_recognisable(self) -> bool:
        """True if a change of the resource would show."""
        return self.etag is not None or self.modified is not None

    def difference(self, other: Version) -> str:
        """The difference of another version, in words; an empty string if it is the same."""
        for what, mine, its in zip(("entity tag", "date", "size"), self, other, strict=True):
            if mine is not None and its is not None and mine != its:
                return f"its {what} was {mine} and is {its}"
        return "" if other.is_recognisable else "the server no longer says which version it sends"


class InputStream(io.RawIOBase):
    """Base of the streams that are read.

    Attributes:
        version: The version of the file or resource.
        detects_truncation: Whether the stream raises if it ends too early; known once it has ended.
    """

    version = Version()
    detects_truncation = True

    def readable(self) -> bool:
        return True

    def preload(self) -> None:
        """Brings what is read first into memory if a connection would have to wait for the reader."""


class PieceStream(InputStream):
    """Base of streams whose bytes come in pieces, which can be had without copying them."""

    @abstractmethod
    def read_piece(self, size: int) -> bytes:
        """Up to ``size`` bytes, as soon as there are any; none at the end."""

    @abstractmethod
    def tell(self) -> int:
        """The position, without what a buffer above this stream holds."""


class PerhapsCut(io.FileIO):
    """A file that may hold only the beginning of what it was copied from."""

    detects_truncation = False


class Readable(Protocol):
    """A stream: a file, a pipe, a response or a decompressor."""

    def read(self, size: int, /) -> bytes | None: ...
    def close(self) -> None: ...


def stream_version(stream: object) -> Version:
    """The version of an open stream's file or resource; of streams of other libraries, perhaps its size."""
    raw = unbuffered(stream)
    if isinstance(raw, InputStream):
        return raw.version
    if isinstance(raw, io.FileIO) and stat.S_ISREG((status := os.fstat(raw.fileno())).st_mode):
        return Version(None, str(status.st_mtime_ns), status.st_size)
    return Version(size=getattr(raw, "size", None))


def detects_truncation(stream: object) -> bool:
    """True if a stream raises if it ends too early. Pipes do not; streams of the user's own are taken to."""
    raw = unbuffered(stream)
    if type(raw) is io.FileIO:
        return stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
    return bool(getattr(raw, "detects_truncation", True))


def piece_reader(stream: Readable) -> Callable[[int], bytes]:
    """A function that returns up to ``size`` bytes of ``stream``, as soon as there are any."""
    raw = unbuffered(stream)
    if isinstance(raw, PieceStream) and (raw is stream or raw.tell() == cast(BinaryIO, stream).tell()):
        return raw.read_piece  # the buffer above it is empty
    if isinstance(stream, io.RawIOBase):
        # Its own read copies once more than that of a buffer around it, which is never filled.
        stream = io.BufferedReader(stream)
    read: Callable[[int], bytes | None] = getattr(stream, "read1", stream.read)
    buffered = isinstance(stream, io.BufferedReader)

    def read_piece(size: int) -> bytes:
        piece = read(size)
        if not piece and buffered:  # at its end; or it would block, which only `read` tells
            piece = stream.read(1)
        if piece is None:
            raise BlockingIOError(f"{stream!r} does not block: shards are read from blocking streams")
        return piece

    return read_piece


def unbuffered(stream: object) -> object:
    """The raw stream below a buffer of Python's ``io``, or the stream itself."""
    return getattr(stream, "raw", stream)


class ClosesOrDiscards(Closes):
    """Mixin: ``close``, which completes the output, ends a ``with`` block, or ``discard`` if it raises."""

    def __exit__(self: Any, kind: object = None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class DiscardsOnError(io.BufferedIOBase):
    """Mixin for streams whose ``close`` completes the output, and whose ``discard`` throws it away.

    A ``with`` block that raises discards, and so does garbage collection of a stream that was never closed:
    half of a shard must not look complete.
    """

    @abstractmethod
    def discard(self) -> None:
        """Closes the stream without completing the output; does nothing once it is closed."""

    __exit__ = ClosesOrDiscards.__exit__

    def __del__(self) -> None:
        if not self.closed:
            message = f"{self!r} was never closed: its content is thrown away"
            warnings.warn(message, ResourceWarning, stacklevel=2)
            self.discard()
