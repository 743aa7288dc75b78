"""A loader without workers: its one worker works in this process, when a batch is asked for."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any

from mpwds import nest, tenbin
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.local_worker import Output, views
from mpwds.loader.engine.worker_handle import WorkerHandle
from mpwds.loader.launching.launchers import Launcher
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Message
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.resume.progress import Position
from mpwds.loader.worker.elements import ENDED, CarriedStreams, carried_streams, sample_counter
from mpwds.pipeline.context import Context
from mpwds.sharedmem.lease import CopiedBatches
from mpwds.stats.counters import Counters
from mpwds.stats.profiler import StageProfiler
from mpwds.stats.snapshot import CounterSnapshot


class InProcessGroup(WorkerGroup):
    """The worker of a loader without worker processes. A fork of the process may use it, too."""

    in_process = True

    def __init__(self, make_setup: Callable[[], WorkerSetup], output: Output, copies: CopiedBatches) -> None:
        super().__init__(make_setup, lambda _: Launcher(), output, copies)

    @property
    def pids(self) -> list[int]:
        return []

    def is_owner(self) -> bool:
        return True

    def _end_outdated(self) -> None:
        """Does nothing: there is no copy of the dataset."""

    def _make_worker(self, index: int, launcher: Launcher) -> WorkerHandle:
        return InProcessWorker(self._make_setup(), self._output, self._copies)


class InProcessWorker(WorkerHandle):
    """Makes the batches that a single worker would deliver, with private and writable arrays.

    The dataset draws the random numbers that it would draw in a worker, and those of the program around it
    are left alone.
    """

    index = 0
    _idle = False  # a stream had no shard
    pid = property(lambda self: os.getpid())

    def __init__(self, setup: WorkerSetup, output: Output, copies: CopiedBatches) -> None:
        self._setup, self._output, self._pinning = setup, output, copies.pinning
        self._counters = Counters()
        self._meter = StageProfiler(self._counters, sample_counter(setup.dataset), counts_cpu=False)
        self._run: tuple[CarriedStreams, Generator[Any, None, None]] | None = None

    def start(self, epoch: int, positions: Mapping[int, Position]) -> None:
        self.disconnect()
        setup, here = self._setup, Context.current(epoch)
        setup.rank, setup.world_size = here.rank, here.world_size
        facts = {
            "run": here.run,
            "on_idle": partial(setattr, self, "_idle", True),
            "watch": self._meter.watch,
        }
        streams = carried_streams(setup, epoch, positions, **facts)
        self._run = streams, self._meter.elements(streams)

    def receive(self) -> Message:
        assert self._run is not None
        _, elements = self._run
        with self._meter.active():
            stream, iterator, element = next(
                each for each in elements if each[2] is ENDED or each[1].number >= each[1].position.first
            )
            fields: dict[str, Any] = {"stream": stream}
            if element is ENDED:
                fields |= {"kind": protocol.END, "sent": iterator.number + 1, "idle": self._idle}
            else:
                fields |= {"kind": protocol.BATCH, "sequence": iterator.number, **self._copied(element)}
                fields["repeats"] = iterator.endless is not None and iterator.endless.repeats
                self._meter.sending(fields["samples"], fields["nbytes"])
        if element is not ENDED:
            fields["state"] = iterator.state(time.monotonic())
        return Message(fields, memoryview(b""))

    def batch(self, message: Message) -> Any:
        return message.fields["batch"]

    def snapshot(self) -> CounterSnapshot:
        return self._counters.read(self.pid)

    def stop(self) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        # It may be the dataset itself, or another thread, that closes its loader.
        if self._run is not None and inspect.getgeneratorstate(self._run[1]) != inspect.GEN_RUNNING:
            iterator, elements = self._run
            elements.close()
            iterator.close()

    def _copied(self, element: Any) -> dict[str, Any]:
        structure, arrays = nest.flatten(element, allow_pickle=True)
        batch = nest.unflatten(structure, list(map(self._copy, arrays)), allow_pickle=True)
        nbytes = sum(map(tenbin.array_nbytes, arrays))
        return {"batch": batch, "samples": int(self._meter.samples_in(element)), "nbytes": nbytes}

    def _copy(self, array: Any) -> Any:
        nbytes = tenbin.array_nbytes(array)
        pinned = None if self._pinning is None else self._pinning.memory(nbytes)
        memory = bytearray(nbytes) if pinned is None else pinned
        tenbin.write_array(memory if pinned is None else pinned.numpy(), 0, array)
        (copy,) = views(memory, [0], self._output)
        return copy
