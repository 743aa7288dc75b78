"""Streams that survive failures: reading continues where the connection broke, uploads are sent again."""

from __future__ import annotations

import logging
import math
import os
import random
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, TypeVar, cast

from mpwds.errors import StreamError
from mpwds.storage.streams.base import DiscardsOnError, PieceStream, Version
from mpwds.storage.streams.urls import too_short

_IN_MEMORY_BYTES = 16 * 1024 * 1024  # of an upload
_PROGRESS_BYTES = 64 * 1024  # a connection that brought this much was worth its try
_UNREACHED_TRIES = 5
_LONGEST_WISH_S = 120.0  # the longest pause that a server may ask for
_QUIET_FAILURES = 2
_log = logging.getLogger("mpwds")
_jitter = random.SystemRandom()  # leaves the user's seeded generators alone

T = TypeVar("T")


class Interrupted(Exception):
    """A failure after which another try may succeed.

    ``wait_s`` is the pause that the server asked for. ``unreached``: the server cannot be reached and never
    was, so it may not exist. Five tries, in three seconds, are enough for it. Pauses count from the failure,
    which may be some time ago.
    """

    def __init__(self, reason: str, wait_s: float | None = None, *, unreached: bool = False) -> None:
        super().__init__(reason)
        self.wait_s = wait_s
        self.unreached = unreached
        self.at = time.monotonic()


def is_passing(status: int) -> bool:
    """True if a server that answers with this status code may answer otherwise soon."""
    return status in (408, 425, 429) or (status >= 500 and status not in (501, 505))


@dataclass(frozen=True)
class Retries:
    """A policy: how often and how long to try. Pauses double, and are shortened at random by up to a half.

    Args:
        tries: Tries in all; 1 gives up at the first failure. A stream counts tries without progress.
        first_s: The first pause, in seconds.
        longest_s: The longest pause, in seconds. By default, ten tries take about a minute.
        within_s: Seconds for everything, from opening to the last byte. A reader's own time counts, too, so
            this suits files that are fetched whole.
    """

    tries: int = 10
    first_s: float = 0.25
    longest_s: float = 15.0
    within_s: float = math.inf

    def __post_init__(self) -> None:
        if self.tries < 1 or self.first_s < 0 or self.longest_s < 0 or self.within_s <= 0:
            raise ValueError(f"retries: tries must be at least 1 and times not negative, got {self}")

    def longest_pause_s(self, failures: int) -> float:
        """The longest pause after so many failures."""
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 60))

    def pause_s(self, failures: int) -> float:
        """A random pause after so many failures: forks fail together, and must not come back together."""
        return self.longest_pause_s(failures) * _jitter.uniform(0.5, 1.0)


class Attempts:
    """Counts the failures of one stream, and pauses after each. Its time begins when it is made."""

    def __init__(self, name: str, retries: Retries) -> None:
        self.name = name
        self.failures = 0
        self._retries = retries
        self._deadline = time.monotonic() + retries.within_s

    def left_s(self) -> float:
        """The seconds that are left; not below 0."""
        return max(0.0, self._deadline - time.monotonic())

    def too_late(self, where: str, position: int | None = None) -> StreamError:
        """The error for a stream that still brings bytes when no time is left."""
        message = f"{self.name}: it took more than the {self._retries.within_s} s that it may take, {where}"
        return StreamError(f"{message}; raise the time-out", self.name, position, self.failures + 1)

    def failed(self, why: Interrupted, where: str, position: int | None = None) -> None:
        """Pauses before the next try. Raises ``StreamError`` if this was the last."""
        self.failures += 1
        failures, retries = self.failures, self._retries
        most = min(retries.tries, _UNREACHED_TRIES) if why.unreached else retries.tries
        wish_s = min(why.wait_s or 0.0, _LONGEST_WISH_S) * _jitter.uniform(1.0, 1.25)
        pause_s = max(0.0, max(retries.pause_s(failures), wish_s) - (time.monotonic() - why.at))
        left_s = self.left_s()
        if failures >= most or pause_s >= left_s:
            within = f", within {retries.within_s} s" if failures < most else ""
            message = f"{self.name}: {why} {where}; gave up after {failures} tries{within}"
            raise StreamError(message, self.name, position, failures) from why
        # One line for each outage, when it has lasted for about a second.
        level = logging.WARNING if failures == _QUIET_FAILURES + 1 else logging.INFO
        pauses_s = pause_s + sum(map(retries.longest_pause_s, range(failures + 1, most)))
        tried = f"try {failures} of {most}"
        message = "%s: %s %s (%s); trying again in %.1f s, and for up to %.0f s"
        _log.log(level, message, self.name, why, where, tried, pause_s, min(left_s, pauses_s))
        time.sleep(pause_s)

    def run(self, step: Callable[[], T], where: str) -> T:
        """Returns ``step()``, called again after each failure."""
        while True:
            try:
                return step()
            except Interrupted as interruption:
                self.failed(interruption, where)


def retrying(step: Callable[[], T], retries: Retries) -> T:
    """Returns ``step()``, called again after an ``OSError`` as ``retries`` says.

    This is for steps whose streams may not retry by themselves, such as commands and openers of the user's.
    An error of a stream that has done so is raised at once, and so is ``FileNotFoundError``.
    """
    deadline = time.monotonic() + retries.within_s
    failures = 0
    while True:
        try:
            return step()
        except FileNotFoundError:
            raise
        except OSError as error:
            failures += 1
            pause_s = retries.pause_s(failures)
            is_last = failures == retries.tries or time.monotonic() + pause_s >= deadline
            if is_last or isinstance(error.__cause__, Interrupted):
                raise
        time.sleep(pause_s)


class NoRanges(StreamError):
    """A server does not answer a request for a range with that range. It may answer one for everything."""


class Body(Protocol):
    """The bytes of a response, from ``start`` on: the position that was requested, or an earlier one.

    ``stop``: where the range that the server sends ends; ``None`` if it sends the whole resource.
    ``detects_truncation``: whether a body that ends too early raises, because its length is known or its end
    is marked. The end of a connection alone tells nothing.
    """

    start: int
    stop: int | None
    version: Version
    detects_truncation: bool

    def read(self, much: bool = False) -> bytes:
        """The next piece; empty at the end. Raises ``Interrupted`` if another try may succeed.

        With ``much``, always or never, pieces are larger, and cost less.
        """

    def close(self) -> None:
        """Ends the request, whether its body was read to the end or not."""


class FetchedBody(Body):
    """What another body brings until it ends or breaks, in memory. Reading raises what broke it."""

    def __init__(self, body: Body, wanted: Callable[[], bool] = lambda: True) -> None:
        self.start, self.stop, self.version = body.start, body.stop, body.version
        self.detects_truncation = body.detects_truncation
        self.error: Interrupted | None = None
        self._pieces: deque[bytes] = deque()
        try:
            while wanted() and (piece := body.read(much=True)):
                self._pieces.append(piece)
        except Interrupted as interruption:
            self.error = interruption
        finally:
            body.close()

    def read(self, much: bool = False) -> bytes:
        if self._pieces:
            return self._pieces.popleft()
        if self.error is not None:
            raise self.error
        return b""

    def close(self) -> None:
        self._pieces.clear()


def changed(name: str, position: int | None, difference: str) -> StreamError:
    """The error for a resource of which another version is there now."""
    return StreamError(
        f"{name}: it changed while it was read: at byte {position}, {difference}; read it again from its "
        "beginning, and do not write over shards in use",
        name,
        position,
    )


class Resource(ABC):
    """A file or object at a server. ``name`` is for messages, without credentials."""

    name: str

    @abstractmethod
    def get(self, position: int, version: Version | None, stop: int | None) -> Body:
        """Requests the bytes from a position on, up to ``stop``, of a version if possible (``None``: any)."""

    @abstractmethod
    def put(self, file: BinaryIO, size: int) -> None:
        """Sends a file of this size. Raises ``Interrupted`` if another try may succeed."""

    def keep(self, position: int, body: Body) -> bool:
        """Whether the resource has read a body into memory, which ``get`` returns for this position."""
        return False

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """Ends what the resource does ahead of its reader."""


class ResumingReader(PieceStream):
    """A stream of a resource's bytes, which connects again when the connection breaks.

    Reading continues at the byte where it broke, and only with the same version of the resource, by entity
    tag or date. Where the server gives neither, a stream that has delivered bytes cannot continue. A fork of
    the process that opened the stream makes a connection of its own. Tries count again after 64 KiB of
    progress. The stream ends before the byte ``stop``, if it is given.
    """

    def __init__(self, resource: Resource, offset: int, retries: Retries, stop: int | None) -> None:
        self.name = resource.name
        self._resource = resource
        self._offset = offset
        self._stop = stop
        self._position = offset
        self._attempts = Attempts(self.name, retries)
        self._progress = 0
        self._body: Body | None = None
        self._piece = memoryview(b"")  # the rest of the piece that the body brought last
        self._pid = os.getpid()
        self._ended = False
        self._error: StreamError | None = None
        self._retrying(self._connect)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        piece = self._read(len(view))
        view[: len(piece)] = piece
        return len(piece)

    def read_piece(self, size: int) -> bytes:
        return bytes(self._read(size))  # a copy only of what was cut

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        if not self.closed:
            self._drop_body()
            self._resource.close()
            super().close()

    def preload(self) -> None:
        if self._body is not None and self._resource.keep(self._position, self._body):
            self._body = None

    def _retrying(self, step: Callable[[], T]) -> T:
        if self._error is not None:  # what a failed read of the buffer above had gathered is lost
            raise self._error
        try:
            while True:
                try:
                    return step()
                except Interrupted as interruption:
                    self._drop_body()
                    self._check_recognisable(interruption)
                    self._end_progress()
                    of = "" if self.version.size is None else f" of {self.version.size}"
                    self._attempts.failed(interruption, f"at byte {self._position}{of}", self._position)
        except StreamError as error:
            self._error = error
            raise

    def _read(self, size: int) -> bytes | memoryview:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._drop_body()
        if self._stop is not None:
            size = min(size, self._stop - self._position)
        return self._retrying(lambda: self._read_some(size))

    def _read_some(self, size: int) -> bytes | memoryview:
        while not self._ended and self._position not in (self.version.size, self._stop):
            if self._body is None:
                self._connect()
                continue
            is_late = not self._attempts.left_s()
            if piece := self._piece or self._body.read():
                if is_late:
                    raise self._attempts.too_late(f"up to byte {self._position}", self._position)
                self._piece = memoryview(piece)[size:]
                if self._piece:
                    piece = memoryview(piece)[:size]
                self._position += len(piece)
                self._progress += len(piece)
                return piece
            if self.version.size is None:
                self._ended = True
            elif self._progress == 0 or not self.version.is_recognisable:
                raise Interrupted("the server sent a part only, which ends")
            else:
                self._drop_body()
        self._drop_body()
        return b""

    def _connect(self) -> None:
        known = self.version if self._position > self._offset else None
        if known is not None:
            self._check_recognisable(None)
        body = self._resource.get(self._position, known, self._stop)
        try:
            if self._stop is not None and known is None and body.stop is None:
                what = "the server sends everything, it does not do ranges; read a copy, without remote=True"
                raise StreamError(f"{self.name}: {what}", self.name, self._position)
            if known is not None and (difference := known.difference(body.version)):
                raise changed(self.name, self._position, difference)
            # After an answer in chunks the size may become known only now.
            size = body.version.size
            self.version = Version(known.etag, known.modified, known.size or size) if known else body.version
            self._skip(body)
        except BaseException:
            body.close()
            raise
        self._body = body
        self.detects_truncation = body.detects_truncation
        self._end_progress()

    def _end_progress(self) -> None:
        """Begins a connection's progress. That of the last one may have been worth its tries."""
        if self._progress >= _PROGRESS_BYTES:
            self._attempts.failures = 0
        self._progress = 0

    def _skip(self, body: Body) -> None:
        """Reads up to the stream's position if the server sends from an earlier byte."""
        at = body.start
        while at < self._position:
            piece = memoryview(body.read())
            if not piece and body.version.size is not None and at < body.version.size:
                raise Interrupted(f"the server sent a part only, which ends at byte {at},")
            if not piece:
                raise too_short(self.name, at, self._position)
            self._piece = piece[self._position - at :]
            at += len(piece)

    def _check_recognisable(self, cause: Interrupted | None) -> None:
        if self._position > self._offset and not self.version.is_recognisable:
            raise StreamError(
                f"{self.name}: {cause or 'a new connection is needed'} at byte {self._position}, and the "
                "stream cannot continue: the server gives neither ETag nor Last-Modified, so the rest may be "
                "of another file; read it again from its beginning",
                self.name,
                self._position,
                self._attempts.failures + 1,
            ) from cause

    def _drop_body(self) -> None:
        body, self._body, self._piece = self._body, None, memoryview(b"")
        if body is not None:
            body.close()


class SpooledUpload(DiscardsOnError):
    """A stream to write to, whose content is sent when it is closed.

    So a server gets all of it or nothing, knows its size, and gets it again after a failure. Up to 16 MiB are
    kept in memory, more in a temporary file (``TMPDIR``). A fork of the process that opened it sends nothing.
    ``close`` raises ``StreamError`` if all tries fail.
    """

    def __init__(self, resource: Resource, retries: Retries) -> None:
        self.name = resource.name
        self._resource = resource
        self._attempts = Attempts(self.name, retries)
        self._pid = os.getpid()
        self._spool = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 - closed by close

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError(f"{self.name}: write to a closed stream")
        return self._spool.write(data)

    def tell(self) -> int:
        return self._spool.tell()

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._pid == os.getpid():
                size = self._spool.seek(0, os.SEEK_END)
                where = f"while {size} bytes were sent, and nothing was written"
                self._attempts.run(lambda: self._send(size), where)
        finally:
            self.discard()

    def discard(self) -> None:
        self._spool.close()
        super().close()

    def _send(self, size: int) -> None:
        self._spool.seek(0)
        self._resource.put(cast(BinaryIO, self._spool), size)
