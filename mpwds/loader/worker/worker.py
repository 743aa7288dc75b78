"""The worker process: waits for an epoch to start, iterates its dataset, sends the elements."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpwds.loader.engine import failures, protocol
from mpwds.loader.engine.channel import Channel, ChannelClosed
from mpwds.loader.processes import processes
from mpwds.loader.processes import setup as worker_setup
from mpwds.loader.processes.processes import WorkerEnds
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.resume.progress import Position
from mpwds.loader.worker import startup
from mpwds.loader.worker.counters import WRITING_BATCHES
from mpwds.loader.worker.elements import process_seed
from mpwds.loader.worker.meter import Meter
from mpwds.loader.worker.sending import BatchSender, Commands, EpochStopped
from mpwds.loader.worker.status import StatusPage
from mpwds.loader.worker.worker_iterator import WorkerIterator
from mpwds.pipeline.context import Context
from mpwds.pipeline.notes import add_note
from mpwds.pipeline.randomness import seed_generators, seed_late_imports
from mpwds.pipeline.stream import Description
from mpwds.sharedmem.bell import Bell

_STOP_CHECK_S = 0.005


def main(index: int, setup: int, *ends: int) -> None:
    """Entry of a worker that is no fork of the trainer: all that it gets is in these descriptors."""
    for descriptor in (setup, *ends):
        os.set_inheritable(descriptor, False)

    def read() -> WorkerSetup:
        gc.disable()  # imported objects stay: collecting among them takes an eighth of the time
        try:
            return worker_setup.read(setup)
        finally:
            gc.enable()
            os.close(setup)

    serve(index, read, WorkerEnds(*ends))


def serve(index: int, read_setup: Callable[[], WorkerSetup], ends: WorkerEnds) -> None:
    """Runs worker ``index`` until the trainer closes its channel.

    ``read_setup`` unpickles the dataset here. The descriptors in ``ends`` are taken over.
    """
    startup.leave_trainers_signals()
    startup.keep_freed_memory()
    channel = Channel(socket.socket(fileno=ends.channel))
    handover = socket.socket(fileno=ends.handover)
    with contextlib.closing(channel), handover, contextlib.suppress(ChannelClosed):
        try:
            processes.hold_lifeline(ends.lifeline)
            status = StatusPage(ends.status)
            status.answer_stack_requests()
            setup = read_setup()
        except Exception as error:
            channel.send(
                {"kind": protocol.ERROR, "generation": protocol.BEFORE_ANY, **failures.describe(error)}
            )
            return
        channel.send({"kind": protocol.READY})
        commands = Commands(channel)
        meter = Meter(status.counters, setup.dataset)
        sender = BatchSender(channel, handover, commands, Bell(ends.bell), setup.blocks, meter)
        startup.tell_dataset_its_place(index, setup)
        setup.serving_class()(index, setup, channel, commands, sender, status, meter).run()


@dataclass
class Worker:
    """Iterates the dataset of worker ``index`` and sends its elements."""

    index: int
    setup: WorkerSetup
    channel: Channel
    commands: Commands
    sender: BatchSender
    status: StatusPage
    meter: Meter

    def run(self) -> None:
        """Runs epochs until the trainer closes the channel, which raises ``ChannelClosed``."""
        while True:
            self._run_epoch(self.commands.wait_for_start())

    def _run_epoch(self, start: dict[str, Any]) -> None:
        epoch, generation = start["epoch"], start["generation"]
        context = Context(
            epoch=epoch,
            seed=self.setup.seed,
            rank=self.setup.rank,
            world_size=self.setup.world_size,
            worker=self.index,
            workers=self.setup.workers,
            owns_process=True,
            deferred=True,
            on_shard=self.status.write_shard,
            watch=self.meter.watch,
        )
        seed = process_seed(context)
        startup.announce_to_torch(self.index, self.setup.workers, seed, self.setup.dataset)
        seed_late_imports()
        seed_generators(seed)
        end: dict[str, Any] = {"kind": protocol.END, "generation": generation}
        try:
            position = Position(start["first"], start["state"], start["at"])
            with self.meter.epoch():
                end["sent"] = self._send_elements(context, generation, position)
        except (ChannelClosed, SystemExit):
            raise
        except BaseException as error:
            end.update(kind=protocol.ERROR, **failures.describe(error))
        self.channel.send(end)

    def _send_elements(self, context: Context, generation: int, position: Position) -> int:
        """Sends the elements of one epoch from a position on.

        Returns:
            Elements up to the end, those before the position included; or up to ``stop``.
        """
        iterator = WorkerIterator(self.setup.dataset, context, position)
        sent = position.first
        checked = time.monotonic()
        try:
            for element in self.meter.elements(iterator):
                now = time.monotonic()
                if now - checked > _STOP_CHECK_S:
                    if self.commands.stopped(generation):
                        break
                    checked = now
                if iterator.number >= sent:
                    self._send(element, generation, sent, iterator.state(now))
                    sent += 1
        except EpochStopped:
            pass
        finally:
            iterator.close()
        return sent

    def _send(self, element: Any, generation: int, sequence: int, state: dict[str, Any] | None) -> None:
        try:
            self.sender.send(element, generation, sequence, state)
        except (EpochStopped, ChannelClosed):
            raise
        except Exception as error:
            place = Description.of_sample(element, Description(f"element {sequence}"))
            add_note(error, f"in {WRITING_BATCHES}, on {place} that worker {self.index} made")
            raise
