"""Calls of one stage's function that overlap, in threads or as coroutines: ``map(f, threads=16)``."""

from __future__ import annotations

import concurrent.futures
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future
from types import CoroutineType
from typing import Any

from mpwds.pipeline.error_context import is_async
from mpwds.pipeline.randomness import Call, without_draws
from mpwds.pipeline.stream import Address, Stream, WrappedStream, fetch_held
from mpwds.storage.streams.ahead import Coroutines, Threads, check_fork


class Overlapped(WrappedStream[Any]):
    """The elements of a source, ``count`` of them held: ``function`` is called for each of these meanwhile.

    A ``MapStream`` reads this stream, and gets each result by :meth:`call`. So errors, handlers and counts
    are as without threads. Elements whose result was not asked for are held, as the state says.

    A function that may draw random numbers has the ``call`` that seeds the process's generators. These cannot
    be seeded for several calls at a time. So the first call is made alone and must not draw.
    """

    def __init__(
        self,
        source: Stream[Any],
        function: Callable[[Any], Any],
        call: Call | None,
        count: int,
        in_order: bool,
    ) -> None:
        super().__init__(source)
        self._function = function
        self._seeded = call
        self._count = count
        self._in_order = in_order
        self._process = os.getpid()
        self._pool: Threads[Any, Any] | Coroutines[Any, Any]
        self._is_async = is_async(function)
        self._pool = Coroutines(function) if self._is_async else Threads(function, count)
        self._alone = call is not None
        self._restart([])

    def _restart(self, again: list[tuple[Address, Any]]) -> None:
        self._again = again
        self._held: deque[tuple[Address, Any, Future[Any] | None]] = deque()
        self._begun: Future[Any] | None = None  # the call for the element that was yielded last
        self._error: Exception | None = None  # the source's, which comes after the elements held

    def __next__(self) -> tuple[Address, Any]:
        check_fork(self._process)
        self._take_in()
        if self._held:
            address, element, self._begun = self._next_held()
            return address, element
        error, self._error = self._error or StopIteration(), None
        self._pool.close()  # an element after an error starts it again
        try:
            raise error
        finally:
            del error  # see ``reraise_exception``

    def _take_in(self) -> None:
        while self._error is None and len(self._held) < (1 if self._alone else self._count):
            try:
                address, element = self._again.pop(0) if self._again else self._next()
            except StopIteration:
                return
            except Exception as error:
                self._error = error
                return
            self._held.append((address, element, None if self._alone else self._pool.submit(element)))

    def _next_held(self) -> tuple[Address, Any, Future[Any] | None]:
        if self._in_order or self._alone:
            return self._held.popleft()
        futures = [future for _, _, future in self._held if future is not None]
        done = concurrent.futures.wait(futures, return_when=FIRST_COMPLETED).done
        place = next(place for place, future in enumerate(futures) if future in done)
        item = self._held[place]
        del self._held[place]
        return item

    def call(self, function: Callable[[Any], Any], address: Address, element: Any) -> Any:
        """The result for the element that was yielded last, or one that is made again."""
        result = self._called(address, element)
        if isinstance(result, CoroutineType):
            result.close()
            raise TypeError("it returned a coroutine, and nobody awaits it: pass the async function itself")
        return result

    def _called(self, address: Address, element: Any) -> Any:
        begun, self._begun = self._begun, None
        if begun is not None:
            return begun.result()
        if self._seeded is None:
            return self._result(element)
        result = self._seeded(without_draws(self._result), address, element)
        self._alone = False
        return result

    def _result(self, element: Any) -> Any:
        return self._pool.submit(element).result() if self._is_async else self._function(element)

    def fetch(self, address: Address) -> Any:
        self._begun = None
        return super().fetch(address)

    def state_dict(self) -> dict[str, Any]:
        held = [address for address, *_ in (*self._held, *self._again)]
        return {**super().state_dict(), "held": held, "unused": None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._pool.close()
        self._restart(fetch_held(self._source, state["held"]))
