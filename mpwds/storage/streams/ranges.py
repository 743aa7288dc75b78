"""Reading ahead: threads fetch the next ranges of a resource while one is read."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future
from typing import BinaryIO

from mpwds.storage.streams.ahead import Threads
from mpwds.storage.streams.base import Version
from mpwds.storage.streams.resuming import Body, FetchedBody, Interrupted, NoRanges, Resource

READ_AHEAD = 8
"""The number of ranges ahead, where reading ahead is the default."""

RANGE_BYTES = 8 * 1024 * 1024
_MOST_RANGES = 32  # ahead, of all streams of a process


class RangesAhead(Resource):
    """A resource that is read from start to end. Threads fetch up to ``count`` ranges ahead of the reader.

    The stream above reads it as any resource: it asks for the next range when one has ended, compares
    versions, and tries again. Threads try once. When the stream comes to a range that failed in a thread, it
    pauses and requests the rest of that range itself; until then no further range is requested. So a failure
    costs no more tries than it does without threads, apart from the ranges that were under way.

    A resource of a single range takes one request and no thread. If the server does not do ranges, or does
    not say which version it sends, one answer is read from start to end.
    """

    def __init__(self, resource: Resource, count: int) -> None:
        self.name = resource.name
        self._resource = resource
        self._count = count  # 0 if one answer is read from start to end, and once this is closed
        self._version = Version()
        self._next = 0  # the first byte that has not been requested
        self._start()

    def _start(self) -> None:
        self._ahead: deque[tuple[int, Future[FetchedBody]]] = deque()  # the first bytes of ranges
        self._threads = Threads(self._fetch, self._count)
        self._pid = os.getpid()

    def get(self, position: int, version: Version | None, stop: int | None) -> Body:
        if self._pid != os.getpid():  # a fork's parent has the threads
            self._start()
        while self._ahead and self._ahead[0][0] < position:
            self._take()
        if self._ahead and self._ahead[0][0] == position:
            future = self._take()
            if not future.done():
                _allowance.double()
            body: Body = future.result()
        elif self._count:
            if version is not None and not self._ahead:  # other streams have all that is allowed
                _allowance.double()
            body = self._request(position, version)
        else:
            return self._resource.get(position, version, None)
        self._request_ahead()
        return body

    def put(self, file: BinaryIO, size: int) -> None:
        self._resource.put(file, size)

    def keep(self, position: int, body: Body) -> bool:
        if body.stop is None:
            return False
        _allowance.take(always=True)
        kept: Future[FetchedBody] = Future()
        kept.set_result(FetchedBody(body))
        self._ahead.appendleft((position, kept))
        return True

    def close(self) -> None:
        self._count = 0
        if self._pid == os.getpid():
            while self._ahead:
                self._take()
            self._threads.close()

    def _request(self, position: int, version: Version | None) -> Body:
        """Requests the bytes up to the first range that is ahead, in the reader's own thread."""
        if not self._ahead:
            self._next = position + RANGE_BYTES
        stop = self._ahead[0][0] if self._ahead else self._next
        if version is not None:
            return self._resource.get(position, version, stop)
        try:
            body = self._resource.get(position, None, stop)
        except NoRanges:
            self._count = 0
            return self._resource.get(position, None, None)
        self._version = body.version
        if body.stop is None:
            self._count = 0
        elif body.stop != body.version.size and not body.version.is_recognisable:
            self._count = 0
            body.close()
            return self._resource.get(position, None, None)
        return body

    def _request_ahead(self) -> None:
        if any(future.done() and _has_failed(future) for _, future in self._ahead):
            return
        size = self._version.size or 0
        while self._next < size and len(self._ahead) < self._count and _allowance.take():
            self._ahead.append((self._next, self._threads.submit(self._next)))
            self._next += RANGE_BYTES

    def _take(self) -> Future[FetchedBody]:
        _allowance.give_back()
        return self._ahead.popleft()[1]

    def _fetch(self, position: int) -> FetchedBody:
        """Fetches a range; runs in a thread."""
        try:
            body = self._resource.get(position, self._version, position + RANGE_BYTES)
            if body.stop is None:
                body.close()
                raise Interrupted("the server sends everything instead of a range")
            fetched = FetchedBody(body, lambda: self._count > 0)
        except Interrupted:
            _allowance.lower()
            raise
        if fetched.error is not None:
            _allowance.lower()
        return fetched


def _has_failed(future: Future[FetchedBody]) -> bool:
    return future.exception() is not None or future.result().error is not None


class _Allowance:
    """The number of ranges that a process may hold ahead, for all streams together: memory and requests.

    It begins with one. It doubles when a reader has to wait for a range, or when none was allowed, and a
    failure halves what is held.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._most = 1
        self._held = 0

    def take(self, always: bool = False) -> bool:
        with self._lock:
            allowed = always or self._held < self._most
            self._held += allowed
            return allowed

    def give_back(self) -> None:
        with self._lock:
            self._held -= 1

    def double(self) -> None:
        with self._lock:
            self._most = min(2 * self._most, _MOST_RANGES)

    def lower(self) -> None:
        with self._lock:
            self._most = max(1, self._held // 2)


_allowance = _Allowance()
os.register_at_fork(after_in_child=_allowance.__init__)  # type: ignore[misc]
