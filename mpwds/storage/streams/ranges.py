"""Reading ahead: threads fetch the next ranges of a resource while one is read."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import BinaryIO, cast

from mpwds.storage.streams.ahead import Threads
from mpwds.storage.streams.base import Version
from mpwds.storage.streams.resuming import (
    Body,
    FetchedBody,
    Interrupted,
    NoRanges,
    Resource,
    ResumingReader,
    Retries,
    SpooledUpload,
)

READ_AHEAD = 8
"""The number of ranges ahead, where reading ahead is the default."""

RANGE_BYTES = 8 * 1024 * 1024
_MOST_RANGES = 32  # ahead, of all streams of a process
_BUFFER_BYTES = 256 * 1024


def open_resource(
    resource: Resource,
    mode: str,
    bufsize: int,
    offset: int,
    stop: int | None,
    retries: Retries,
    read_ahead: int,
) -> BinaryIO:
    """A stream of a resource's bytes, ``read_ahead`` if that is not 0 and no ``stop`` is given; or to it."""
    if mode[0] == "w":
        return cast(BinaryIO, SpooledUpload(resource, retries))
    if read_ahead and stop is None:
        resource = RangesAhead(resource, read_ahead)
    return io.BufferedReader(ResumingReader(resource, offset, retries, stop), max(bufsize, _BUFFER_BYTES))


class RangesAhead(Resource):
    """A resource that is read from start to end. Threads fetch up to ``count`` ranges ahead of the reader.

    The stream above reads it as any resource: it asks for the next range when one has ended, compares
    versions, and tries again. Threads try once, and after a failure no further range is requested before the
    stream has got over it (docs/design.md, *Reading ahead*).

    A resource of a single range takes one request and no thread. If the server does not do ranges, sends more
    than it is asked for, or does not say which version it sends, one answer is read from start to end.
    """

    def __init__(self, resource: Resource, count: int) -> None:
        self.name = resource.name
        self._resource = resource
        self._count = count  # 0 if one answer is read from start to end, and once this is closed
        self._version = Version()
        self._next = 0  # the first byte that has not been requested
        self.is_read = False  # beyond the answer to its first request
        self._start()

    def _start(self) -> None:
        self.ahead: deque[tuple[int, Future[FetchedBody]]] = deque()  # the first bytes of ranges
        self._may_request = False  # the last request of the reader's succeeded
        self._pid = os.getpid()
        with _allowance.lock:
            _allowance.streams[self] = None

    def get(self, position: int, version: Version | None, stop: int | None) -> Body:
        if self._pid != os.getpid():  # a fork's parent has the threads
            self._start()
        self.is_read = self._version.size is not None
        if self._may_request and not (self.ahead and self.ahead[0][1].done()):
            _allowance.double()
        with _allowance.lock:  # no other thread requests a range from here on
            self._may_request = False
        while self.ahead and self.ahead[0][0] < position:
            self._take()
        if self.ahead and self.ahead[0][0] == position:
            try:
                body: Body = self.ahead[0][1].result()
                has_failed = _has_failed(self.ahead[0][1])
            finally:
                self._take()
            if has_failed:  # after what it brought
                return body
        elif self._count:
            body = self._request(position, version)
        else:
            return self._resource.get(position, version, None)
        self._may_request = True
        _allowance.request_ahead()
        return body

    def put(self, file: BinaryIO, size: int) -> None:
        self._resource.put(file, size)

    def keep(self, position: int, body: Body) -> bool:
        if not self._count:
            return False
        kept: Future[FetchedBody] = Future()
        kept.set_result(FetchedBody(body))
        with _allowance.lock:
            _allowance.held += 1
            self.ahead.appendleft((position, kept))
        return True

    def close(self) -> None:
        self._count = 0
        # When the interpreter ends, a thread that is started never runs, and another may have had the lock.
        if self._pid == os.getpid() and not sys.is_finalizing():
            with _allowance.lock:
                self._may_request = False
                _allowance.streams.pop(self, None)
            self._drop_ahead()
            _allowance.request_ahead()

    def wants_range(self) -> bool:
        """Whether another range may be requested ahead."""
        return (
            self._may_request
            and self._next < (self._version.size or 0)
            and len(self.ahead) < self._count
            and not any(future.done() and _has_failed(future) for _, future in list(self.ahead))
        )

    def request_range(self, threads: Threads[Callable[[], FetchedBody], FetchedBody]) -> None:
        self.ahead.append((self._next, threads.submit(partial(self._fetch, self._next))))
        self._next += RANGE_BYTES
        if not self._count:  # garbage collection has closed it meanwhile
            self._drop_ahead()

    def _drop_ahead(self) -> None:
        while self.ahead:
            _, future = self.ahead.popleft()
            future.cancel()
            future.add_done_callback(_allowance.give_back)  # at once, or when its thread has ended

    def _request(self, position: int, version: Version | None) -> Body:
        """Requests the bytes up to the first range that is ahead, in the reader's own thread."""
        if not self.ahead:
            self._next = position + RANGE_BYTES
        stop = self.ahead[0][0] if self.ahead else self._next
        if version is not None:
            return self._resource.get(position, version, stop)
        try:
            body = self._resource.get(position, None, stop)
        except NoRanges:
            self._count = 0
            return self._resource.get(position, None, None)
        self._version = body.version
        if body.stop is None or body.stop > stop:
            self._count = 0
        elif body.stop != body.version.size and not body.version.is_recognisable:
            self._count = 0
            body.close()
            return self._resource.get(position, None, None)
        return body

    def _take(self) -> None:
        with _allowance.lock:
            self.ahead.popleft()
            _allowance.give_back()

    def _fetch(self, position: int) -> FetchedBody:
        """Fetches a range; runs in a thread."""
        try:
            body = self._resource.get(position, self._version, position + RANGE_BYTES)
            if body.stop is None or body.stop > position + RANGE_BYTES:
                body.close()
                raise Interrupted("the server sends more than a range")
            fetched = FetchedBody(body, lambda: self._count > 0)
        except Interrupted:
            _allowance.lower()
            raise
        if fetched.error is not None:
            _allowance.lower()
        return fetched


def _has_failed(future: Future[FetchedBody]) -> bool:
    return future.cancelled() or future.exception() is not None or future.result().error is not None


def count_streams_read() -> int:
    """The number of streams of this process that share what is allowed, without those of shards to come."""
    return sum(stream.is_read for stream in list(_allowance.streams))


class _Allowance:
    """The number of ranges that a process may hold ahead, for all streams together: memory and requests.

    It begins with eight. It doubles when a reader has to wait for a range, or has none ahead, and a failure
    halves what is held. A range that is allowed goes to a stream that is read, or else to one that will be;
    of several, to the one with the fewest ahead. The first range of a shard that is opened ahead counts, too,
    but does not wait until it is allowed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._threads = Threads[Callable[[], FetchedBody], FetchedBody](lambda fetch: fetch(), _MOST_RANGES)
        self.streams: dict[RangesAhead, None] = {}  # in the order of opening
        self.held = 0
        self._most = READ_AHEAD

    def give_back(self, _: object = None) -> None:
        with self.lock:
            self.held -= 1

    def double(self) -> None:
        with self.lock:
            self._most = min(2 * self._most, _MOST_RANGES)
        self.request_ahead()

    def lower(self) -> None:
        with self.lock:
            self._most = max(1, self.held // 2)

    def request_ahead(self) -> None:
        """Requests what is allowed."""
        with self.lock:
            while self.held < self._most:
                wanting = [stream for stream in list(self.streams) if stream.wants_range()]
                if not wanting:
                    return
                self.held += 1
                stream = min(wanting, key=lambda each: (not each.is_read, len(each.ahead)))
                stream.request_range(self._threads)


_allowance = _Allowance()
os.register_at_fork(after_in_child=_allowance.__init__)  # type: ignore[misc]
