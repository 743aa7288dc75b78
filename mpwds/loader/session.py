"""One loader's part in a process that works for several: what a worker does, in steps that never wait."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

from mpwds.loader import failures, process_state, protocol, surroundings
from mpwds.loader import setup as worker_setup
from mpwds.loader.channel import Channel, ChannelClosed
from mpwds.loader.commands import Commands
from mpwds.loader.meter import Meter
from mpwds.loader.process_state import ProcessState
from mpwds.loader.sending import BatchSender, EpochStopped, NoRoom
from mpwds.loader.setup import WorkerSetup
from mpwds.loader.status import StatusPage
from mpwds.sharedmem.arena import Block
from mpwds.sharedmem.bell import Bell


class SessionEnds(NamedTuple):
    """The descriptors of a session: the setup's segment, and the worker's ends (see ``loader.protocol``)."""

    setup: int
    channel: int
    handover: int
    bell: int
    status: int
    over: int


class Steps(Protocol):
    """What runs the epochs of a session."""

    def epoch(self, start: dict[str, Any]) -> Generator[bool, None, None]:
        """Runs an epoch; yields, after each step, whether it can go on at once."""
        ...


MakeSteps = Callable[[int, WorkerSetup, Channel, Commands, BatchSender, StatusPage, Meter], Steps]


class Session:
    """Worker ``index`` of one loader.

    Args:
        index: The worker's index.
        ends: Its descriptors, taken over.
        make_steps: Makes what runs its epochs.

    Attributes:
        state: What its dataset left in the process when another session's turn came.
    """

    def __init__(self, index: int, ends: SessionEnds, make_steps: MakeSteps) -> None:
        self.state: ProcessState | None = None
        self._channel = _Channel(socket.socket(fileno=ends.channel))
        self._handover = socket.socket(fileno=ends.handover)
        self._bell = Bell(ends.bell)
        self._over = Bell(ends.over)
        self._status = StatusPage(ends.status)
        self._setup = ends.setup
        self._waits = False
        self._meter: Meter | None = None
        self._pause = contextlib.ExitStack()
        self._life = self._live(index, make_steps)

    @property
    def can_go_on(self) -> bool:
        """Whether :meth:`turn` would get anywhere."""
        return not (self._waits or self._channel.unsent)

    def turn(self, until: float) -> bool:
        """Takes steps until it must wait, or ``time.monotonic()`` reaches ``until``.

        Returns:
            False if the session is over: :meth:`end` is to be called.
        """
        self._pause.close()
        try:
            while self.can_go_on:
                self._waits = not next(self._life)
                if time.monotonic() >= until:
                    break
        except (ChannelClosed, StopIteration):
            return False
        if self._meter is not None and self._meter.counting:
            self._pause.enter_context(self._meter.waiting())
        return True

    def watch(self, poller: select.poll) -> list[int]:
        """Registers what it may be waiting for.

        Returns:
            The descriptors; if one becomes ready, :meth:`wake` is to be called.
        """
        poller.register(self._channel, select.POLLOUT if self._channel.unsent else select.POLLIN)
        poller.register(self._bell, select.POLLIN)
        return [self._channel.fileno(), self._bell.fileno()]

    def wake(self, event: int) -> bool:
        """Has it look again whether it can go on.

        Args:
            event: What ``poll`` said of one of its descriptors.

        Returns:
            False if the session is over.
        """
        self._bell.hush()
        self._waits = False
        try:
            self._channel.flush()
        except ChannelClosed:
            return False
        return not event & (select.POLLHUP | select.POLLERR)

    def end(self) -> None:
        """Leaves the epoch and lets go of the dataset and of all descriptors."""
        self._pause.close()
        with contextlib.suppress(ChannelClosed):
            self._life.throw(ChannelClosed())
        del self._life
        if self._setup >= 0:
            os.close(self._setup)
        for closes in (self._channel, self._handover, self._bell, self._status):
            closes.close()

    def tell_of_end(self) -> None:
        """Lets the trainer know that it is over. If the process ends with it, that tells more."""
        self._over.ring()
        self._over.close()

    def _live(self, index: int, make_steps: MakeSteps) -> Generator[bool, None, None]:
        setup = self._read_setup()
        if setup is None:
            yield True
            return
        self._channel.send({"kind": protocol.READY})
        process_state.announce_place(index, setup)
        commands = Commands(self._channel)
        self._meter = meter = Meter(self._status.counters, setup.dataset, counts_cpu=False)
        sender = _Sender(self._channel, self._handover, commands, self._bell, setup.blocks, meter)
        steps = make_steps(index, setup, self._channel, commands, sender, self._status, meter)
        while True:
            start = commands.next_start()
            if start is None:
                yield False
            else:
                yield from steps.epoch(start)

    def _read_setup(self) -> WorkerSetup | None:
        try:
            return worker_setup.read(self._setup, surroundings.add)
        except Exception as error:
            fields = {"kind": protocol.ERROR, "generation": protocol.BEFORE_ANY}
            self._channel.send({**fields, **failures.describe(error)})
            return None
        finally:
            os.close(self._setup)
            self._setup = -1


class _Channel(Channel):
    """Keeps what does not fit, for ``flush``, in place of waiting."""

    def send(self, fields: dict[str, Any], payload: bytes | bytearray = b"") -> None:
        frame = self._frame(fields, payload)
        if self._rest:
            self._rest = memoryview(bytes(self._rest) + frame)
        else:
            self._rest = memoryview(frame)
        self.flush()


class _Sender(BatchSender):
    def _wait_for_block(self, nbytes: int, generation: int) -> Block:
        self._bell.hush()
        block = self._arena.acquire(nbytes)
        if block is not None:
            return block
        if self._commands.stopped(generation):
            raise EpochStopped
        raise NoRoom
