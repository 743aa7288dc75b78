"""Iterating a DataLoader without workers: torch's own iterator, which here counts what it delivers."""

from __future__ import annotations

import os
import time
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from mpwds.loader.dataloader.dividing import has_workers
from mpwds.loader.dataloader.state import is_iterable
from mpwds.loader.stats.collector import WorkerReading
from mpwds.loader.stats.trainer_times import TrainerTimes
from mpwds.loader.worker.counters import Reading, StageReading
from mpwds.pipeline.counts import attribute, rows_in

if TYPE_CHECKING:
    from mpwds.loader.dataloader.data_loader import DataLoader
    from mpwds.loader.dataloader.state import EpochRecord


class SingleProcessIterator(_SingleProcessDataLoaderIter):
    """One epoch, in this process.

    Args:
        loader: The loader.
        record: What of the epoch was delivered before. Of a map-style dataset these samples are not fetched
            again; an iterable one runs again from its start, unless it is a loader that goes on by itself.
        local: Counts what is done.
        times: Told when a batch is waited for, which is when it is made.
    """

    def __init__(
        self, loader: DataLoader[Any], record: EpochRecord, local: LocalCounts, times: TrainerTimes
    ) -> None:
        super().__init__(loader)
        record.take_back_seed(loader)
        self._profile_name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self._record = record
        self._local = local
        self._times = times
        if is_iterable(loader.dataset):
            for number in range(record.runs_again):
                self._make_again(number, record.runs_again)
        elif record.loaded is not None:
            left = (index for _, index in record.answered.left(self._sampler_iter))
            # The first one now, while the generator that the order is drawn from stands where it did.
            self._sampler_iter = chain(list(islice(left, 1)), left)
        self._num_yielded = record.answered.count

    def _next_data(self) -> Any:
        answered = self._record.answered
        self._times.asked()
        start_ns = time.monotonic_ns()
        try:
            batch = super()._next_data()  # type: ignore[no-untyped-call]  # torch gives it no types
        except StopIteration:
            self._record.finish()
            self._times.end()
            raise
        except Exception:
            answered.add(answered.below)
            self._times.left()
            raise
        finally:
            self._local.active_ns += time.monotonic_ns() - start_ns
        answered.add(answered.below)
        self._times.delivered(*self._local.count(batch))
        if has_workers(self._dataset) and getattr(self._dataset_fetcher, "ended", False):
            self._record.finish()  # this was the incomplete last batch, and the loader is at its next epoch
        return batch

    def __del__(self) -> None:
        if hasattr(self, "_times"):
            self._times.end()

    def _make_again(self, number: int, delivered: int) -> None:
        try:
            super()._next_data()  # type: ignore[no-untyped-call]  # torch gives it no types
        except StopIteration:
            raise RuntimeError(
                f"the dataset ended after {number} batches, {delivered} were to be skipped: it has changed, "
                "or gives other samples each time it runs, so the epoch cannot be continued"
            ) from None
        except Exception:
            pass  # it was raised where the batch was first made


class LocalCounts:
    """What the work without workers comes to: one stage, the dataset with its collation.

    Attributes:
        active_ns: Time in which batches were made.
        batches: How many were.
        samples: Samples in them.
        nbytes: Bytes of their arrays.
    """

    def __init__(self) -> None:
        self.active_ns = self.batches = self.samples = self.nbytes = 0

    def count(self, batch: Any) -> tuple[int, int]:
        """Counts a batch; returns its number of samples and the bytes of its arrays."""
        samples, nbytes = rows_in(batch), _array_nbytes(batch)
        self.batches += 1
        self.samples += samples
        self.nbytes += nbytes
        return samples, nbytes

    def readings(self) -> list[WorkerReading]:
        """That of this process, as of a worker 0."""
        reading = Reading(
            active_ns=self.active_ns,
            batches=self.batches,
            samples=self.samples,
            nbytes=self.nbytes,
            other=StageReading(self.active_ns),
        )
        return [WorkerReading(0, os.getpid(), reading)]

    def private_copies(self) -> int:
        """None: nothing is copied."""
        return 0


def _array_nbytes(batch: Any) -> int:
    if isinstance(batch, dict):
        return sum(map(_array_nbytes, batch.values()))
    if isinstance(batch, (list, tuple)):
        return sum(map(_array_nbytes, batch))
    nbytes = attribute(batch, "nbytes")
    return nbytes if isinstance(nbytes, int) else 0
