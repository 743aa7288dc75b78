"""The iterators of a DataLoader, with worker processes and without."""

from __future__ import annotations

import copy
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate, default_convert
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from mpwds.errors import MpwdsError, WorkerDied, WorkerTimeout
from mpwds.loader.dataloader import start_methods, torch_collate
from mpwds.loader.dataloader.datasets import has_workers, is_iterable
from mpwds.loader.dataloader.epoch_statistics import EpochStatistics, LocalCounts
from mpwds.loader.dataloader.start_methods import Forks
from mpwds.loader.dataloader.state import EpochRecord
from mpwds.loader.dataloader.task_epoch import TaskEpoch
from mpwds.loader.dataloader.task_worker import FetchingSetup
from mpwds.loader.engine.epoch import OneThread
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.options import BLOCKS_OF_CONSUMER
from mpwds.loader.stats.trainer_times import TrainerTimes
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.parts import IterableSource
from mpwds.sharedmem import interrupts
from mpwds.sharedmem.arena import MOST_BLOCKS
from mpwds.sharedmem.cuda import CudaAccess
from mpwds.sharedmem.pinning import Pinning
from mpwds.tracebacks import shorten
from mpwds.warn import warn

_PINNED_BY_COPYING = "batches are copied to pinned memory one by one"


class DataLoaderIterator(Iterator[Any]):
    """The batches of one epoch of a DataLoader, or of several in turn where its workers persist.

    Its workers end with the epoch (unless they persist), when the iterator is dropped, by :meth:`close`, or
    with the process. It does not keep the loader.

    Args:
        loader: The loader.
        record: The epoch, with the tasks that were completed before.
        statistics: The loader's statistics.
        forks: Whether the workers have to be forks of this process.

    Raises:
        TypeError: What the workers need cannot be pickled, and they may not be forks of this process.
        ValueError: ``prefetch_factor`` is 0.
    """

    def __init__(
        self, loader: DataLoader[Any], record: EpochRecord, statistics: EpochStatistics, forks: Forks
    ) -> None:
        if not loader.prefetch_factor:
            raise ValueError("prefetch_factor must be at least 1 where there are workers, got 0")
        self._process = os.getpid()
        self._one_thread = OneThread()
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"
        self._indices: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._statistics = statistics
        self._forks = forks
        self._pin = _pinning(loader)
        # Once here and once when the epoch begins, as in torch: a sampler may draw numbers when it is asked.
        iter(self._indices)
        base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
        record.take_back_seed(loader)
        access = CudaAccess()
        pins = self._pin is not None and access.device_count() > 0  # other accelerators register nothing
        pinning = Pinning(access.runtime, without=_PINNED_BY_COPYING) if pins else None
        launcher = start_methods.launcher_of(loader.multiprocessing_context, forks)
        make_setup = _setup_maker(loader, base_seed)
        self._group = WorkerGroup(make_setup, launcher, "torch", warn_of_copies=False, pinning=pinning)
        self._finalizer = weakref.finalize(self, _finish, self._group)
        self._epoch: TaskEpoch | None
        self._times = TrainerTimes()
        self.reset(loader, record)

    def reset(self, loader: DataLoader[Any], record: EpochRecord) -> None:
        """Leaves the epoch, if it is not over, and begins another with the same workers."""
        self._record = record
        self._yielded = record.completed.count
        # What len(loader) has told of an iterable dataset: further samples bring a warning.
        told: int | None = getattr(loader, "_IterableDataset_len_called", None)
        self._length = told if is_iterable(loader.dataset) else None
        self._dataset = loader.dataset
        self._persists = loader.persistent_workers
        self._timeout = loader.timeout
        self._epoch = None
        self._times.end()
        self._times = self._statistics.begin(self._group, in_order=loader.in_order, in_process=False)
        self._start(loader)
        workers, generation = self._group.begin_epoch(_count_epoch(loader.dataset))
        self._epoch = TaskEpoch(
            workers,
            generation,
            iter(self._indices),
            in_order=loader.in_order,
            prefetch=loader.prefetch_factor or 1,
            timeout=loader.timeout or None,
            completed=record.completed,
            again=is_iterable(loader.dataset),
            times=self._times,
        )

    def __next__(self) -> Any:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this iteration belongs to process {self._process}, of which this one ({os.getpid()}) is a "
                "fork: iterate the loader anew here"
            )
        try:
            with self._one_thread, torch.autograd.profiler.record_function(self._profile_name):
                return self._next()
        except Exception as error:
            shorten(error)
            raise

    def __len__(self) -> int:
        return len(self._indices)

    def __reduce__(self) -> Any:
        raise NotImplementedError(f"a {type(self).__name__} cannot be pickled: pickle its loader")

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the running workers."""
        return self._group.pids

    def close(self) -> None:
        """Ends the workers. A later ``next()`` ends the iteration."""
        self._epoch = None
        self._times.end()
        self._group.close()

    def _shutdown_workers(self) -> None:
        """torch's name for :meth:`close`, which programs call because torch has no public one."""
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_times"):
            self._times.end()

    def _start(self, loader: DataLoader[Any]) -> None:
        """Starts the workers, if they do not run: as forks where others cannot unpickle what they need."""
        if not self._forks.might_help:
            return
        self._group.start()
        try:
            self._group.wait_until_ready(loader.timeout or None)
        except MpwdsError:  # raised again when a batch is asked for
            return
        except BaseException as error:
            self._group.close()
            if not self._forks.help_with(loader.multiprocessing_context, error):
                raise
            self._group.start()
        self._forks.might_help = False

    def _next(self) -> Any:
        epoch = self._epoch
        if epoch is None:
            raise StopIteration
        try:
            answer = self._next_answer(epoch)
        except StopIteration:
            if self._epoch is None:
                raise
            self._epoch = None
            self._record.finish()
            if not self._persists:
                self._group.close()
            raise
        except WorkerDied as error:
            self.close()
            raise _in_torchs_words(error) from None
        except WorkerTimeout as error:
            self.close()
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds: {error}") from None
        except (KeyboardInterrupt, MpwdsError):
            self.close()
            raise
        batch = answer()
        self._yielded += 1
        if self._length is not None and self._yielded > self._length:
            self._warn_of_length()
        return batch if self._pin is None else self._pin(batch)

    def _next_answer(self, epoch: TaskEpoch) -> Callable[[], Any]:
        try:
            return epoch.next_answer()
        except StopIteration:
            raise
        except Exception as error:
            if self._group.pids:
                raise
            # Another thread has closed this meanwhile, or the interpreter's exit has.
            self._epoch = None
            raise StopIteration from error

    def _warn_of_length(self) -> None:
        warn(
            f"Length of IterableDataset {self._dataset} was reported to be {self._length} (when accessing "
            f"len(dataloader)), but {self._yielded} samples have been fetched. For multiprocessing "
            "data-loading, this could be caused by not properly configuring the IterableDataset replica at "
            "each worker: it iterates the whole dataset, unless that divides itself by "
            "torch.utils.data.get_worker_info()",
            UserWarning,
        )


class SingleProcessIterator(_SingleProcessDataLoaderIter):
    """One epoch without workers, by torch's own iterator, which here counts what it delivers.

    Of a map-style dataset, samples that were delivered before are not fetched again. An iterable dataset runs
    again from its start, unless it is a loader, which resumes by itself.

    Args:
        loader: The loader.
        record: The epoch, with what was delivered before.
        statistics: The loader's statistics.
    """

    def __init__(self, loader: DataLoader[Any], record: EpochRecord, statistics: EpochStatistics) -> None:
        self._local = LocalCounts()
        self._times = statistics.begin(self._local, in_order=loader.in_order, in_process=True)
        super().__init__(loader)
        record.take_back_seed(loader)
        self._profile_name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self._record = record
        if is_iterable(loader.dataset):
            for number in range(record.runs_again):
                self._make_again(number, record.runs_again)
        elif record.loaded is not None:
            left = (index for _, index in record.completed.left(self._sampler_iter))
            # The first one now, while the generator that the order is drawn from stands where it did.
            self._sampler_iter = chain(list(islice(left, 1)), left)
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
            completed.add(completed.below)
            self._times.left()
            raise
        finally:
            self._local.active_ns += time.monotonic_ns() - start_ns
        completed.add(completed.below)
        self._times.delivered(*self._local.count(batch))
        if has_workers(self._dataset) and getattr(self._dataset_fetcher, "ended", False):
            self._record.finish()  # after the incomplete last batch the loader is at its next epoch
        return batch

    def __del__(self) -> None:
        if hasattr(self, "_times"):
            self._times.end()

    def _make_again(self, number: int, delivered: int) -> None:
        try:
            super()._next_data()  # type: ignore[no-untyped-call]  # torch gives it no types
        except StopIteration:
            raise RuntimeError(
                f"the dataset ended after {number} batches, but {delivered} were delivered before: it has "
                "changed, or gives other samples each time it runs, so the epoch cannot be resumed"
            ) from None
        except Exception:
            pass  # it was raised where the batch was first made


def _finish(group: WorkerGroup) -> None:
    """Ends the workers when an iterator is collected, or the interpreter exits."""
    with interrupts.kept():
        group.close()


def _setup_maker(loader: DataLoader[Any], base_seed: int) -> Callable[[], FetchingSetup]:
    batches = loader.batch_sampler is not None
    is_default = loader.collate_fn is (default_collate if batches else default_convert)
    facts: dict[str, Any] = {
        "dataset": _without_epoch(loader.dataset),
        "workers": loader.num_workers,
        "blocks": min((loader.prefetch_factor or 1) + BLOCKS_OF_CONSUMER, MOST_BLOCKS),
        "base_seed": base_seed,
        "iterable": is_iterable(loader.dataset),
        "batches": batches,
        "collate_fn": None if is_default else loader.collate_fn,
        "drop_last": loader.drop_last,
        "worker_init_fn": loader.worker_init_fn,
    }

    def make() -> FetchingSetup:
        here = Context.current()
        return FetchingSetup(
            **facts,
            rank=here.rank,
            world_size=here.world_size,
            collate_functions=torch_collate.users_functions(),
        )

    return make


def _count_epoch(dataset: Any) -> int:
    """The epoch that begins, of a dataset of this package: its copies in the workers cannot count epochs."""
    if not isinstance(dataset, (DataPipeline, IterableSource)):
        return 0
    epoch = dataset._epoch
    dataset.set_epoch(epoch + 1)
    return epoch


def _without_epoch(dataset: Any) -> Any:
    """A dataset of this package as the workers get it, who are told the number of each epoch."""
    if not isinstance(dataset, (DataPipeline, IterableSource)):
        return dataset
    dataset = copy.copy(dataset)
    dataset.set_epoch(0)
    return dataset


def _pinning(loader: DataLoader[Any]) -> Callable[[Any], Any] | None:
    """torch's function that copies a batch to pinned memory, if ``pin_memory`` is set and has an effect.

    It leaves pinned tensors as they are, and calls ``pin_memory()`` of any object that has the method.
    """
    if not loader.pin_memory:
        return None
    from torch.utils.data._utils.pin_memory import pin_memory

    if loader.pin_memory_device:
        warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device, ignore "
            f"pin_memory_device='{loader.pin_memory_device}'.",
            UserWarning,
        )
    accelerator = getattr(torch, "accelerator", torch.cuda)  # since torch 2.6
    if not accelerator.is_available():
        warn(
            "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory "
            "won't be used.",
            UserWarning,
        )
        return None
    return pin_memory


def _in_torchs_words(error: WorkerDied) -> WorkerDied:
    code = error.exitcode
    if code is not None and code < 0:
        how = f"is killed by signal: {signal.strsignal(-code)}. "
    else:
        how = f"exited unexpectedly{'' if code is None else f' with exit code {code}'}. "
    return WorkerDied(f"DataLoader worker (pid {error.pid}) {how}{error}", error.worker, error.pid, code)
