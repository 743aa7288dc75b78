"""A stream that goes on where it broke off."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mpwds.errors import StreamError
from mpwds.storage.streams.retries import Interrupted, Retries

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER_BYTES = 256 * 1024
_PROGRESS_BYTES = 64 * 1024  # a connection that brought this much was worth its try
_QUIET_FAILURES = 2
_log = logging.getLogger("mpwds")


class Version(NamedTuple):
    """What tells one version of a resource from another.

    Attributes:
        etag: A strong entity tag; ``None`` if there is none.
        modified: When it was last modified, as the server writes it; ``None`` if it does not say.
        size: Its bytes; ``None`` if unknown.
    """

    etag: str | None = None
    modified: str | None = None
    size: int | None = None

    @property
    def is_recognisable(self) -> bool:
        """Whether a change of the resource would show."""
        return self.etag is not None or self.modified is not None

    def difference(self, other: Version) -> str:
        """How another version differs, in words; an empty string if nothing speaks for a difference."""
        for what, mine, its in zip(("entity tag", "date", "size"), self, other, strict=True):
            if mine is not None and its is not None and mine != its:
                return f"its {what} was {mine} and is {its}"
        return ""


class Body(Protocol):
    """The bytes that one request brings.

    Attributes:
        start: The position of the first in the resource: the one asked for, or an earlier one.
        version: The version that they are of.
    """

    start: int
    version: Version

    def readinto(self, buffer: memoryview) -> int:
        """Reads some bytes; 0 at the end of what the request was promised.

        Raises:
            Interrupted: The connection broke before that.
        """

    def close(self) -> None:
        """Ends the request, read to its end or not."""


class Source(Protocol):
    """Something that can be asked for the bytes of a resource.

    Attributes:
        name: Its URL, as it may be shown.
    """

    name: str

    def open(self, position: int, version: Version | None) -> Body:
        """Asks for the bytes from a position on.

        Args:
            position: Where to start.
            version: The version of which to give them; ``None`` for any. What comes may be another one.

        Raises:
            Interrupted: It may succeed when it is tried again.
            StreamError: It will not.
        """


def open_resuming(
    source: Source, offset: int = 0, retries: Retries | None = None, bufsize: int = 0
) -> io.BufferedReader:
    """A stream of a resource's bytes, which connects again when the connection breaks.

    It goes on at the byte where it broke, and only with the same version of the resource: that is known by
    the entity tag or the date that the source gave; where it gave neither, everything is read again from
    where the stream began, and compared with what was read before (by a digest).

    A fork of the process that opened the stream may use it too: it makes a connection of its own.

    Args:
        source: What to ask.
        offset: The byte at which to start.
        retries: How often to try; tries count anew after 64 KiB of progress.
        bufsize: Bytes that are buffered; at least 256 KiB.

    Raises:
        StreamError: The resource cannot be opened; later, from ``read``: it broke off too often, or it
            changed.
    """
    return io.BufferedReader(
        _ResumingReader(source, offset, retries or Retries()), max(bufsize, _BUFFER_BYTES)
    )


class _ResumingReader(io.RawIOBase):
    def __init__(self, source: Source, offset: int, retries: Retries) -> None:
        self.name = source.name
        self._source = source
        self._offset = offset
        self._position = offset
        self._retries = retries
        self._failures = 0
        self._progress = 0
        self._version: Version | None = None
        self._digest = hashlib.blake2b()  # of all that was read, where the version has no mark
        self._body: Body | None = None
        self._pid = os.getpid()
        self._ended = False
        self._error: StreamError | None = None
        self._connect()

    @property
    def size(self) -> int | None:
        """The resource's bytes, those before the stream's beginning included; ``None`` if unknown."""
        return None if self._version is None else self._version.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        if self._error is not None:
            raise self._error
        view = memoryview(buffer).cast("B")
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._drop_body()
        while not self._ended and len(view) > 0:
            try:
                if self._body is None:
                    self._connect()
                if count := self._read_some(view):
                    return count
            except Interrupted as interruption:
                self._wait(interruption)
            except StreamError as error:
                self._error = error
                raise
        return 0

    def close(self) -> None:
        if not self.closed:
            self._drop_body()
            super().close()

    def _read_some(self, view: memoryview) -> int:
        if self._body is None or self._version is None:
            raise ValueError("not connected")
        count = self._body.readinto(view)
        if count:
            self._position += count
            self._progress += count
            if not self._version.is_recognisable:
                self._digest.update(view[:count])
            return count
        size = self._version.size
        self._drop_body()
        if size is None or self._position == size:
            self._ended = True
        elif self._progress == 0:
            raise Interrupted(f"the server sent no byte of the {size - self._position} that are missing")
        return 0

    def _connect(self) -> None:
        """Brings the stream to its position; tries until it succeeds or has failed too often."""
        while self._body is None:
            try:
                self._open_body()
            except Interrupted as interruption:
                self._wait(interruption)

    def _open_body(self) -> None:
        known = self._version
        position = self._position if known is None or known.is_recognisable else self._offset
        body = self._source.open(position, known)
        try:
            if known is not None and (difference := known.difference(body.version)):
                raise self._changed(difference)
            if known is not None and known.is_recognisable and not body.version.is_recognisable:
                raise self._changed("the server no longer says which version it sends")
            # The size may become known only now, after an answer in chunks.
            self._version = (
                body.version if known is None else known._replace(size=known.size or body.version.size)
            )
            self._skip(body)
        except BaseException:
            body.close()
            raise
        self._body = body
        self._progress = 0

    def _skip(self, body: Body) -> None:
        """Reads up to the stream's position; compares it with what was read before if need be."""
        compares = body.start <= self._offset < self._position and not body.version.is_recognisable
        digest = hashlib.blake2b()
        buffer = memoryview(bytearray(min(_BUFFER_BYTES, max(self._position - body.start, 1))))
        at = body.start
        while at < self._position:
            known_from = self._offset if at < self._offset else self._position
            count = body.readinto(buffer[: min(len(buffer), known_from - at)])
            if count == 0 and body.version.size is not None and at < body.version.size:
                raise Interrupted(f"the server sent a part only, which ends at byte {at},")
            if count == 0:
                raise StreamError(
                    f"{self.name}: it ends at byte {at}, before byte {self._position}, from which it was "
                    "to be "
                    "read: it is shorter than it was, or this is not the file that the position is of",
                    self.name,
                    at,
                )
            if compares and at >= self._offset:
                digest.update(buffer[:count])
            at += count
        if compares and digest.digest() != self._digest.digest():
            raise self._changed("the bytes that had been read before are other ones now")

    def _changed(self, how: str) -> StreamError:
        return StreamError(
            f"{self.name}: it changed while it was read: the connection broke at byte {self._position}, "
            "and now "
            f"{how}; read it again from its beginning, and do not write over shards that are in use",
            self.name,
            self._position,
            self._failures + 1,
        )

    def _wait(self, interruption: Interrupted) -> None:
        """Counts a failure and pauses, or gives up."""
        self._drop_body()
        if self._progress >= _PROGRESS_BYTES:
            self._failures = 0
        self._progress = 0
        self._failures += 1
        of = f" of {self._version.size}" if self._version and self._version.size is not None else ""
        what = f"{self.name}: {interruption} at byte {self._position}{of}"
        most = self._retries.most(interruption)
        if self._failures >= most:
            self._error = StreamError(
                f"{what}; gave up after {self._failures} tries", self.name, self._position, self._failures
            )
            raise self._error from interruption
        pause = self._retries.pause_s(self._failures, interruption.wait_s)
        level = logging.WARNING if self._failures > _QUIET_FAILURES else logging.INFO
        tried = f"try {self._failures} of {most}"
        _log.log(level, "%s (%s); trying again in %.1f s", what, tried, pause)
        time.sleep(pause)

    def _drop_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.close()
