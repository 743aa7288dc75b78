"""The iterators of a DataLoader, with and without workers; how these start, and the statistics."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Callable
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from mpwds import interrupts
from mpwds.errors import MpwdsError, WorkerDied, WorkerTimeout, shorten
from mpwds.loader.dataloader import torch_collate
from mpwds.loader.dataloader.state import EpochRecord
from mpwds.loader.dataloader.task_epoch import Answer, TaskEpoch
from mpwds.loader.dataloader.task_worker import FetchingSetup, make_again
from mpwds.loader.engine.epoch import OneThread
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.options import BLOCKS_OF_CONSUMER
from mpwds.loader.engine.worker_handle import WorkerHandle
from mpwds.loader.launching.launchers import LAUNCHERS, ForkFallback, Launcher, cuda_is_initialized
from mpwds.loader.multi_loader import Rebatching
from mpwds.loader.processes.setup import OPEN_LATER, CannotPickle, WorkerSetup
from mpwds.pipeline.context import Context
from mpwds.pipeline.filter import attribute, rows_in
from mpwds.pipeline.iterable_sources import IterableSource
from mpwds.sharedmem.arena import MOST_BLOCKS
from mpwds.sharedmem.cuda import CudaAccess, Pinning
from mpwds.stats.collector import ConsumerTimer, Since, StatsCollector
from mpwds.stats.snapshot import CounterSnapshot, StageSnapshot
from mpwds.trees import parts


class DataLoaderIterator(_BaseDataLoaderIter):
    """The batches of an epoch of a DataLoader, or of several in turn where its workers persist.

    The workers end with the epoch (unless they persist), with the iterator, which does not keep the loader,
    by :meth:`close`, or with the process.
    """

    def __init__(
        self, loader: DataLoader[Any], record: EpochRecord, statistics: EpochStatistics, forks: ForkFallback
    ) -> None:
        self._times = ConsumerTimer()
        if not loader.prefetch_factor:
            raise ValueError("prefetch_factor must be at least 1 where there are workers, got 0")
        super().__init__(loader)
        record.take_back_seed(loader)
        self._process = os.getpid()
        self._one_thread = OneThread()
        self._statistics = statistics
        self._forks = forks
        access = CudaAccess()
        pins = self._pin_memory and access.device_count() > 0  # other accelerators register nothing
        without = "batches are copied to pinned memory one by one"
        pinning = Pinning(access.runtime, without) if pins else None
        launcher = _launcher_of(loader.multiprocessing_context, forks)
        setup = _setup(loader, int(self._base_seed))
        self._group = WorkerGroup(lambda: setup, launcher, "torch", warn_of_copies=False, pinning=pinning)
        self._finalizer = weakref.finalize(self, _finish, self._group)
        self._epoch: TaskEpoch | None = None
        self._begin(loader, record)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begins an epoch with the same workers if they still run. An unfinished one is left."""
        with loader._beginning():
            self._begin(loader, loader._record)

    def _begin(self, loader: DataLoader[Any], record: EpochRecord) -> None:
        # A second time in the first epoch, as in torch: a sampler may draw numbers when it is asked.
        super()._reset(loader)
        self._num_yielded = record.completed.count
        self._record = record
        self._epoch = None
        self._times.end()
        self._times = self._statistics.begin(self._group, in_order=loader.in_order)
        # The copies of a dataset of this package in the workers cannot count epochs.
        epoch = loader.dataset._epoch if isinstance(loader.dataset, IterableSource) else 0
        _start(self._group, loader.multiprocessing_context, self._forks, loader.timeout or None)
        self._epoch = TaskEpoch(loader, record, self._sampler_iter, self._group, epoch, self._times)
        if isinstance(loader.dataset, IterableSource):
            loader.dataset.set_epoch(epoch + 1)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the running workers."""
        return self._group.pids

    @property
    def _workers(self) -> list[WorkerHandle]:
        """The running workers, under torch's name: programs read the ``pid`` of each."""
        return self._group.workers

    def close(self) -> None:
        """Ends the workers. A later ``next()`` ends the iteration."""
        self._epoch = None
        self._times.end()
        self._group.close()

    _shutdown_workers = close  # torch's name for it, which programs call because torch has no public one

    def __del__(self) -> None:
        self._times.end()

    def _next_data(self) -> Any:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this iteration belongs to process {self._process}, of which this one ({os.getpid()}) is a "
                "fork: iterate the loader again here"
            )
        try:
            with self._one_thread:
                batch, errors = self._next_answer()
                if errors:
                    raise errors.pop()
                # torch gives its function no types.
                return pin_memory(batch) if self._pin_memory else batch  # type: ignore[no-untyped-call]
        except (Exception, KeyboardInterrupt) as error:
            shorten(error)
            raise

    def _next_answer(self) -> Answer:
        epoch = self._epoch
        if epoch is None:
            raise StopIteration
        try:
            return epoch.next_answer()
        except StopIteration:
            self._epoch = None
            self._record.finish()
            if not self._persistent_workers:
                self._group.close()
            raise
        except KeyboardInterrupt:
            self.close()
            raise
        except Exception as error:
            if not self._group.pids:  # closed meanwhile: by another thread, or by the interpreter's exit
                self._epoch = None
                raise StopIteration from error
            if isinstance(error, MpwdsError):
                self.close()
            if isinstance(error, WorkerDied):
                raise _in_torchs_words(error) from None
            if isinstance(error, WorkerTimeout):
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds: {error}") from None
            raise


class SingleProcessIterator(_SingleProcessDataLoaderIter):
    """One epoch without workers, by torch's own iterator, which here counts what it delivers."""

    def __init__(self, loader: DataLoader[Any], record: EpochRecord, statistics: EpochStatistics) -> None:
        self._local = LocalCounts()
        self._times = statistics.begin(self._local, in_order=loader.in_order)
        super().__init__(loader)
        record.take_back_seed(loader)
        self._record = record
        if isinstance(loader.dataset, IterableDataset):
            record.continue_iterator(loader, self._dataset_fetcher)
            make_again(super()._next_data, 0, 0, record.runs_again)
        else:
            indices = record.drawn(loader, self._sampler_iter)
            if record.loaded is not None:
                left = (index for _, index in record.completed.left(indices))
                # The first one now, while the generator that the order is drawn from stands where it did.
                indices = chain(list(islice(left, 1)), left)
            self._sampler_iter = indices
        self._num_yielded = record.completed.count

    def _next_data(self) -> Any:
        completed = self._record.completed
        self._times.asked()
        start_ns = time.monotonic_ns()
        try:
            batch = super()._next_data()  # type: ignore[no-untyped-call]  # torch gives it no types
        except StopIteration:
            self._record.finish()
            self._times.end()
            raise
        except Exception:
            if not isinstance(self._dataset, IterableDataset):
                completed.add(completed.below)
            self._times.left()
            raise
        finally:
            self._local.active_ns += time.monotonic_ns() - start_ns
        completed.add(completed.below)
        self._times.delivered(*self._local.count(batch))
        if isinstance(self._dataset, Rebatching) and getattr(self._dataset_fetcher, "ended", False):
            self._record.finish()  # after the incomplete last batch the loader is at its next epoch
        return batch

    def __del__(self) -> None:
        self._times.end()


def _finish(group: WorkerGroup) -> None:
    """Ends the workers when an iterator is collected, or the interpreter exits."""
    with interrupts.deferring():
        group.close()


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


if TYPE_CHECKING:
    from mpwds.stats.report import LoaderStats


class EpochStatistics:
    """Adds up the figures of one loader's epochs, up to when the next one begins with other workers."""

    def __init__(self) -> None:
        # The collector refers to this weakly: a cycle would keep workers until the garbage collector runs.
        this = weakref.proxy(self)
        self._statistics = StatsCollector(
            lambda: this._snapshots(), lambda: this._private_copies(), in_order=True, in_process=False
        )
        self._epochs = 0
        self._counting: WorkerGroup | LocalCounts = LocalCounts()
        self._earlier: dict[int, CounterSnapshot] = {}
        self._earlier_copies = 0

    def begin(self, counting: WorkerGroup | LocalCounts, *, in_order: bool) -> ConsumerTimer:
        """Begins an epoch, before its workers do, and returns the clock for its iterator."""
        if counting is not self._counting:
            self._earlier_copies = self._private_copies()
            self._earlier = self._snapshots()
            self._counting = counting
        self._statistics.in_order, self._statistics.in_process = in_order, isinstance(counting, LocalCounts)
        times = ConsumerTimer()
        self._statistics.begin(self._epochs, times)
        self._epochs += 1
        return times

    def stats(self, since: Since) -> LoaderStats:
        return self._statistics.stats(since)

    def _snapshots(self) -> dict[int, CounterSnapshot]:
        found = dict(self._earlier)
        for index, now in self._counting.snapshots().items():
            found[index] = found[index] + now if index in found else now
        return found

    def _private_copies(self) -> int:
        return self._earlier_copies + self._counting.private_copies()


class LocalCounts:
    """Counts the work without workers, as one stage: the dataset with its collation."""

    def __init__(self) -> None:
        self.active_ns = self.batches = self.samples = self.nbytes = 0

    def count(self, batch: Any) -> tuple[int, int]:
        """Counts a batch, and returns its samples and the bytes of its arrays."""
        samples, nbytes = rows_in(batch), _array_nbytes(batch)
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
    """Returns what makes a loader's launcher: the start method of its context, or ``forks``."""
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
    except (AttributeError, ImportError, RecursionError) as error:  # unpickling lacks what is only here
        group.close()
        if context is not None or cuda_is_initialized():
            raise
        because = f"the workers cannot unpickle what they need ({type(error).__name__}: {error})"
        forks.require(because, "change it so that another process can unpickle it")
    except BaseException:
        group.close()
        raise
