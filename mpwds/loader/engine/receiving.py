"""Turns a worker's messages into batches: views of its blocks, or private copies."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

from mpwds import nest, tenbin
from mpwds.errors import MpwdsError
from mpwds.loader.engine import protocol
from mpwds.loader.engine.channel import Message
from mpwds.sharedmem.arena import Layout
from mpwds.sharedmem.bell import Bell
from mpwds.sharedmem.lease import LeasedArena
from mpwds.sharedmem.pinning import Pinning
from mpwds.sharedmem.private import PrivateCopies
from mpwds.tenbin.kinds import torch_dtypes
from mpwds.warn import warn

Output = Literal["torch", "numpy"]


@dataclass
class BatchReceiver:
    """Turns one worker's messages into batches.

    The consumer may hold ``keep`` blocks at once. Further batches are copied, so that the worker always has a
    block to write to. The first one brings a warning, unless it is a single sample: those are for looking at.
    """

    bell: Bell
    output: Output
    keep: int
    copies: PrivateCopies
    warn: bool = True
    pinning: Pinning | None = None
    _arena: LeasedArena | None = field(default=None, init=False)

    def map_segment(self, message: Message, descriptor: int) -> None:
        """Maps a new segment; views of the one before stay valid."""
        layout = Layout(message.fields["blocks"], message.fields["block_nbytes"])
        try:
            self._arena = LeasedArena(layout, descriptor, self.bell, self.pinning)
        finally:
            os.close(descriptor)

    def batch(self, message: Message) -> Any:
        fields, buffer = message.fields, self.buffer(message)
        if "kinds" not in fields:
            return batch_of(fields, buffer, self.output, allow_pickle=True)
        kinds = zip(fields["offsets"], fields["kinds"], strict=True)
        arrays = [view_as_sent(buffer, offset, kind) for offset, kind in kinds]
        if not fields.get("apart"):
            return nest.unflatten(fields["structure"], arrays, allow_pickle=True)
        # Imported before unflatten looks up its class.
        from mpwds.loader.engine.out_of_band import put_together

        return put_together(nest.unflatten(fields["structure"], arrays, allow_pickle=True))

    def reclaim(self) -> None:
        if self._arena is not None:
            self._arena.reclaim()

    @property
    def unsettled(self) -> bool:
        return self._arena is not None and self._arena.unsettled

    def settle(self) -> None:
        if self._arena is not None:
            self._arena.settle()

    def discard(self, message: Message) -> None:
        block = message.fields.get("block")
        if block is not None and self._arena is not None:
            self._arena.discard(block)

    def close(self) -> None:
        """Closes the segment, and the bell unless a batch may still ring it."""
        arena, self._arena = self._arena, None
        if arena is None or arena.leased == 0:
            self.bell.close()

    def buffer(self, message: Message) -> Any:
        """The memory that a batch lies in: a leased block, or private memory."""
        block, arena = message.fields.get("block"), self._arena
        if block is None:
            pinned = self.pinning.copy(message.payload) if self.pinning and message.payload else None
            return bytearray(message.payload) if pinned is None else pinned
        if arena is None:
            raise MpwdsError(f"a batch came in block {block} of a segment that is not mapped")
        if self.pinning is not None:
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
    """The batch that an envelope's fields and the memory of its arrays make."""
    arrays = [view(buffer, offset, output) for offset in fields["offsets"]]
    return nest.unflatten(fields["structure"], arrays, allow_pickle=allow_pickle)


def view_as_sent(buffer: Any, offset: int, kind: int) -> Any:
    """The array that is encoded at ``offset``, as the kind that it was sent as."""
    array = view(buffer, offset, "numpy" if kind == protocol.ARRAY else "torch")
    return array.requires_grad_() if kind == protocol.TENSOR_WITH_GRADIENT else array


def view(memory: Any, offset: int, output: Output) -> Any:
    """The array that is encoded at an offset of a buffer, or of a tensor of bytes."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(memory, torch.Tensor):
        return tenbin.view_array(memory, tenbin.parse_array(memory, offset), output)
    # Torch's own views tell its allocator of pinned memory on which streams they are used.
    written = memory.numpy()
    header = tenbin.parse_array(written, offset)
    dtype = torch_dtypes()[1].get(header.code) if output == "torch" else None
    if dtype is None or not header.nbytes:
        return tenbin.view_array(written, header, output)
    start = header.data_offset
    return memory[start : start + header.nbytes].view(dtype).view(header.shape)
