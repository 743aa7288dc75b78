"""A worker as the trainer sees it: its process and the trainer's ends of what connects the two."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from mpwds.errors import WorkerDied, WorkerTimeout
from mpwds.loader.engine import handover, protocol
from mpwds.loader.engine.channel import Channel, ChannelClosed, Message
from mpwds.loader.engine.receiving import BatchReceiver
from mpwds.loader.processes import lifeline as lifelines
from mpwds.loader.processes.launchers import Launcher
from mpwds.loader.processes.processes import WorkerEnds, interrupts_deferred
from mpwds.loader.resume.progress import START, Position
from mpwds.loader.worker import status
from mpwds.loader.worker.counters import Reading
from mpwds.sharedmem import interrupts
from mpwds.sharedmem.bell import Bell
from mpwds.warn import warn

_EXIT_WAIT_S = 1.0

_HINTS = {
    "SIGKILL": "out of memory, most likely (see the kernel's log): use fewer workers or smaller batches",
    "SIGSEGV": "native code that the dataset calls crashed: PYTHONFAULTHANDLER=1 shows where",
    "SIGBUS": "memory or a mapped file went away under it",
    "SIGABRT": "native code that the dataset calls gave up: see its message above",
    "SIGTERM": "someone asked it to end",
}


class RemoteWorker:
    """A running worker.

    Args:
        index: The worker's index.
        launcher: Starts its process.
        make_receiver: Makes the receiver of its batches, given the bell that wakes the worker.

    Attributes:
        index: The worker's index.
        process: Its process.
        restarts: Processes that were this worker before and died.
        is_ready: Whether it has told that it has its dataset.
    """

    def __init__(
        self, index: int, launcher: Launcher, make_receiver: Callable[[Bell], BatchReceiver]
    ) -> None:
        self.index = index
        self.restarts = 0
        self.is_ready = False
        bell = Bell()
        self._receiver = make_receiver(bell)
        with contextlib.ExitStack() as workers_ends, contextlib.ExitStack() as ours:
            ours.callback(self._receiver.close)
            channel, workers_channel = socket.socketpair()
            ours.callback(channel.close)
            workers_ends.callback(workers_channel.close)
            self._channel = Channel(channel)
            self._handover, workers_handover = socket.socketpair()
            workers_ends.callback(workers_handover.close)
            ours.callback(self._handover.close)
            self._connected = True
            self._command: dict[str, Any] | None = None
            self._tasks: deque[dict[str, Any]] = deque()
            self._listens = True
            lifelines.guard(self._channel.fileno())
            ours.callback(self.disconnect)
            workers_lifeline, lifeline = os.pipe()
            workers_ends.callback(os.close, workers_lifeline)
            lifelines.guard(lifeline)
            ours.callback(os.close, lifeline)
            ours.callback(lifelines.unguard, lifeline)
            self._status = status.StatusPage()
            ours.callback(self._status.close)
            self.process = launcher.launch(
                index,
                WorkerEnds(
                    channel=workers_channel.fileno(),
                    handover=workers_handover.fileno(),
                    bell=bell.fileno(),
                    lifeline=workers_lifeline,
                    status=self._status.descriptor,
                ),
            )
            self._ours = ours.pop_all()

    def fileno(self) -> int:
        """A descriptor that becomes readable when there is something to receive."""
        return self._channel.fileno()

    def start(self, epoch: int, generation: int, position: Position = START) -> None:
        """Tells the worker to begin an epoch. A worker that is gone is noticed when it is waited for."""
        command = {"kind": protocol.START, "epoch": epoch, "generation": generation, **position._asdict()}
        self._replace_command(command)

    def stop(self, generation: int) -> None:
        """Tells the worker to leave an epoch, unless it is closed already."""
        if self._connected:
            self._replace_command({"kind": protocol.STOP, "generation": generation})

    def give(self, index: bytes, generation: int) -> None:
        """Gives the worker a task of the epoch that it was started on last.

        Args:
            index: What to fetch, pickled.
            generation: The epoch's generation.
        """
        self._tasks.append({"kind": protocol.TASK, "generation": generation, "index": index})
        self.tell()

    @property
    def unheard(self) -> bool:
        """Whether a command or a task did not fit into the channel yet: :meth:`tell` is to be called."""
        return self._listens and (self._command is not None or bool(self._tasks) or self._channel.unsent)

    def tell(self) -> None:
        """Sends what the worker has not heard yet, as far as there is room: this must not wait for it."""
        try:
            self._channel.flush()
            if self._command is not None:
                if not self._channel.try_send(self._command):
                    return
                self._command = None
            while self._tasks and self._channel.try_send(self._tasks[0]):
                self._tasks.popleft()
        except ChannelClosed:
            self._listens = False  # what it still sent comes first; that it is gone shows at receive

    def receive(self, generation: int) -> Message | None:
        """The next message of a generation, or ``None`` if none has arrived; never waits.

        Segments are mapped and what belongs to older generations is discarded on the way.

        Raises:
            WorkerDied: The worker is gone, and everything it had sent has been received.
        """
        interrupts.raise_kept()
        if self.unheard:
            self.tell()
        while True:
            try:
                message = self._channel.receive()
            except ChannelClosed:
                raise self._died() from None
            if message is None:
                if not self.process.wait(0):
                    self._receiver.reclaim()
                    return None
                # What it sent just before its end may have come after the look above.
                message = self._last_words()
            kind = message.fields["kind"]
            if kind == protocol.READY:
                self.is_ready = True
            elif kind == protocol.SEGMENT:
                with interrupts_deferred():
                    self._receiver.map_segment(message, handover.take(self._handover))
            elif message.fields["generation"] in (generation, protocol.BEFORE_ANY):
                return message
            elif kind == protocol.ERROR:
                _warn_of_late_error(self.index, message.fields["summary"])
            else:
                self._receiver.discard(message)

    def batch(self, message: Message) -> Any:
        """The batch that a message carries."""
        return self._receiver.batch(message)

    def discard(self, message: Message) -> None:
        """Hands back the block of a batch that nobody wants."""
        self._receiver.discard(message)

    def receive_ready(self) -> Message | None:
        """Sets :attr:`is_ready` if the worker has told that it is; never waits.

        Returns:
            What it told instead: the error because of which it never will be.

        Raises:
            WorkerDied: The worker is gone.
        """
        if self.is_ready:
            return None
        try:
            message = self._channel.receive()
        except ChannelClosed:
            raise self._died() from None
        if message is None:
            if not self.process.wait(0):
                return None
            message = self._last_words()
        self.is_ready = message.fields["kind"] == protocol.READY
        return None if self.is_ready else message

    def stack(self) -> str:
        """Where the worker's main thread stands, innermost call first; empty if it does not tell."""
        return self._status.stack(self.process.pid)

    @property
    def unsettled(self) -> bool:
        """Whether it lacks blocks that nobody holds, because devices may still read them."""
        return self._receiver.unsettled

    def settle(self) -> None:
        """Waits until a device has read one of them; the next :meth:`receive` hands it back."""
        self._receiver.settle()

    def reading(self) -> Reading:
        """What the worker has counted; also after its death, until :meth:`release`."""
        return self._status.counters.read()

    def timed_out(
        self, timeout_s: float, what: str = "delivered nothing for", slow: str = "a batch"
    ) -> WorkerTimeout:
        """The error for a worker that let ``timeout_s`` seconds pass.

        Args:
            timeout_s: The seconds.
            what: What it did in that time.
            slow: What may take longer.
        """
        self.process.is_stuck = True
        stack = self.stack()
        stage = status.stage_in(stack)
        where = f", in stage {stage}" if stage else ""
        return WorkerTimeout(
            f"worker {self.index} (pid {self.process.pid}) {what} {timeout_s:g} s"
            f"{where}{self._last_shard()}: raise timeout= if {slow} may take that long, or see where it "
            f"stands:\n{stack or '(it gave no stack: it may be stopped)'}",
            worker=self.index,
            pid=self.process.pid,
        )

    def disconnect(self) -> None:
        """Closes the channel, which tells the worker to end; its process is still to be reaped."""
        if self._connected:
            self._connected = False
            lifelines.unguard(self._channel.fileno())
            self._channel.close()

    def release(self) -> None:
        """Closes the trainer's ends. The lifeline kills a process that still runs."""
        self._ours.close()

    def _replace_command(self, command: dict[str, Any]) -> None:
        """Puts a command in the place of all that the worker has not heard yet."""
        self._tasks.clear()
        self._command = command
        self.tell()

    def _last_words(self) -> Message:
        try:
            message = self._channel.receive()
        except ChannelClosed:
            message = None
        if message is None:
            raise self._died()
        return message

    def _died(self) -> WorkerDied:
        self.process.wait(_EXIT_WAIT_S)
        code = self.process.exitcode
        if code is None:
            how = "is gone, or closed its channel"
            hint = "something else here reaps child processes, or the dataset closes descriptors not its own"
        elif code < 0:
            how = f"was killed by {_signal_name(-code)}"
            hint = _HINTS.get(_signal_name(-code), "see the system's log")
        else:
            how = f"exited with status {code}"
            hint = "see its message above, if there is one; a dataset must raise an exception, not call exit"
        hint = self.process.hint or hint
        return WorkerDied(
            f"worker {self.index} (pid {self.process.pid}) {how} before its epoch was done"
            f"{self._last_shard()}: {hint}",
            worker=self.index,
            pid=self.process.pid,
            exitcode=code,
        )

    def _last_shard(self) -> str:
        shard = self._status.shard()
        return f", while it read {shard}" if shard else ""


def _warn_of_late_error(worker: int, summary: str) -> None:
    warn(f"an epoch that was left early failed in worker {worker} after that: {summary}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
