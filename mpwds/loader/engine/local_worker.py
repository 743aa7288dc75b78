"""A worker that is a process of this machine, reached over a socket pair and shared memory."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mpwds import interrupts, nest, tenbin
from mpwds.errors import WorkerDied, WorkerTimeout
from mpwds.interrupts import interrupts_deferred
from mpwds.loader.engine.worker_handle import WorkerHandle
from mpwds.loader.launching.launchers import Launcher
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Channel, ChannelClosed, Message, take_descriptor
from mpwds.loader.processes import processes
from mpwds.loader.resume.progress import Position
from mpwds.sharedmem.arena import EventFd, Layout
from mpwds.sharedmem.lease import CopiedBatches, LeasedArena
from mpwds.stats.counters import StatusPage, stage_in
from mpwds.stats.snapshot import CounterSnapshot
from mpwds.tenbin.array import torch_dtypes
from mpwds.warn import warn

_EXIT_WAIT_S = 1.0

_HINTS = {
    "SIGKILL": "by somebody, or for want of memory (see dmesg): use fewer workers or smaller batches",
    "SIGSEGV": "native code that the dataset calls crashed: PYTHONFAULTHANDLER=1 shows where",
    "SIGBUS": "memory or a mapped file went away under it",
    "SIGABRT": "native code that the dataset calls aborted: see its message above",
}


class LocalWorker(WorkerHandle):
    pid = 0
    batch: Callable[[Message], Any]
    discard: Callable[[Message], None]

    def __init__(self, index: int, launcher: Launcher, receiver: BatchReceiver) -> None:
        self.index = index
        self.is_ready = False
        self._receiver = receiver
        self.batch, self.discard = receiver.batch, receiver.discard
        with contextlib.ExitStack() as workers_ends, contextlib.ExitStack() as ours:
            ours.callback(receiver.close)
            channel, workers_channel = socket.socketpair()
            ours.callback(channel.close)
            workers_ends.callback(workers_channel.close)
            self._channel = Channel(channel)
            self._handover, workers_handover = socket.socketpair()
            workers_ends.callback(workers_handover.close)
            ours.callback(self._handover.close)
            self._connected = True
            self._outgoing: deque[dict[str, Any]] = deque()  # a command and its tasks
            processes.close_on_fork(self._channel.fileno())
            ours.callback(self.disconnect)
            workers_lifeline, lifeline = os.pipe()
            workers_ends.callback(os.close, workers_lifeline)
            processes.close_on_fork(lifeline)
            ours.callback(os.close, lifeline)
            ours.callback(processes.keep_on_fork, lifeline)
            self._status = StatusPage()
            ours.callback(self._status.close)
            self._process = launcher.launch(
                index,
                processes.WorkerEnds(
                    channel=workers_channel.fileno(),
                    handover=workers_handover.fileno(),
                    bell=receiver.bell.fileno(),
                    lifeline=workers_lifeline,
                    status=self._status.descriptor,
                ),
            )
            self.pid = self._process.pid
            self._ours = ours.pop_all()

    def start(self, epoch: int, positions: Mapping[int, Position], **place: Any) -> None:
        self.generation += 1
        streams = [[stream, *vars(position).values()] for stream, position in positions.items()]
        command = {"kind": protocol.START, "epoch": epoch, "generation": self.generation, "streams": streams}
        self._replace_command({**command, **place})

    def stop(self) -> None:
        if self._connected:
            self._replace_command({"kind": protocol.STOP, "generation": self.generation})

    def give(self, task: bytes) -> None:
        self._outgoing.append({"kind": protocol.TASK, "generation": self.generation, "index": task})
        self.flush()

    def flush(self) -> None:
        try:
            self._channel.flush()
            while self._outgoing and self._channel.try_send(self._outgoing[0]):
                self._outgoing.popleft()
            self.unsent = bool(self._outgoing) or self._channel.unsent
        except ChannelClosed:
            self.unsent = False  # receive() returns what the worker still sent, then reports its death

    def register(self, poller: select.poll, *, receives: bool) -> None:
        events = select.POLLOUT if self.unsent else 0
        if receives:
            events |= select.POLLIN
            poller.register(self._process, select.POLLIN)
        poller.register(self._channel, events)

    def receive(self) -> Message | None:
        if interrupts.pending:
            interrupts.raise_deferred()
        if self.unsent:
            self.flush()
        while True:
            try:
                message = self._channel.receive()
                if message is None:
                    if not self._process.wait(0):
                        if self._receiver.arena is not None:
                            self._receiver.arena.reclaim()
                        return None
                    # What it sent just before its end may have come after the look above.
                    message = self._channel.receive()
            except ChannelClosed:
                message = None
            if message is None:
                raise self._died()
            kind = message.fields["kind"]
            if kind == protocol.READY:
                self.is_ready = True
                if self.awaits_ready or self.generation == protocol.BEFORE_ANY:
                    self.awaits_ready = False
                    return message
            elif kind == protocol.SEGMENT:
                with interrupts_deferred():
                    self._receiver.map_segment(message, take_descriptor(self._handover))
            elif message.fields["generation"] in (self.generation, protocol.BEFORE_ANY):
                return message
            elif kind == protocol.ERROR:
                warn(
                    f"an epoch that was left early failed in worker {self.index} after that: "
                    f"{message.fields['summary']}"
                )
            else:
                self._receiver.discard(message)

    @property
    def arena(self) -> LeasedArena | None:
        return self._receiver.arena

    def snapshot(self) -> CounterSnapshot:
        return self._status.counters.read(self.pid)

    def timed_out(self, timeout_s: float) -> WorkerTimeout:
        what, slow = "delivered nothing for", "a batch"
        if self.generation == protocol.BEFORE_ANY:
            what, slow = "was not ready within", "starting and unpickling the dataset"
        stack = self._status.stack(self.pid)
        stage = stage_in(stack)
        where = f", in stage {stage}" if stage else ""
        return WorkerTimeout(
            f"worker {self.index} (pid {self.pid}) {what} {timeout_s:g} s"
            f"{where}{self._last_shard()}: raise timeout= if {slow} may take that long, or see where it "
            f"stands:\n{stack or '(it gave no stack: it may be stopped)'}",
            worker=self.index,
            pid=self.pid,
        )

    def disconnect(self) -> None:
        if self._connected:
            self._connected = False
            processes.keep_on_fork(self._channel.fileno())
            self._channel.close()

    def wait(self, timeout_s: float) -> bool:
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        self._process.kill()

    def release(self) -> None:
        self._ours.close()  # with them the lifeline, which kills a process that still runs

    def _replace_command(self, command: dict[str, Any]) -> None:
        self._outgoing = deque([command])
        self.flush()

    def _died(self) -> WorkerDied:
        self._process.wait(_EXIT_WAIT_S)
        code = self._process.exitcode
        if code is None:
            how = "is gone, or closed its channel"
            hint = "something else here reaps child processes, or the dataset closes descriptors not its own"
        elif code < 0:
            name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
            how = f"was killed by {name}"
            hint = _HINTS.get(name, "see the system's log")
        else:
            how = f"exited with status {code}"
            hint = "see its message above, if there is one; a dataset must raise an exception, not call exit"
        hint = self._process.hint or hint
        return WorkerDied(
            f"worker {self.index} (pid {self.pid}) {how} before its epoch was done"
            f"{self._last_shard()}: {hint}",
            worker=self.index,
            pid=self.pid,
            exitcode=code,
        )

    def _last_shard(self) -> str:
        shard = self.snapshot().shard
        return f", while it read {shard}" if shard else ""


Output = Literal["torch", "numpy"]


@dataclass
class BatchReceiver:
    """Turns one worker's messages into batches.

    The consumer may hold ``keep`` blocks at once. Further batches are copied, so that the worker always has a
    block to write to. The first one brings a warning, unless it is a single sample: those are for looking at.
    """

    bell: EventFd
    output: Output
    keep: int
    copies: CopiedBatches
    warn: bool = True
    arena: LeasedArena | None = field(default=None, init=False)

    def map_segment(self, message: Message, descriptor: int) -> None:
        """Maps a new segment; views of the one before stay valid."""
        layout = Layout(message.fields["blocks"], message.fields["block_nbytes"])
        try:
            self.arena = LeasedArena(layout, descriptor, self.bell, self.copies.pinning)
        finally:
            os.close(descriptor)

    def batch(self, message: Message) -> Any:
        fields, buffer = message.fields, self.buffer(message)
        if "kinds" not in fields:
            return batch_of(fields, buffer, self.output, allow_pickle=True)
        # Imported before unflatten looks up its class.
        from mpwds.loader.messages.out_of_band import put_together

        kinds = zip(fields["offsets"], fields["kinds"], strict=True)
        arrays = [view_as_sent(buffer, offset, kind) for offset, kind in kinds]
        batch = nest.unflatten(fields["structure"], arrays, allow_pickle=True)
        return put_together(batch) if fields["apart"] else batch

    def discard(self, message: Message) -> None:
        block = message.fields.get("block")
        if block is not None and self.arena is not None:
            self.arena.discard(block)

    def close(self) -> None:
        """Closes the segment, and the bell unless a batch may still ring it."""
        arena, self.arena = self.arena, None
        if arena is None or arena.leased == 0:
            self.bell.close()

    def buffer(self, message: Message) -> Any:
        """The memory that a batch lies in: a leased block, or private memory."""
        block, arena, pinning = message.fields.get("block"), self.arena, self.copies.pinning
        if block is None:
            pinned = pinning.copy(message.payload) if pinning and message.payload else None
            return bytearray(message.payload) if pinned is None else pinned
        assert arena is not None  # the worker announces a segment before the first batch in it
        if pinning is not None:
            arena.reclaim()
        if arena.leased < self.keep:
            return arena.lease(block)
        if self.warn and self.copies.made == 0 and message.fields["samples"] > 1:
            warn(
                f"more than {self.keep} batches of one worker are kept, so further ones are copied out of "
                "shared memory: raise prefetch to keep more of them there, or drop batches sooner"
            )
        copy = self.copies.copy(arena.peek(block)[: message.fields["nbytes"]])
        arena.discard(block)
        return copy


def batch_of(fields: dict[str, Any], buffer: Any, output: Output, *, allow_pickle: bool) -> Any:
    arrays = views(buffer, fields["offsets"], output)
    return nest.unflatten(fields["structure"], arrays, allow_pickle=allow_pickle)


def view_as_sent(buffer: Any, offset: int, kind: int) -> Any:
    (array,) = views(buffer, [offset], "numpy" if kind == protocol.ARRAY else "torch")
    return array.requires_grad_() if kind == protocol.TENSOR_WITH_GRADIENT else array


def views(memory: Any, offsets: Sequence[int], output: Output) -> list[Any]:
    """The arrays that are encoded at offsets of a buffer, or of a tensor of bytes."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(memory, torch.Tensor):
        return [tenbin.view_array(memory, tenbin.parse_array(memory, offset), output) for offset in offsets]
    return [_view_of_tensor(memory, offset, output) for offset in offsets]


def _view_of_tensor(memory: Any, offset: int, output: Output) -> Any:
    # Torch's own views tell its allocator of pinned memory on which streams they are used.
    written = memory.numpy()
    header = tenbin.parse_array(written, offset)
    dtype = torch_dtypes()[1].get(header.code) if output == "torch" else None
    if dtype is None or not header.nbytes:
        return tenbin.view_array(written, header, output)
    start = header.data_offset
    return memory[start : start + header.nbytes].view(dtype).view(header.shape)
