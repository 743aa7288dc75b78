"""A loader without workers: its one worker works in this process, when a batch is asked for."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpwds import nest, tenbin
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.local_worker import Output, views
from mpwds.loader.engine.worker_handle import WorkerHandle
from mpwds.loader.launching.launchers import Launcher
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Message
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.resume.progress import Position
from mpwds.loader.worker.counters import Counters
from mpwds.loader.worker.elements import WorkerIterator, process_seed
from mpwds.loader.worker.profiler import StageProfiler
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.randomness import States, generator_states, restore_rng, seed_generators
from mpwds.stats.snapshot import CounterSnapshot

if TYPE_CHECKING:
    from mpwds.sharedmem.cuda import Pinning


class InProcessGroup(WorkerGroup):
    """The worker of a loader without worker processes. A fork of the process may use it, too."""

    in_process = True

    def __init__(self, dataset: Any, seed: int | None, output: Output, pinning: Pinning | None) -> None:
        super().__init__(lambda: WorkerSetup(dataset, 1, 1, seed=seed), lambda _: Launcher(), output)
        self._pinning = pinning

    @property
    def pids(self) -> list[int]:
        return []

    def is_owner(self) -> bool:
        return True

    def _end_outdated(self) -> None:
        """Does nothing: there is no copy of the dataset."""

    def _make_worker(self, index: int, launcher: Launcher) -> WorkerHandle:
        return InProcessWorker(self._make_setup(), self._output, self._pinning)


class InProcessWorker(WorkerHandle):
    """Makes the batches that a single worker would deliver, with private and writable arrays.

    The dataset draws the random numbers that it would draw in a worker, and those of the program around it
    are left alone.
    """

    index = 0
    pid = property(lambda self: os.getpid())

    def __init__(self, setup: WorkerSetup, output: Output, pinning: Pinning | None) -> None:
        self._setup, self._output, self._pinning = setup, output, pinning
        self._counters = Counters()
        self._meter = StageProfiler(self._counters, setup.dataset, counts_cpu=False)
        self._run: tuple[WorkerIterator, Generator[Any, None, None]] | None = None
        self._first = 0

    def start(self, epoch: int, generation: int, position: Position) -> None:
        self.disconnect()
        context = replace(
            Context.current(epoch),
            seed=self._setup.seed,
            worker=0,
            workers=1,
            owns_process=False,
            watch=self._meter.watch,
        )
        around = None if isinstance(self._setup.dataset, DataPipeline) else _with_own_generators
        iterator = WorkerIterator(self._setup.dataset, context, position, around=around)
        self._run = iterator, self._meter.elements(iterator)
        self._first = position.first

    def receive(self, generation: int) -> Message:
        assert self._run is not None
        iterator, elements = self._run
        fields: dict[str, Any] = {"kind": protocol.END, "generation": generation, "sent": self._first}
        with self._meter.active():
            for element in elements:
                if iterator.number >= self._first:
                    fields = {"kind": protocol.BATCH, "sequence": self._first, **self._copied(element)}
                    break
        if fields["kind"] == protocol.BATCH:
            self._first += 1
            fields["state"] = iterator.state(time.monotonic())
            self._meter.sending(fields["samples"], fields["nbytes"])
        return Message(fields, memoryview(b""))

    def batch(self, message: Message) -> Any:
        return message.fields["batch"]

    def snapshot(self) -> CounterSnapshot:
        return self._counters.read(self.pid)

    def stop(self, generation: int) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        # It may be the dataset itself, or another thread, that closes its loader.
        if self._run is not None and inspect.getgeneratorstate(self._run[1]) != inspect.GEN_RUNNING:
            iterator, elements = self._run
            elements.close()
            iterator.close()

    def _copied(self, element: Any) -> dict[str, Any]:
        """The batch, the number of samples in it, and the bytes of its arrays."""
        structure, arrays = nest.flatten(element, allow_pickle=True)
        batch = nest.unflatten(structure, list(map(self._copy, arrays)), allow_pickle=True)
        nbytes = sum(map(tenbin.array_nbytes, arrays))
        return {"batch": batch, "samples": self._meter.samples_in(element), "nbytes": nbytes}

    def _copy(self, array: Any) -> Any:
        nbytes = tenbin.array_nbytes(array)
        pinned = None if self._pinning is None else self._pinning.memory(nbytes)
        memory = bytearray(nbytes) if pinned is None else pinned
        tenbin.write_array(memory if pinned is None else pinned.numpy(), 0, array)
        (copy,) = views(memory, [0], self._output)
        return copy


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
