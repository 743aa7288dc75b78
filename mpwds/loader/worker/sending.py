"""The worker's end of the channel: reads the trainer's commands, and sends batches."""

from __future__ import annotations

import select
import socket
from collections import deque
from dataclasses import dataclass
from typing import Any

from mpwds import nest, tenbin
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Channel, give_descriptor
from mpwds.sharedmem.arena import Arena, Block, EventFd, Layout
from mpwds.stats.profiler import StageProfiler

_GAP = 32
"""Bytes before each tenbin array. Encoded arrays are 32 bytes more than a multiple of 64 long, and their data
starts 32 bytes past one, so all data is aligned to 64 bytes."""


class EpochStopped(Exception):
    """The trainer has stopped this epoch."""


class Commands:
    """Reads the trainer's commands; all methods raise ``ChannelClosed`` when the worker must end.

    Of ``start`` and ``stop`` only the newest counts. Tasks come in order; those of other epochs are dropped.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._start: dict[str, Any] | None = None
        self._stopped = 0
        self._tasks: deque[dict[str, Any]] = deque()
        self._arrival = select.poll()
        self._arrival.register(channel, select.POLLIN)

    def wait_for_start(self) -> dict[str, Any]:
        self._read_all()
        while self._start is None:
            self._arrival.poll()
            self._read_all()
        start, self._start = self._start, None
        return start

    def wait_for_task(self, generation: int) -> bytes | None:
        """Waits for the next task of the running epoch, pickled; ``None`` if the epoch is stopped."""
        while not self.stopped(generation):
            while self._tasks:
                task = self._tasks.popleft()
                if task["generation"] == generation:
                    index: bytes = task["index"]
                    return index
            with self._channel.waiting():
                self._arrival.poll()
        return None

    def stopped(self, generation: int) -> bool:
        """True if the running epoch was stopped; never waits."""
        self._read_all()
        return self._start is not None or self._stopped >= generation

    def _read_all(self) -> None:
        while (message := self._channel.receive()) is not None:
            fields = message.fields
            if fields["kind"] == protocol.TASK:
                self._tasks.append(fields)
            elif fields["kind"] == protocol.START:
                self._start = fields
            else:
                self._start = None
                self._stopped = fields["generation"]


@dataclass(eq=False)
class BatchSender:
    """Sends batches, copying each array (or the rows of one not stacked yet) once, into its place in a block.

    Attributes:
        arrays_as_they_are: Tell the trainer which arrays are tensors, and pickle objects with their arrays
            out of band. Otherwise the trainer turns all arrays into its ``output``.
        allow_pickle: Pickle objects that ``nest`` does not know.
    """

    channel: Channel
    handover: socket.socket
    commands: Commands
    bell: EventFd
    blocks: int
    meter: StageProfiler
    arrays_as_they_are: bool = False
    allow_pickle: bool = True

    def __post_init__(self) -> None:
        self.channel.waiting = self.meter.waiting
        self._arena = Arena(self.blocks, self._announce)
        self._wake = select.poll()
        self._wake.register(self.bell, select.POLLIN)
        self._wake.register(self.channel, select.POLLIN)

    def send(
        self,
        batch: Any,
        about: dict[str, Any],
        state: bytes | str | None = None,
        samples: int | None = None,
    ) -> None:
        """Sends a batch, with fields about it and the state after it; waits while all blocks are in use.

        Raises ``EpochStopped`` if the trainer stops the epoch meanwhile. The meter counts samples by default.
        """
        fields: dict[str, Any] = {"kind": protocol.BATCH, **about}
        if state is not None:
            fields["state"] = state
        if self.arrays_as_they_are:
            from mpwds.loader.messages.out_of_band import kinds, take_apart

            apart = take_apart(batch)
            fields["apart"] = apart is not batch
            fields["structure"], arrays = nest.flatten(apart, allow_pickle=True)
            fields["kinds"] = kinds(arrays)
        else:
            fields["structure"], arrays = nest.flatten(batch, allow_pickle=self.allow_pickle)
        offsets, end = [], 0
        for array in arrays:
            offsets.append(end + _GAP)
            end += _GAP + tenbin.array_nbytes(array)
        fields["offsets"] = offsets
        fields["samples"] = int(self.meter.samples_in(batch) if samples is None else samples)
        fields["nbytes"] = end
        block = None if end <= protocol.INLINE_NBYTES else self._wait_for_block(end, about["generation"])
        payload = bytearray(end if block is None else 0)
        try:
            memory = payload if block is None else block.memory
            for offset, array in zip(offsets, arrays, strict=True):
                tenbin.write_array(memory, offset, array)
            if block is not None:
                fields["block"] = block.number
            self.meter.sending(fields["samples"], end)
            self.channel.send(fields, payload)
        except BaseException:
            if block is not None:
                self._arena.release(block)
            raise

    def _wait_for_block(self, nbytes: int, generation: int) -> Block:
        while True:
            self.bell.clear()
            block = self._arena.acquire(nbytes)
            if block is not None:
                return block
            with self.meter.waiting():
                self._wake.poll()
            if self.commands.stopped(generation):
                raise EpochStopped

    def _announce(self, layout: Layout, descriptor: int) -> None:
        fields = {"kind": protocol.SEGMENT, "blocks": layout.blocks, "block_nbytes": layout.block_nbytes}
        give_descriptor(self.handover, descriptor)
        self.channel.send(fields)
