"""WorkerPool: worker processes that several loaders share."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from mpwds.errors import MpwdsError
from mpwds.loader import checks
from mpwds.loader import setup as worker_setup
from mpwds.loader.group import GroupOptions, WorkerGroup
from mpwds.loader.launchers import LAUNCHERS, Launcher
from mpwds.loader.pool_worker import PoolSetup
from mpwds.loader.processes import WorkerEnds, WorkerProcess
from mpwds.loader.remote import RemoteWorker
from mpwds.loader.setup import WorkerSetup
from mpwds.loader.status import StatusPage
from mpwds.pipeline.context import Context
from mpwds.sharedmem.bell import Bell


class WorkerPool:
    """Worker processes for several loaders: ``MultiLoader(dataset, pool=pool)`` uses them instead of its own.

    One set of processes then serves training and validation, also a validation epoch in the middle of a
    training epoch, which goes on afterwards. In each process the loaders take turns: one that waits for the
    trainer lets the others go on. A loader behaves as with workers of its own: same elements, same order,
    same random numbers. What is left to share is what belongs to a process: imported modules and what is
    kept in them, the working directory, environment variables that a dataset sets, and time: while one
    dataset computes, the others in that process wait.

    Processes start with the first loader that needs them and stay until :meth:`close`, the end of a ``with``
    block, the pool's collection or the interpreter's exit; they end when this process dies, however it dies.
    If one dies, each loader that was in the middle of an epoch there raises
    :class:`~mpwds.errors.WorkerDied`, and the next epoch starts a new one. Closing or dropping a loader ends
    its part in them only, as soon as what its dataset does just then returns. A process for which a loader
    waited longer than its ``timeout`` is ended.

    Args:
        workers: Processes; each loader has so many workers.
        start_method: ``"spawn"`` starts fresh interpreters, ``"forkserver"`` forks one of them, ``"fork"``
            forks this process. Datasets must be such that they can be pickled in any case.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> from mpwds import MultiLoader
        >>> with MultiLoader.pool(workers=2) as pool:
        ...     train = MultiLoader(range(6), pool=pool)
        ...     val = MultiLoader("ab,cd".split(","), pool=pool)
        ...     for number in train:
        ...         if number == 3:
        ...             print(list(val))
        ['ab', 'cd']
    """

    def __init__(self, workers: int = 4, *, start_method: str = "spawn") -> None:
        self.workers = workers = checks.integer("WorkerPool", "workers", workers, at_least=1)
        checks.choice("WorkerPool", "start_method", start_method, tuple(LAUNCHERS))
        self.start_method = start_method
        self._processes = _Processes(workers, start_method)
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._finalizer = weakref.finalize(self, self._processes.close)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the running processes."""
        return self._processes.pids

    def launcher(self, setup: WorkerSetup) -> Launcher:
        """What starts a loader's workers: sessions in these processes.

        Raises:
            CannotPickle: The setup holds something that cannot be pickled.
        """
        return _Sessions(self._processes, setup)

    def register(self, loader: Any) -> None:
        """Has :meth:`close` end what a loader does; it is not kept alive."""
        self._loaders.add(loader)

    def close(self) -> None:
        """Ends the iterations of its loaders and the processes. Iterating a loader again starts new ones."""
        for loader in tuple(self._loaders):
            loader._close("its pool of workers was closed")
        self._processes.close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a WorkerPool cannot be copied or pickled, nor can a loader that uses one be pickled: make a "
            "pool in the process that needs it"
        )

    def __repr__(self) -> str:
        return f"WorkerPool(workers={self.workers}, start_method={self.start_method!r})"


class _Processes(WorkerGroup):
    """The processes of a pool: workers without a dataset."""

    def __init__(self, workers: int, start_method: str) -> None:
        super().__init__(_pool_setup_maker(workers), GroupOptions(LAUNCHERS[start_method], "numpy"))
        self._entrance = threading.RLock()  # loaders of a pool may be used by several threads

    def start(self) -> None:
        with self._entrance:
            super().start()

    def running(self, index: int) -> RemoteWorker:
        """Process number ``index``; a new one if it has died."""
        with self._entrance:
            if not self._workers:
                raise MpwdsError("the pool was closed while a loader of it started")
            remote = self._workers[index]
            return self.restart(index) if self.has_died(remote) else remote

    def has_died(self, remote: RemoteWorker) -> bool:
        """Whether a process has ended; it is reaped then."""
        with self._entrance:
            return remote.process.wait(0)


def _pool_setup_maker(workers: int) -> Callable[[], WorkerSetup]:
    def make() -> WorkerSetup:
        here = Context.current()
        return PoolSetup(None, workers, 1, here.rank, here.world_size)

    return make


class _Sessions:
    """Launcher of workers that are sessions in a pool's processes.

    Raises:
        CannotPickle: The setup holds something that cannot be pickled.
    """

    def __init__(self, processes: _Processes, setup: WorkerSetup) -> None:
        self._processes = processes
        self._pickled = worker_setup.pickled(setup)
        self._setup = -1

    def open(self) -> None:
        self._setup = worker_setup.store(self._pickled)

    def wait(self) -> None:
        self._processes.start()

    def launch(self, index: int, ends: WorkerEnds) -> WorkerProcess:
        host = self._processes.running(index)
        with contextlib.ExitStack() as begun:
            over = Bell()
            begun.callback(over.close)
            process = _SessionProcess(self._processes, host, over)
            begun.callback(process.let_go)
            try:
                host.hand_over(
                    [self._setup, ends.channel, ends.handover, ends.bell, ends.status, over.fileno()]
                )
            except BlockingIOError:
                raise MpwdsError(
                    f"process {index} of the pool (pid {host.process.pid}) has not looked for new loaders "
                    "for long, and too many are waiting: see what its datasets do, or make another pool"
                ) from None
            begun.pop_all()
        return process

    def close(self) -> None:
        if self._setup >= 0:
            os.close(self._setup)


class _SessionProcess(WorkerProcess):
    """A session, as if it were a process: it ends when it is over, or with the process it runs in."""

    def __init__(self, processes: _Processes, host: RemoteWorker, over: Bell) -> None:
        super().__init__(host.process.pid)
        self._processes = processes
        self._host = host
        self._over = over
        try:
            self._events = select.epoll()
        except OSError:
            os.close(self._sentinel)
            raise
        self._events.register(self._sentinel, select.EPOLLIN)
        self._events.register(over, select.EPOLLIN)

    def fileno(self) -> int:
        return self._events.fileno()

    def wait(self, timeout_s: float) -> bool:
        if not self._ended and self._events.poll(max(0.0, timeout_s)):
            has_died = self._processes.has_died(self._host)
            host = self._host.process
            self.exitcode, self.hint = (host.exitcode, host.hint) if has_died else (0, "")
            self.let_go()
        return self._ended

    def kill(self) -> None:
        """Leaves the session to end when it can; where it is stuck, the process it runs in is killed."""
        if self.is_stuck:
            self._host.process.hint = (
                "another loader of its pool got nothing from it for longer than its timeout= allows, and "
                "ended it"
            )
            self._host.process.kill()
        else:
            self.let_go()

    def stack(self, page: StatusPage) -> str:
        return "" if self._processes.has_died(self._host) else self._host.stack()

    def _end_unwatched(self) -> None:
        """Nothing: the process is that of other sessions, too."""

    def let_go(self) -> None:
        """Closes the descriptors of the trainer's side: nobody waits for its end any more."""
        if not self._ended:
            self._ended = True
            os.close(self._sentinel)
            self._events.close()
            self._over.close()
