"""The iterators of a DataLoader, with and without workers; how these start, and what is counted without."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, cycle, islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from mpwds import pickling
from mpwds.errors import MpwdsError, WorkerDied, WorkerTimeout
from mpwds.loader.dataloader import torch_collate
from mpwds.loader.dataloader.state import EpochRecord
from mpwds.loader.dataloader.task_worker import FetchingSetup, make_again, samples_of
from mpwds.loader.engine.epoch import EpochIterator, finish, leave_all
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.options import BLOCKS_OF_CONSUMER
from mpwds.loader.engine.worker_handle import WorkerHandle
from mpwds.loader.launching.launchers import LAUNCHERS, ForkFallback, Launcher, cuda_is_initialized
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Message
from mpwds.loader.processes.setup import OPEN_LATER, CannotPickle, WorkerSetup
from mpwds.loader.rebatching import Rebatching
from mpwds.pipeline.context import Context
from mpwds.pipeline.error_context import add_note
from mpwds.pipeline.filter import attribute, rows_in
from mpwds.pipeline.iterable_sources import IterableSource
from mpwds.sharedmem.arena import MOST_BLOCKS
from mpwds.sharedmem.cuda import CudaAccess, Pinning
from mpwds.sharedmem.lease import CopiedBatches
from mpwds.stats.collector import RECEIVED, WAITED, ConsumerTimer, StatsCollector
from mpwds.stats.snapshot import CounterSnapshot, StageSnapshot
from mpwds.trees import parts


class DataLoaderIterator(_BaseDataLoaderIter):
    """The batches of an epoch of a DataLoader, or of several in turn where its workers persist.

    The workers end with the epoch (unless they persist), with the iterator, which does not keep the loader,
    by :meth:`close`, or with the process.
    """

    def __init__(
        self, loader: DataLoader[Any], record: EpochRecord, statistics: StatsCollector, forks: ForkFallback
    ) -> None:
        self._times = ConsumerTimer()
        if not loader.prefetch_factor:
            raise ValueError("prefetch_factor must be at least 1 where there are workers, got 0")
        super().__init__(loader)
        record.take_back_seed(loader)
        self._loader = weakref.ref(loader)
        self._statistics = statistics
        self._forks = forks
        access = CudaAccess()
        pins = self._pin_memory and access.device_count() > 0  # other accelerators register nothing
        without = "batches are copied to pinned memory one by one"
        copies = CopiedBatches(Pinning(access.runtime, without) if pins else None)
        launcher = _launcher_of(loader.multiprocessing_context, forks)
        setup = _setup(loader, int(self._base_seed))
        self._group = WorkerGroup(lambda: setup, launcher, "torch", copies, warn_of_copies=False)
        self._iterations: weakref.WeakSet[EpochIterator] = weakref.WeakSet()
        self._finalizer = weakref.finalize(self, finish, self._iterations, self._group)
        self._epoch: TaskEpoch | None = None
        self._begin(loader, record)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begins an epoch with the same workers if they still run. An unfinished one is left."""
        with loader._beginning():
            self._begin(loader, loader._record)

    def _begin(self, loader: DataLoader[Any], record: EpochRecord) -> None:
        # A second time in the first epoch, as in torch: a sampler may draw numbers when it is asked.
        super()._reset(loader)
        self._num_yielded = record.completed.delivered
        self._record = record
        self._epoch = None
        leave_all(self._iterations)
        self._times.end()
        self._times = ConsumerTimer()
        self._statistics.in_order = loader.in_order
        self._statistics.begin(self._times, workers=self._group)
        # The copies of a dataset of this package in the workers cannot count epochs.
        epoch = loader.dataset._epoch if isinstance(loader.dataset, IterableSource) else 0
        _start(self._group, loader.multiprocessing_context, self._forks, loader.timeout or None)
        record.completed.epoch = epoch
        self._epoch = TaskEpoch(loader, record, self._sampler_iter, self._group, self._times)
        self._iterations.add(self._epoch)
        if isinstance(loader.dataset, IterableSource):
            loader.dataset.set_epoch(epoch + 1)

    @property
    def worker_pids(self) -> list[int]:
        return self._group.pids

    @property
    def _workers(self) -> list[WorkerHandle]:
        """The running workers, under torch's name: programs read the ``pid`` of each."""
        return self._group.workers

    def close(self) -> None:
        """Ends the workers. A later ``next()`` ends the iteration."""
        leave_all(self._iterations)
        self._times.end()
        self._group.close()

    _shutdown_workers = close  # torch's name for it, which programs call because torch has no public one

    def __del__(self) -> None:
        self._times.end()

    def of_one_epoch(self) -> DataLoaderIterator:
        """An iterator that ends with the epoch, though ``iter()`` of the loader may return this one again.

        A thread that runs ahead may go on in an epoch that was left, and would take batches of the next one.
        """
        one = object.__new__(type(self))
        vars(one).update(vars(self), kept=self)  # which ends the workers when it is collected
        return one

    def _next_data(self) -> Any:
        if self._epoch is None:
            raise StopIteration
        batch = next(self._epoch)
        _make_current(self._loader(), self._record)
        # torch gives its function no types.
        return pin_memory(batch) if self._pin_memory else batch  # type: ignore[no-untyped-call]


class TaskEpoch(EpochIterator):
    """An epoch whose workers do tasks, which are indices or batches of them.

    As in torch's DataLoader, the workers get tasks in turn, first ``prefetch_factor`` each, then one for each
    answer. The indices are asked for at these moments and no earlier. A worker whose dataset is exhausted is
    left out. An error of a task does not end the epoch.

    Completed tasks are not given again. With an iterable dataset, where each task depends on those before, a
    worker makes the batches again that follow its last state.
    """

    _in_fork = "iterate the loader again here"

    def __init__(
        self,
        loader: DataLoader[Any],
        record: EpochRecord,
        indices: Iterator[Any],
        group: WorkerGroup,
        times: ConsumerTimer,
    ) -> None:
        self._completed = completed = record.completed
        timeout, persistent = loader.timeout or None, loader.persistent_workers
        super().__init__(
            None, completed, times, group, in_order=loader.in_order, timeout=timeout, persistent=persistent
        )
        indices = record.drawn(loader, indices)
        workers = list(self._workers)
        self._turns.clear()  # from now on, a turn is a task without an answer
        self._most = (loader.prefetch_factor or 1) * len(workers)
        self._iterable = isinstance(loader.dataset, IterableDataset)
        self._indices = enumerate(indices) if self._iterable else completed.left(indices)
        # As if it had gone on without a break.
        if self._iterable:
            workers.sort(key=lambda worker: completed.streams[worker.index].delivered)
        else:
            first = completed.delivered % len(workers)
            workers = workers[first:] + workers[:first]
        self._active = {worker.index for worker in workers}
        self._next_workers = cycle(workers)
        self._tasks: dict[int, deque[int]] = {worker.index: deque() for worker in workers}
        # Errors are popped to be raised: if the frame that raises one held it as well, this cycle would keep
        # the iterator and its workers until the garbage collector runs.
        self._errors: list[BaseException] = []
        for _ in range(self._most):
            self._give_next()

    def _next(self, waits: bool) -> Any:
        try:
            batch = super()._next(waits)
        except WorkerDied as error:
            raise _in_torchs_words(error) from None
        except WorkerTimeout as error:
            raise RuntimeError(f"DataLoader timed out after {self.timeout} seconds: {error}") from None
        if self._errors:
            raise self._errors.pop()
        return batch

    def _is_batch(self, worker: WorkerHandle, message: Message) -> bool:
        if message.fields["kind"] == protocol.ERROR:
            raise _noted(worker.error(message), worker)
        is_batch = super()._is_batch(worker, message)
        if not is_batch:
            self._active.discard(worker.index)
            self._give_next()
        return is_batch

    def _delivered(self, worker: WorkerHandle, message: Message) -> Any:
        fields, task = message.fields, self._tasks[worker.index].popleft()
        self._turns.remove(worker.index)
        if fields["kind"] == protocol.FAILED:
            return self._failed(worker, task, _noted(worker.error(message), worker))
        self.times.enter(RECEIVED)
        try:
            batch = worker.batch(message)
        except MpwdsError:
            raise
        except Exception as error:
            add_note(error, f"while a batch from worker {worker.index} was unpickled")
            return self._failed(worker, task, error)
        self._complete(worker, task, fields.get("state"))
        self.times.delivered(fields["samples"], fields["nbytes"])
        return batch

    def _failed(self, worker: WorkerHandle, task: int, error: BaseException) -> None:
        self._errors.append(error)
        if self._iterable:  # a batch that did not come is none to be made again
            self._give_next()
        else:
            self._complete(worker, task)
        self.times.left()

    def _complete(self, worker: WorkerHandle, task: int, state: bytes | str | None = None) -> None:
        self._completed.complete(self._completed.below if self._iterable else task, worker.index, state)
        try:
            self._give_next()
        except Exception as error:  # asking for the next index raised it: the answer is lost, as in torch
            self._errors = [error]

    def _give_next(self) -> None:
        for worker in islice(self._next_workers, len(self._tasks)):
            tasks = self._tasks[worker.index]
            if worker.index in self._active and (
                self.in_order or len(tasks) < self._most // len(self._active)
            ):
                task = next(self._indices, None)
                if task is not None:
                    number, index = task
                    tasks.append(number)
                    worker.give(pickling.dumps(index))
                    self._turns.append(worker.index)
                return


def _noted(error: BaseException, worker: WorkerHandle) -> BaseException:
    add_note(error, f"Caught {type(error).__name__} in DataLoader worker process {worker.index}.")
    return error


class SingleProcessIterator(_SingleProcessDataLoaderIter):
    """One epoch without workers, by torch's own iterator, which here counts what it delivers."""

    def __init__(self, loader: DataLoader[Any], record: EpochRecord, statistics: StatsCollector) -> None:
        self._turn = threading.RLock()  # a stage after the loader may make batches in a thread
        self._is_closed = False
        self._local = LocalCounts()
        self._times = ConsumerTimer()
        statistics.in_order = loader.in_order
        statistics.begin(self._times, workers=self._local)
        super().__init__(loader)
        record.take_back_seed(loader)
        self._record, self._loader = record, weakref.ref(loader)
        if isinstance(loader.dataset, IterableDataset):
            record.fetcher = self._dataset_fetcher
            make_again(super()._next_data, 0, 0, record.runs_again)
        else:
            indices = record.drawn(loader, self._sampler_iter)
            if record.resumed:
                left = (index for _, index in record.completed.left(indices))
                # The first one now, while the generator that the order is drawn from stands where it did.
                record.go_to_order(loader)
                indices = chain(list(islice(left, 1)), left)
            else:
                indices = record.noting_order(loader, indices)
            self._sampler_iter = indices
        self._num_yielded = record.completed.delivered

    def _next_index(self) -> Any:
        self._index = super()._next_index()  # type: ignore[no-untyped-call]  # torch gives it no types
        return self._index

    def close(self) -> None:
        """Ends the iteration, which then draws no random numbers; waits a second for a batch being made."""
        self._is_closed = True
        if self._turn.acquire(timeout=1.0):
            self._turn.release()

    def _next_data(self) -> Any:
        with self._turn:
            if self._is_closed:
                raise StopIteration
            completed, by_index = self._record.completed, not isinstance(self._dataset, IterableDataset)
            self._times.enter(WAITED)
            start_ns = time.monotonic_ns()
            try:
                batch = super()._next_data()  # type: ignore[no-untyped-call]  # torch gives it no types
            except StopIteration:
                completed.finish()
                self._times.end()
                dataset = self._dataset
                if isinstance(dataset, IterableSource) and dataset.map_style:
                    dataset._epoch += 1  # nobody else counts it
                raise
            except Exception:
                if by_index:
                    completed.complete(completed.below)
                self._times.left()
                raise
            finally:
                self._local.active_ns += time.monotonic_ns() - start_ns
            completed.complete(completed.below)
            _make_current(self._loader(), self._record)
            samples = samples_of(self._index, self._auto_collation) if by_index else rows_in(batch)
            self._times.delivered(*self._local.count(batch, samples))
            if isinstance(self._dataset, Rebatching) and self._dataset_fetcher.ended:
                completed.finish()  # after the incomplete last batch the loader is at its next epoch
            return batch

    def __del__(self) -> None:
        self._times.end()


def _make_current(loader: Any, record: EpochRecord) -> None:
    """Makes the loader's state that of the iteration which has delivered last: there may be several."""
    if loader is not None:
        loader._record = record


def _setup(loader: DataLoader[Any], base_seed: int) -> FetchingSetup:
    here = Context.current()
    batches = loader.batch_sampler is not None
    is_default = loader.collate_fn is (default_collate if batches else default_convert)
    return FetchingSetup(
        loader.dataset,
        loader.num_workers,
        min((loader.prefetch_factor or 1) + BLOCKS_OF_CONSUMER, MOST_BLOCKS),
        here.rank,
        here.world_size,
        base_seed=base_seed,
        iterable=isinstance(loader.dataset, IterableDataset),
        batches=batches,
        collate_fn=None if is_default else loader.collate_fn,
        drop_last=loader.drop_last,
        worker_init_fn=loader.worker_init_fn,
        collate_functions=torch_collate.users_functions(),
    )


def _in_torchs_words(error: WorkerDied) -> WorkerDied:
    code = error.exitcode
    if code is not None and code < 0:
        how = f"is killed by signal: {signal.strsignal(-code)}. "
    else:
        how = f"exited unexpectedly{'' if code is None else f' with exit code {code}'}. "
    return WorkerDied(f"DataLoader worker (pid {error.pid}) {how}{error}", error.worker, error.pid, code)


class LocalCounts:
    """Counts the work without workers, as one stage: the dataset with its collation."""

    in_process = True

    def __init__(self) -> None:
        self.active_ns = self.batches = self.samples = self.nbytes = 0

    def count(self, batch: Any, samples: int) -> tuple[int, int]:
        nbytes = _array_nbytes(batch)
        self.batches += 1
        self.samples += samples
        self.nbytes += nbytes
        return samples, nbytes

    def snapshots(self) -> dict[int, CounterSnapshot]:
        work = StageSnapshot(self.active_ns)
        counts = (self.active_ns, 0, self.batches, self.samples, self.nbytes)
        return {0: CounterSnapshot(*counts, other=work, pid=os.getpid())}

    def private_copies(self) -> int:
        return 0


def _array_nbytes(batch: Any) -> int:
    values = parts(batch)
    if values is not None:
        return sum(map(_array_nbytes, values))
    nbytes = attribute(batch, "nbytes")
    return nbytes if isinstance(nbytes, int) else 0


def _launcher_of(context: Any, forks: ForkFallback) -> Callable[[WorkerSetup], Launcher]:
    if context is None:
        return forks
    method = context.get_start_method()
    if method not in LAUNCHERS:
        raise ValueError(
            f"multiprocessing_context {context!r} starts processes by {method!r}; workers can be started by "
            "'fork', 'forkserver' and 'spawn'"
        )
    return LAUNCHERS[method]


def _start(group: WorkerGroup, context: Any, forks: ForkFallback, timeout: float | None) -> None:
    """Starts the workers: forks of this process where, without a context, others cannot get the dataset."""
    try:
        group.start()
        if context is None and not forks.unpickled:
            group.wait_until_ready(timeout)
            forks.unpickled = not forks.forked
    except CannotPickle as error:
        raise TypeError(
            f"{error.what}, which cannot be pickled for the workers ({error.__cause__}): {OPEN_LATER}, "
            "or pass multiprocessing_context='fork'"
        ) from error.__cause__
    except MpwdsError:
        return  # it is raised again when a batch is asked for
    except Exception as error:  # unpickling may lack what is only here
        group.close()
        if context is not None or cuda_is_initialized() or isinstance(error, (MemoryError, OSError)):
            raise
        because = f"the workers cannot unpickle what they need ({type(error).__name__}: {error})"
        forks.require(because, "change it so that another process can unpickle it")
    except BaseException:
        group.close()
        raise
