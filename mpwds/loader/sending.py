"""Sending batches from a worker: into a block of its arena, or whole in the message if they are small."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from typing import Any

from mpwds import nest, tenbin
from mpwds.loader import handover, protocol
from mpwds.loader.arrays_as_sent import kinds
from mpwds.loader.channel import Channel
from mpwds.loader.commands import Commands
from mpwds.loader.meter import Meter
from mpwds.loader.objects_apart import take_apart
from mpwds.loader.room import GAP, BlockRoom, columns_nbytes, stack_of
from mpwds.pipeline.collation.rows_in_place import Form
from mpwds.sharedmem.arena import Arena, Block, Layout
from mpwds.sharedmem.bell import Bell

_BESIDE_NBYTES = 64 << 10
"""What a batch that has columns in a room may have beside them, until one has more."""


class EpochStopped(Exception):
    """The trainer wants no more of this epoch."""


class BatchSender:
    """Writes each batch once: from the dataset's arrays, or from rows not collated yet, into its place.

    Args:
        channel: To the trainer.
        handover_socket: To the trainer, for descriptors.
        commands: From the trainer.
        bell: Rung by the trainer when a block is free again.
        blocks: Number of blocks of the arena.
        meter: Counts what is sent, and how long that waits.

    Attributes:
        arrays_as_they_are: Tell the trainer which arrays are tensors, and send objects of any class with
            their arrays apart. Otherwise the trainer makes of all arrays what its ``output`` says.
    """

    def __init__(
        self,
        channel: Channel,
        handover_socket: socket.socket,
        commands: Commands,
        bell: Bell,
        blocks: int,
        meter: Meter,
    ) -> None:
        self._channel = channel
        self._handover = handover_socket
        self._commands = commands
        self._bell = bell
        self._meter = meter
        channel.waiting = meter.waiting
        self._arena = Arena(blocks, self._announce)
        self._room: BlockRoom | None = None
        self._beside_nbytes = _BESIDE_NBYTES
        self.arrays_as_they_are = False
        self._wake = select.poll()
        self._wake.register(bell, select.POLLIN)
        self._wake.register(commands, select.POLLIN)

    def send(
        self,
        batch: Any,
        generation: int,
        sequence: int,
        more: dict[str, Any] | None = None,
        samples: int | None = None,
    ) -> None:
        """Sends one batch; waits while all blocks are in use.

        Args:
            batch: The batch.
            generation: Its epoch's.
            sequence: Its number.
            more: Further fields of the message.
            samples: Samples in it, if that is known; its form tells otherwise.

        Raises:
            EpochStopped: The trainer wants no more of this epoch.
            ChannelClosed: The trainer is gone.
            SharedMemoryError: There is no memory for the batch.
        """
        fields: dict[str, Any] = {"kind": protocol.BATCH, "generation": generation, "sequence": sequence}
        if more is not None:
            fields.update(more)
        if self.arrays_as_they_are:
            apart = take_apart(batch)
            fields["apart"] = apart is not batch
            fields["structure"], arrays = nest.flatten(apart, allow_pickle=True)
            fields["kinds"] = kinds(arrays)
        else:
            fields["structure"], arrays = nest.flatten(batch, allow_pickle=True)
        block, offsets, end = self._begun(arrays)
        fields["offsets"] = offsets
        fields["samples"] = self._meter.samples_in(batch) if samples is None else samples
        fields["nbytes"] = end
        if block is None and end <= protocol.INLINE_NBYTES:
            payload = bytearray(end)
            for offset, array in zip(offsets, arrays, strict=True):
                tenbin.write_array(payload, offset, array)
            self._meter.sending(fields["samples"], end)
            self._channel.send(fields, payload)
            return
        if block is None:
            block = self._wait_for_block(end, generation)
        try:
            for offset, array in zip(offsets, arrays, strict=True):
                tenbin.write_array(block.memory, offset, array)
            fields["block"] = block.number
            self._meter.sending(fields["samples"], end)
            self._channel.send(fields)
        except BaseException:
            self._arena.release(block)
            raise

    def find_room(self, forms: Sequence[Form]) -> BlockRoom | None:
        """Room for columns of a batch that is being gathered, if there is some: ``Context.find_room``."""
        if self._room is None:
            least = columns_nbytes(forms)
            block = self._arena.acquire_early(least, least + self._beside_nbytes)
            if block is not None:
                self._room = BlockRoom(block, forms, self._take_back)
                return self._room
        return None

    def end_epoch(self) -> None:
        """No batch comes any more of those that were begun."""
        if self._room is not None:
            self._room.give_up()

    def _take_back(self, room: BlockRoom) -> None:
        self._room = None
        self._arena.release(room.block)

    def _begun(self, arrays: Sequence[tenbin.Array]) -> tuple[Block | None, list[int], int]:
        """The block that holds rows of the batch already, if there is one; where its arrays go and end."""
        room = self._room
        if room is not None:
            offsets, end = room.offsets(arrays)
            if offsets and end <= room.block.memory.nbytes:
                self._room, room.given_up = None, True
                return room.block, offsets, end
            self._beside_nbytes = max(self._beside_nbytes, end - room.columns_nbytes)
            for array in arrays:
                stack = stack_of(array)
                if stack is not None:
                    stack.make()  # the block may be the next to be written into
            room.give_up()
        offsets, end = [], 0
        for array in arrays:
            offsets.append(end + GAP)
            end += GAP + tenbin.array_nbytes(array)
        return None, offsets, end

    def _wait_for_block(self, nbytes: int, generation: int) -> Block:
        while True:
            self._bell.clear()
            block = self._arena.acquire(nbytes)
            if block is not None:
                return block
            with self._meter.waiting():
                self._wake.poll()
            if self._commands.stopped(generation):
                raise EpochStopped

    def _announce(self, layout: Layout, descriptor: int) -> None:
        fields = {"kind": protocol.SEGMENT, "blocks": layout.blocks, "block_nbytes": layout.block_nbytes}
        handover.give(self._handover, descriptor)
        self._channel.send(fields)
