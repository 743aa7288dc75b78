"""Look-ahead: threads do the work for the items that come next, and results are taken in order.

All of the package's look-ahead within a process is this function. Whole shards are fetched ahead by
:meth:`mpwds.ShardCache.prefetch`, because processes share them.

Closing the iterator drops items that no thread has begun, and does not wait for the others. So the threads
are daemons, not those of ``concurrent.futures``: the interpreter would wait for these when it exits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def work_ahead(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Generator[tuple[Item, Future[Result]], None, None]:
    """Yields each item with the future of ``work(item)``; up to twice as many as ``threads`` are begun.

    Example:
        >>> [(item, future.result()) for item, future in work_ahead(abs, [-1, -2], threads=2)]
        [(-1, 1), (-2, 2)]
    """
    tasks: SimpleQueue[tuple[Item, Future[Result]] | None] = SimpleQueue()
    pending: deque[tuple[Item, Future[Result]]] = deque()
    running = 0
    try:
        for item in items:
            pending.append((item, Future()))
            tasks.put(pending[-1])
            if running < threads:
                threading.Thread(target=_run, args=(work, tasks), name="mpwds ahead", daemon=True).start()
                running += 1
            if len(pending) == 2 * threads:
                yield pending.popleft()
        while pending:
            yield pending.popleft()
    finally:
        for _, future in pending:
            future.cancel()
        for _ in range(running):
            tasks.put(None)


def _run(work: Callable[[Item], Result], tasks: SimpleQueue[tuple[Item, Future[Result]] | None]) -> None:
    while (task := tasks.get()) is not None:
        item, future = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work(item))
            except BaseException as error:
                future.set_exception(error)
        del task, item, future
