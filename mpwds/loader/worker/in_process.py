"""A loader without workers: the same batches, made in the process that trains."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mpwds import nest, tenbin
from mpwds.loader.engine.epoch import Iteration
from mpwds.loader.engine.receiving import Output, view
from mpwds.loader.resume.progress import EpochProgress, made_fewer
from mpwds.loader.worker.counters import Counters
from mpwds.loader.worker.elements import process_seed
from mpwds.loader.worker.meter import Meter
from mpwds.loader.worker.worker import WorkerIterator
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.randomness import States, generator_states, restore_rng, seed_generators
from mpwds.sharedmem.pinning import Pinning
from mpwds.stats.collector import ConsumerTimer
from mpwds.stats.snapshot import CounterSnapshot


class InProcess:
    """What a loader without workers keeps between epochs."""

    def __init__(self, dataset: Any, output: Output, pinning: Pinning | None) -> None:
        self.dataset = dataset
        self.output = output
        self.pinning = pinning
        self._counters = Counters()
        self.meter = Meter(self._counters, dataset, counts_cpu=False)

    def snapshots(self) -> dict[int, CounterSnapshot]:
        return {0: self._counters.read(os.getpid())}


class LocalIterator(Iteration):
    """One epoch of a dataset, as a single worker would deliver it, with private and writable arrays.

    The dataset draws the random numbers that it would draw in a worker, and those of the program around it
    are left alone.
    """

    def __init__(
        self, owner: object, progress: EpochProgress, times: ConsumerTimer, local: InProcess, context: Context
    ) -> None:
        super().__init__(owner, progress, times)
        self._meter, self._output, self._pinning = local.meter, local.output, local.pinning
        context = replace(context, worker=0, workers=1, owns_process=False, watch=self._meter.watch)
        around = None if isinstance(local.dataset, DataPipeline) else _with_own_generators
        position = progress.positions()[0]
        self._first = position.first
        self._iterator = WorkerIterator(local.dataset, context, position, around=around)
        self._elements = self._meter.elements(self._iterator)
        self._own = progress.workers[0]
        progress.running = True

    def _next(self) -> Any:
        if self.closed:
            raise RuntimeError(self.closed)
        progress, own = self.progress, self._own
        self._times.asked()
        try:
            with self._meter.active():
                while own.received < own.delivered:
                    self._made_again()
                element = self._made()
        except BaseException as end:
            if isinstance(end, StopIteration) and progress.running:
                progress.finish()
            progress.running = False
            self._elements.close()
            self._times.end()
            raise
        self.place = (0, own.received - 1)
        progress.count(0, 0, self._iterator.state(time.monotonic()))
        return self._counted(*element)

    def remake(self, worker: int) -> tuple[int, Any]:
        self._times.asked()
        with self._meter.epoch():
            element = self._made_again()
        return self._own.received - 1, self._counted(*element)

    def _made_again(self) -> tuple[Any, int, int]:
        try:
            return self._made()
        except StopIteration:
            raise made_fewer(0, self._own.received, self._own.delivered) from None

    def _made(self) -> tuple[Any, int, int]:
        """The next element, the number of samples in it, and the bytes of its arrays."""
        element = next(self._elements)
        while self._iterator.number < self._first:
            element = next(self._elements)
        structure, arrays = nest.flatten(element, allow_pickle=True)
        copies = [self._copied(array) for array in arrays]
        batch = nest.unflatten(structure, copies, allow_pickle=True)
        self._own.received += 1
        return batch, self._meter.samples_in(element), sum(map(tenbin.array_nbytes, arrays))

    def _copied(self, array: Any) -> Any:
        nbytes = tenbin.array_nbytes(array)
        pinned = None if self._pinning is None else self._pinning.memory(nbytes)
        memory = bytearray(nbytes) if pinned is None else pinned
        tenbin.write_array(memory if pinned is None else pinned.numpy(), 0, array)
        return view(memory, 0, self._output)

    def _counted(self, batch: Any, samples: int, nbytes: int) -> Any:
        self._meter.sending(samples, nbytes)
        self._times.delivered(samples, nbytes)
        return batch

    def close(self, because: str = "") -> None:
        self.closed = because
        self.progress.running = False
        # It may be the dataset itself, or another thread, that closes its loader.
        if inspect.getgeneratorstate(self._elements) != inspect.GEN_RUNNING:
            self._elements.close()
            self._iterator.close()
            self._times.end()

    def __del__(self) -> None:
        if hasattr(self, "_own"):
            self.close(self.closed)


def _with_own_generators(source: Iterator[Any], context: Context) -> Iterator[Any]:
    """The elements of a dataset that appears to have random generators of its own."""
    own: States | None = None
    while True:
        users = generator_states()
        if own is None:
            seed_generators(process_seed(context))
        else:
            restore_rng(own)
        try:
            element = next(source)
        except StopIteration:
            return
        finally:
            own = generator_states()
            restore_rng(users)
        yield element
