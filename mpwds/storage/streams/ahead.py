"""Look-ahead: threads do the work for the items that come next, and results are taken in order.

All of the package's look-ahead within a process runs in these threads. Whole shards are fetched ahead by
:meth:`mpwds.ShardCache.prefetch`, because processes share them.

Closing drops items that no thread has begun, and does not wait for the others. So the threads are daemons,
not those of ``concurrent.futures``: the interpreter would wait for these when it exits.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio  # imported when it is needed, as it takes 40 ms

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREAD = "mpwds ahead"


def work_ahead(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Generator[tuple[Item, Future[Result]], None, None]:
    """Yields each item with the future of ``work(item)``; up to twice as many as ``threads`` are begun."""
    pool = Threads(work, threads)
    pending: deque[tuple[Item, Future[Result]]] = deque()
    try:
        for item in items:
            pending.append((item, pool.submit(item)))
            if len(pending) == 2 * threads:
                yield pending.popleft()
        while pending:
            yield pending.popleft()
    finally:
        pool.close()


def check_fork(process: int) -> None:
    """Raises RuntimeError in a fork of the process whose threads work ahead: they do not survive it."""
    if os.getpid() != process:
        what = "threads do not survive a fork, so iterate the dataset again here"
        raise RuntimeError(f"this iteration belongs to process {process}: {what}")


class Threads(Generic[Item, Result]):
    """Up to ``count`` threads, started while none is idle, which call ``work``. They end with this object."""

    def __init__(self, work: Callable[[Item], Result], count: int) -> None:
        self._work = work
        self._count = count
        self._running = 0
        # No semaphore: garbage collection, which closes streams, may submit while this thread has its lock.
        self._idle: SimpleQueue[None] = SimpleQueue()  # as many as threads wait
        self._tasks: SimpleQueue[tuple[Item, Future[Result]] | None] = SimpleQueue()

    def submit(self, item: Item) -> Future[Result]:
        future: Future[Result] = Future()
        self._tasks.put((item, future))
        try:
            self._idle.get_nowait()
        except Empty:
            if self._running < self._count:
                arguments = self._work, self._tasks, self._idle
                threading.Thread(target=_run, args=arguments, name=_THREAD, daemon=True).start()
                self._running += 1
        return future

    def close(self) -> None:
        tasks, running = self._tasks, self._running
        self._tasks, self._running, self._idle = SimpleQueue(), 0, SimpleQueue()
        with contextlib.suppress(Empty):
            while (task := tasks.get_nowait()) is not None:
                task[1].cancel()
        for _ in range(running):
            tasks.put(None)

    __del__ = close


class Coroutines(Generic[Item, Result]):
    """The same for a coroutine function: all calls under way overlap in one thread."""

    def __init__(self, work: Callable[[Item], Coroutine[Any, Any, Result]]) -> None:
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, item: Item) -> Future[Result]:
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=(self._loop,), name=_THREAD, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(self._work(item), self._loop)

    def close(self) -> None:
        """Ends the thread, and cancels the calls under way."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    __del__ = close


def _run(
    work: Callable[[Item], Result],
    tasks: SimpleQueue[tuple[Item, Future[Result]] | None],
    idle: SimpleQueue[None],
) -> None:
    while True:
        try:
            task = tasks.get_nowait()
        except Empty:
            idle.put(None)
            task = tasks.get()
        if task is None:
            return
        item, future = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work(item))
            except BaseException as error:
                future.set_exception(error)
        del task, item, future


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    loop.run_forever()
    calls = asyncio.all_tasks(loop)
    for call in calls:
        call.cancel()
    if calls:
        loop.run_until_complete(asyncio.wait(calls))
    loop.close()
