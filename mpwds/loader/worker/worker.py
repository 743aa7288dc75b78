"""The worker process: waits for an epoch to start, iterates its dataset, sends the elements and its state."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from mpwds.imports import after_import
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Channel, ChannelClosed
from mpwds.loader.processes import processes
from mpwds.loader.processes import setup as worker_setup
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.resume.progress import Position
from mpwds.loader.worker.elements import ENDED, carried_streams, process_seed, sample_counter
from mpwds.loader.worker.sending import BatchSender, Commands, EpochStopped
from mpwds.pipeline import context as pipeline_context
from mpwds.pipeline.context import Context
from mpwds.pipeline.error_context import add_note
from mpwds.pipeline.randomness import seed_generators, seed_late_imports
from mpwds.pipeline.stream import Description
from mpwds.sharedmem.arena import EventFd
from mpwds.stats.counters import STACK_SIGNAL, StatusPage
from mpwds.stats.profiler import StageProfiler
from mpwds.stats.snapshot import WRITING_BATCHES

_STOP_CHECK_S = 0.005
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_USERS_CHOICE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def main(index: int, setup: int, *ends: int) -> None:
    """Entry of a worker that is not a fork of the trainer; the arguments after ``index`` are descriptors."""
    for descriptor in (setup, *ends):
        os.set_inheritable(descriptor, False)

    def read() -> WorkerSetup:
        gc.disable()  # imported objects stay: collecting among them takes an eighth of the time
        try:
            return worker_setup.read(setup)
        finally:
            gc.enable()
            os.close(setup)

    serve(index, read, processes.WorkerEnds(*ends))


def serve(index: int, read_setup: Callable[[], WorkerSetup], ends: processes.WorkerEnds) -> None:
    """Runs worker ``index`` until the trainer closes its channel; takes over the descriptors in ``ends``."""
    processes.leave_signals_to_trainer()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {STACK_SIGNAL})
    keep_freed_memory()
    channel = Channel(socket.socket(fileno=ends.channel))
    handover = socket.socket(fileno=ends.handover)
    with contextlib.closing(channel), handover, contextlib.suppress(ChannelClosed):
        try:
            processes.die_with_parent(ends.lifeline)
            status = StatusPage(ends.status)
            status.answer_stack_requests()
            setup = read_setup()
        except Exception as error:
            head = {"kind": protocol.ERROR, "generation": protocol.BEFORE_ANY}
            channel.send({**head, **protocol.describe_error(error)})
            return
        channel.send({"kind": protocol.READY})
        commands = Commands(channel)
        meter = StageProfiler(status.counters, sample_counter(setup.dataset))
        sender = BatchSender(channel, handover, commands, EventFd(ends.bell), setup.blocks, meter)
        sender.arrays_as_they_are, sender.allow_pickle = setup.arrays_as_they_are, setup.allow_pickle
        export_place(index, setup)
        setup.serving_class()(index, setup, channel, commands, sender, status, meter).run()


def export_place(index: int, setup: WorkerSetup) -> None:
    """Sets the environment variables in which datasets look for their worker and rank."""
    place = {"WORKER": index, "NUM_WORKERS": setup.workers}
    place |= {"RANK": setup.rank, "WORLD_SIZE": setup.world_size}
    os.environ.update({name: str(number) for name, number in place.items()})


@dataclass
class Worker:
    """Iterates the dataset of worker ``index`` and sends its elements."""

    index: int
    setup: WorkerSetup
    channel: Channel
    commands: Commands
    sender: BatchSender
    status: StatusPage
    meter: StageProfiler
    idle: bool = False  # it had no shard in an epoch

    def run(self) -> None:
        """Runs epochs until the trainer closes the channel, which raises ``ChannelClosed``."""
        while True:
            self._run_epoch(self.commands.wait_for_start())

    def _run_epoch(self, start: dict[str, Any]) -> None:
        epoch, generation = start["epoch"], start["generation"]
        seed = process_seed(self._context(epoch))
        announce_to_torch(self.index, self.setup.workers, seed, self.setup.dataset)
        seed_late_imports()
        seed_generators(seed)
        try:
            positions = {stream: Position(*position) for stream, *position in start["streams"]}
            with self.meter.epoch():
                end = self._send_streams(epoch, generation, positions)
        except (ChannelClosed, SystemExit):
            raise
        except BaseException as error:
            end = {"kind": protocol.ERROR, **protocol.describe_error(error)}
        if end is not None:
            self.channel.send({**end, "generation": generation, "idle": self.idle})

    def _context(self, epoch: int) -> Context:
        return replace(self.setup.context(self.index, epoch), **self._facts())

    def _facts(self) -> dict[str, Any]:
        return {
            "owns_process": True,
            "on_shard": self.status.write_shard,
            "on_idle": partial(setattr, self, "idle", True),
            "watch": self.meter.watch,
        }

    def _send_streams(
        self, epoch: int, generation: int, positions: dict[int, Position]
    ) -> dict[str, Any] | None:
        """Sends the elements of streams from their positions on; returns the last end, if not stopped."""
        streams = carried_streams(self.setup, epoch, positions, deferred=True, **self._facts())
        # By default a worker has one stream, of its own number.
        named = {stream: {} if self.setup.streams is None else {"stream": stream} for stream in positions}
        checked = time.monotonic()
        end: dict[str, Any] | None = None
        with contextlib.closing(streams), contextlib.suppress(EpochStopped):
            for stream, iterator, element in self.meter.elements(streams):
                now = time.monotonic()
                if now - checked > _STOP_CHECK_S:
                    if self.commands.stopped(generation):
                        return None
                    checked = now
                if end is not None:
                    self.channel.send({**end, "generation": generation, "idle": self.idle})
                    end = None
                if element is ENDED:
                    end = {"kind": protocol.END, "sent": iterator.number + 1, **named[stream]}
                elif iterator.number >= iterator.position.first:
                    fields = {"generation": generation, "sequence": iterator.number, **named[stream]}
                    if iterator.endless is not None and iterator.endless.repeats:
                        fields["repeats"] = True
                    self._send(element, fields, iterator.state(now))
            return end
        return None

    def _send(self, element: Any, fields: dict[str, Any], state: bytes | str | None) -> None:
        try:
            self.sender.send(element, fields, state)
        except (EpochStopped, ChannelClosed):
            raise
        except Exception as error:
            place = Description.of_sample(element, Description(f"element {fields['sequence']}"))
            add_note(error, f"in {WRITING_BATCHES}, on {place} that worker {self.index} made")
            raise


def keep_freed_memory() -> bool:
    """Makes glibc keep up to 512 MB of freed memory, not 1 MB, unless the user has configured ``malloc``.

    A worker frees a batch's samples together and needs as much again for the next batch. If the memory goes
    back to the system in between, every page of it is cleared and mapped again: decoding and stacking 64 JPEG
    images of 224x224 then took 1.24 ms of processor time an image, and 1.03 with this.
    """
    configured = any(name in os.environ for name in _USERS_CHOICE)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if configured or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or mallopt is None:
        return False
    # Setting one of them ends glibc's own adjustment of both. 32 MB is the most that glibc takes: what is
    # larger is mapped and unmapped each time.
    return bool(mallopt(_M_MMAP_THRESHOLD, 32 << 20) and mallopt(_M_TRIM_THRESHOLD, 512 << 20))


def announce_to_torch(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """Makes torch's ``get_worker_info()`` answer for this worker, and torch use one thread, once imported."""

    def tell(holder: ModuleType) -> None:
        import torch

        info = vars(holder)["WorkerInfo"](id=worker, num_workers=workers, seed=seed, dataset=dataset)
        vars(holder)["_worker_info"] = info
        torch.set_num_threads(1)

    pipeline_context.announced = SimpleNamespace(id=worker, num_workers=workers, seed=seed)
    after_import("torch.utils.data._utils.worker", tell)
