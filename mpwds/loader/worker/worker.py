"""The worker process: waits for an epoch to start, iterates its dataset, sends what comes."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from mpwds.loader.dataloader.fetching import FetchingSetup
from mpwds.loader.dataloader.task_worker import TaskWorker
from mpwds.loader.engine import failures, protocol
from mpwds.loader.engine.channel import Channel, ChannelClosed
from mpwds.loader.processes import lifeline
from mpwds.loader.processes import setup as worker_setup
from mpwds.loader.processes.processes import WorkerEnds
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.resume.progress import Position
from mpwds.loader.worker import allocation, torch_worker
from mpwds.loader.worker.commands import Commands
from mpwds.loader.worker.counters import WRITING_BATCHES
from mpwds.loader.worker.elements import process_seed
from mpwds.loader.worker.meter import Meter
from mpwds.loader.worker.sending import BatchSender, EpochStopped
from mpwds.loader.worker.status import STACK_SIGNAL, StatusPage
from mpwds.loader.worker.worker_iterator import WorkerIterator
from mpwds.pipeline.context import Context
from mpwds.pipeline.notes import add_note
from mpwds.pipeline.randomness import seed_generators, seed_late_imports
from mpwds.pipeline.stream import Description
from mpwds.sharedmem.bell import Bell

_STOP_CHECK_S = 0.005


def main(index: int, setup: int, *ends: int) -> None:
    """Entry of a spawned worker: everything it gets is in the descriptors it is called with."""
    for descriptor in (setup, *ends):
        os.set_inheritable(descriptor, False)

    def read() -> WorkerSetup:
        gc.disable()  # what is imported stays: looking through it again and again is an eighth of the time
        try:
            return worker_setup.read(setup)
        finally:
            gc.enable()

    serve(index, read, WorkerEnds(*ends))


def serve(index: int, read_setup: Callable[[], WorkerSetup], ends: WorkerEnds) -> None:
    """Runs worker ``index`` until the trainer closes its channel.

    Args:
        index: The worker's index.
        read_setup: Gives the setup; a dataset that cannot be unpickled here fails in this call.
        ends: The worker's descriptors, taken over.
    """
    _leave_the_trainers_signals()
    allocation.keep_freed_memory()
    channel = Channel(socket.socket(fileno=ends.channel))
    handover = socket.socket(fileno=ends.handover)
    with contextlib.closing(channel), handover, contextlib.suppress(ChannelClosed):
        try:
            lifeline.hold(ends.lifeline)
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
        makes_batches = isinstance(setup, FetchingSetup) and setup.batches
        meter = Meter(status.counters, None if makes_batches else setup.dataset)
        meter.writes_each = isinstance(setup, FetchingSetup)
        sender = BatchSender(channel, handover, commands, Bell(ends.bell), setup.blocks, meter)
        _tell_dataset_its_place(index, setup)
        if isinstance(setup, FetchingSetup):
            sender.arrays_as_they_are = True
            TaskWorker(index, setup, channel, commands, sender, status, meter).run()
        else:
            Worker(index, setup, channel, commands, sender, status, meter).run()


class Worker:
    """Iterates the dataset of worker ``index`` and sends its elements.

    Args:
        index: The worker's index.
        setup: The dataset, and what all workers of the loader share.
        channel: To the trainer.
        commands: From the trainer.
        sender: Sends batches to it.
        status: Says which shard is read.
    """

    def __init__(
        self,
        index: int,
        setup: WorkerSetup,
        channel: Channel,
        commands: Commands,
        sender: BatchSender,
        status: StatusPage,
        meter: Meter,
    ) -> None:
        self._index = index
        self._setup = setup
        self._channel = channel
        self._commands = commands
        self._sender = sender
        self._status = status
        self._meter = meter

    def run(self) -> None:
        """Runs epochs until the trainer closes the channel, which raises ``ChannelClosed``."""
        while True:
            self._run_epoch(self._commands.wait_for_start())

    def _run_epoch(self, start: dict[str, Any]) -> None:
        epoch, generation = start["epoch"], start["generation"]
        context = Context(
            epoch=epoch,
            seed=self._setup.seed,
            rank=self._setup.rank,
            world_size=self._setup.world_size,
            worker=self._index,
            workers=self._setup.workers,
            owns_process=True,
            deferred=True,
            on_shard=self._status.write_shard,
            watch=self._meter.watch,
        )
        seed = process_seed(context)
        torch_worker.announce(self._index, self._setup.workers, seed, self._setup.dataset)
        seed_late_imports()
        seed_generators(seed)
        end: dict[str, Any] = {"kind": protocol.END, "generation": generation}
        try:
            position = Position(start["first"], start["state"], start["at"])
            with self._meter.epoch():
                end["sent"] = self._send_elements(context, generation, position)
        except ChannelClosed:
            raise
        except SystemExit:
            raise
        except BaseException as error:
            end.update(kind=protocol.ERROR, **failures.describe(error))
        self._channel.send(end)

    def _send_elements(self, context: Context, generation: int, position: Position) -> int:
        """Sends the elements of one epoch from a position on.

        Returns:
            Elements up to the end, those before the position included; or up to ``stop``.
        """
        iterator = WorkerIterator(self._setup.dataset, context, position)
        sent = position.first
        checked = time.monotonic()
        try:
            for element in self._meter.elements(iterator):
                now = time.monotonic()
                if now - checked > _STOP_CHECK_S:
                    if self._commands.stopped(generation):
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
            self._sender.send(element, generation, sequence, state)
        except (EpochStopped, ChannelClosed):
            raise
        except Exception as error:
            place = Description.of_sample(element, Description(f"element {sequence}"))
            add_note(error, f"in {WRITING_BATCHES}, on {place} that worker {self._index} made")
            raise


def _tell_dataset_its_place(index: int, setup: WorkerSetup) -> None:
    """Sets ``sys.argv`` and the variables in which datasets look for their place."""
    sys.argv = list(setup.argv)
    os.environ.update(
        RANK=str(setup.rank),
        WORLD_SIZE=str(setup.world_size),
        WORKER=str(index),
        NUM_WORKERS=str(setup.workers),
    )


def _leave_the_trainers_signals() -> None:
    """Ctrl-C is the trainer's to decide on. What else it does on signals, a fork of it must not do too."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, STACK_SIGNAL})
