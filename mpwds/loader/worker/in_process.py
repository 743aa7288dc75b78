"""A loader without workers: the same batches, made in the process that trains."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from mpwds import nest, tenbin
from mpwds.loader.engine.epoch import OneThread, made_fewer
from mpwds.loader.engine.receiving import Output, view
from mpwds.loader.resume.progress import EpochProgress
from mpwds.loader.stats.collector import WorkerReading
from mpwds.loader.stats.trainer_times import TrainerTimes
from mpwds.loader.worker.counters import Counters
from mpwds.loader.worker.elements import elements, process_seed
from mpwds.loader.worker.meter import Meter
from mpwds.loader.worker.worker import WorkerIterator
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.randomness import States, generator_states, put_back, seed_generators
from mpwds.sharedmem.pinning import Pinning
from mpwds.tracebacks import shorten


class InProcess:
    """Does the work of a loader without workers, and counts it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._counters = Counters()
        self.meter = Meter(self._counters, dataset, counts_cpu=False)

    def readings(self) -> list[WorkerReading]:
        return [WorkerReading(0, os.getpid(), self._counters.read())]


class LocalIterator(Iterator[Any]):
    """One epoch of a dataset, as a single worker would deliver it.

    Arrays are private, writable and of the kind ``output``. The dataset draws the random numbers that it
    would draw in a worker, and those of the program around it are left alone.

    Args:
        owner: Kept alive as long as this iterator is.
        local: Holds the dataset, and counts the work.
        context: Epoch, seed and rank.
        output: What arrays become.
        progress: Where to begin. It is updated with every element.
        times: Records how long the program waits for batches, that is, makes them.
        pinning: Where the memory of arrays comes from; ``None`` for any.

    Attributes:
        progress: The same.
        place: 0, and the number of the element that was delivered last.
    """

    def __init__(
        self,
        owner: object,
        local: InProcess,
        context: Context,
        output: Output,
        progress: EpochProgress,
        times: TrainerTimes,
        pinning: Pinning | None,
    ) -> None:
        self._owner = owner
        self._meter = meter = local.meter
        self._times = times
        context = replace(context, worker=0, workers=1, owns_process=False, watch=meter.watch)
        self.progress = progress
        position = progress.positions()[0]
        iterate = elements if isinstance(local.dataset, DataPipeline) else _with_own_generators
        self._iterator = WorkerIterator(local.dataset, context, position, iterate)
        self._batches = _delivered(self._iterator, position.first, output, pinning, meter)
        self._ended_because = ""
        self._one_thread = OneThread()
        self.place = (0, -1)
        progress.running = True

    def __next__(self) -> Any:
        if self._ended_because:
            raise RuntimeError(self._ended_because)
        try:
            with self._one_thread:
                return self._next()
        except Exception as error:
            shorten(error)
            raise

    def _next(self) -> Any:
        progress = self.progress
        self._times.asked()
        try:
            with self._meter.active():
                element, samples, nbytes = self._next_new()
        except StopIteration:
            if progress.running:
                progress.finish()
            progress.running = False
            self._times.end()
            raise
        except BaseException:
            progress.running = False
            if inspect.getgeneratorstate(self._batches) == inspect.GEN_CLOSED:
                self._times.end()
            raise
        self._count(samples, nbytes)
        self.place = (0, progress.workers[0].received - 1)
        state = self._iterator.state(time.monotonic())
        progress.count(0, 0, None if state is None else state["state"])
        return element

    def remake(self, worker: int) -> tuple[int, Any]:
        """The number of the next element, which was delivered before this iteration, and the element."""
        self._times.asked()
        with self._meter.epoch():
            element, samples, nbytes = self._remade()
        self._count(samples, nbytes)
        return self.progress.workers[worker].received - 1, element

    def _remade(self) -> tuple[Any, int, int]:
        own = self.progress.workers[0]
        try:
            made = next(self._batches)
        except StopIteration:
            raise made_fewer(0, own.received, own.delivered) from None
        own.received += 1
        return made

    def _next_new(self) -> tuple[Any, int, int]:
        own = self.progress.workers[0]
        while own.received < own.delivered:
            self._remade()
        made: tuple[Any, int, int] = next(self._batches)
        own.received += 1
        return made

    def _count(self, samples: int, nbytes: int) -> None:
        self._meter.sending(samples, nbytes)
        self._times.delivered(samples, nbytes)

    @property
    def closed(self) -> bool:
        """Whether ``next()`` is an error: the loader was closed, or iterated anew."""
        return bool(self._ended_because)

    def close(self, because: str = "") -> None:
        """Leaves the epoch. A later ``next()`` raises RuntimeError with ``because``, if one is given."""
        self._ended_because = because
        self.progress.running = False
        # It may be the dataset itself, or another thread, that closes its loader.
        if inspect.getgeneratorstate(self._batches) != inspect.GEN_RUNNING:
            self._batches.close()
            self._iterator.close()
            self._times.end()

    def __del__(self) -> None:
        if hasattr(self, "place"):
            self.progress.running = False
            self.close(self._ended_because)


def _with_own_generators(dataset: Any, context: Context) -> Iterator[Any]:
    """The elements of a dataset that appears to have random generators of its own."""
    own: States | None = None
    source: Iterator[Any] | None = None
    while True:
        users = generator_states()
        if own is None:
            seed_generators(process_seed(context))
        else:
            put_back(own)
        try:
            if source is None:
                source = elements(dataset, context)
            element = next(source)
        except StopIteration:
            return
        finally:
            own = generator_states()
            put_back(users)
        yield element


def _delivered(
    iterator: WorkerIterator, first: int, output: Output, pinning: Pinning | None, meter: Meter
) -> Generator[tuple[Any, int, int], None, None]:
    """The elements, the number of samples in each, and the bytes of its arrays."""
    for element in meter.elements(iterator):
        if iterator.number >= first:
            structure, arrays = nest.flatten(element, allow_pickle=True)
            copies = [_copied(array, output, pinning) for array in arrays]
            batch = nest.unflatten(structure, copies, allow_pickle=True)
            yield batch, meter.samples_in(element), sum(map(tenbin.array_nbytes, arrays))


def _copied(array: Any, output: Output, pinning: Pinning | None) -> Any:
    nbytes = tenbin.array_nbytes(array)
    pinned = None if pinning is None else pinning.memory(nbytes)
    memory = bytearray(nbytes) if pinned is None else pinned
    tenbin.write_array(memory if pinned is None else pinned.numpy(), 0, array)
    return view(memory, 0, output)
