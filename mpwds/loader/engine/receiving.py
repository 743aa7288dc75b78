"""Turns a worker's messages into batches: views of its blocks, or private copies."""

from __future__ import annotations

import os
from typing import Any, Literal

from mpwds import nest
from mpwds.errors import MpwdsError
from mpwds.loader.engine.arrays import view, view_as_sent
from mpwds.loader.engine.channel import Message
from mpwds.sharedmem.arena import Layout
from mpwds.sharedmem.bell import Bell
from mpwds.sharedmem.lease import LeasedArena
from mpwds.sharedmem.pinning import Pinning
from mpwds.sharedmem.private import PrivateCopies
from mpwds.warn import warn

Output = Literal["torch", "numpy"]


class BatchReceiver:
    """Turns one worker's messages into batches.

    Args:
        bell: Rung for the worker when a block is released.
        output: What arrays become.
        keep: Blocks that the consumer may hold at once. Further batches are copied, so that the worker
            always has a block to write to.
        copies: Memory for those copies.
        warn: Warn about the first copy.
        pinning: Pins the memory of batches, if given.
    """

    def __init__(
        self,
        bell: Bell,
        output: Output,
        keep: int,
        copies: PrivateCopies,
        *,
        warn: bool = True,
        pinning: Pinning | None = None,
    ) -> None:
        self._bell = bell
        self._output = output
        self._keep = keep
        self._copies = copies
        self._warn = warn
        self._pinning = pinning
        self._arena: LeasedArena | None = None

    def map_segment(self, message: Message, descriptor: int) -> None:
        """Maps a new segment; views of the one before stay valid."""
        layout = Layout(message.fields["blocks"], message.fields["block_nbytes"])
        try:
            self._arena = LeasedArena(layout, descriptor, self._bell, self._pinning)
        finally:
            os.close(descriptor)

    def batch(self, message: Message) -> Any:
        """The batch of a message."""
        fields = message.fields
        buffer = self._buffer(message)
        kinds = fields.get("kinds")
        if kinds is not None:
            places = zip(fields["offsets"], kinds, strict=True)
            arrays = [view_as_sent(buffer, offset, kind) for offset, kind in places]
            if fields["apart"]:  # imported before unflatten looks up its class
                from mpwds.loader.engine.out_of_band import put_together

                return put_together(nest.unflatten(fields["structure"], arrays, allow_pickle=True))
            return nest.unflatten(fields["structure"], arrays, allow_pickle=True)
        output = self._output
        arrays = [view(buffer, offset, output) for offset in fields["offsets"]]
        return nest.unflatten(fields["structure"], arrays, allow_pickle=True)

    def reclaim(self) -> None:
        """Releases blocks that nobody holds and whose finalizers could not release them."""
        if self._arena is not None:
            self._arena.reclaim()

    @property
    def unsettled(self) -> bool:
        """Whether there are such blocks that a device may still read."""
        return self._arena is not None and self._arena.unsettled

    def settle(self) -> None:
        """Waits until a device has read one of them."""
        if self._arena is not None:
            self._arena.settle()

    def discard(self, message: Message) -> None:
        """Releases the block of a batch that is not wanted."""
        block = message.fields.get("block")
        if block is not None and self._arena is not None:
            self._arena.discard(block)

    def close(self) -> None:
        """Closes the segment, and the bell unless a batch may still ring it."""
        arena, self._arena = self._arena, None
        if arena is None or arena.leased == 0:
            self._bell.close()

    def _buffer(self, message: Message) -> Any:
        block, arena = message.fields.get("block"), self._arena
        if block is None:
            pinned = self._pinning.copy(message.payload) if self._pinning and message.payload else None
            return bytearray(message.payload) if pinned is None else pinned
        if arena is None:
            raise MpwdsError(f"a batch came in block {block} of a segment that is not mapped")
        if self._pinning is not None:
            arena.reclaim()
        if arena.leased < self._keep:
            return arena.lease(block)
        if self._warn and self._copies.made == 0:
            _warn_of_copies(self._keep)
        copy = self._copies.copy(arena.peek(block)[: message.fields["nbytes"]])
        arena.discard(block)
        return copy


def _warn_of_copies(keep: int) -> None:
    warn(
        f"more than {keep} batches of one worker are kept, so further ones are copied out of shared memory: "
        "raise prefetch to keep more of them there, or drop batches sooner"
    )
