"""BatchReceiver: messages to batches, blocks back to their worker."""

import os

import numpy as np
import pytest

from mpwds import nest, tenbin
from mpwds.loader.engine.local_worker import BatchReceiver
from mpwds.loader.messages.channel import Message
from mpwds.sharedmem.arena import Arena, EventFd
from mpwds.sharedmem.cuda import Pinning
from mpwds.sharedmem.lease import CopiedBatches
from tests.fake_cuda import FakeCuda
from tests.sharedmem.pair import free_blocks


class Worker:
    """A worker's arena, and the receiver of what it sends, in one process."""

    def __init__(self, cuda, blocks=3):
        copies = CopiedBatches(Pinning(lambda: cuda))
        self.receiver = BatchReceiver(EventFd(), "torch", blocks - 1, copies)
        self.arena = Arena(blocks, self._announce)

    def _announce(self, layout, descriptor):
        fields = {"blocks": layout.blocks, "block_nbytes": layout.block_nbytes}
        self.receiver.map_segment(Message(fields, memoryview(b"")), os.dup(descriptor))

    def send(self, value):
        """Sends a batch of one array, and returns it as it is received."""
        block = self.arena.acquire(4096)
        structure, arrays = nest.flatten(np.full(10, value))
        tenbin.write_array(block.memory, 32, *arrays)
        fields = {"block": block.number, "nbytes": 4096, "structure": structure, "offsets": [32]}
        return self.receiver.batch(Message(fields, memoryview(b"")))

    @property
    def free(self):
        return free_blocks(self.arena)


@pytest.fixture
def cuda():
    return FakeCuda()


def test_receiving_a_batch_hands_back_the_blocks_that_devices_have_read(cuda):
    worker = Worker(cuda)
    cuda.copy(worker.send(1))
    assert (worker.free, worker.receiver.arena.pending_device_reads) == (2, True)
    cuda.run()
    batch = worker.send(2)
    assert (worker.free, worker.receiver.arena.pending_device_reads, int(batch[0])) == (2, False, 2)


def test_a_small_batch_lies_in_pinned_memory_of_its_own(cuda):
    worker = Worker(cuda)
    structure, arrays = nest.flatten({"x": np.arange(3), "none": np.zeros((0, 2)), "name": "a"})
    ends = [32 + tenbin.array_nbytes(arrays[0]), 64 + sum(map(tenbin.array_nbytes, arrays))]
    payload = bytearray(ends[1])
    offsets = [32, ends[0] + 32]
    for offset, array in zip(offsets, arrays, strict=True):
        tenbin.write_array(payload, offset, array)
    message = Message({"structure": structure, "offsets": offsets}, memoryview(payload))
    batch = worker.receiver.batch(message)
    payload[:] = bytes(len(payload))
    assert (cuda.is_pinned(batch["x"]), batch["x"].tolist(), batch["name"]) == (True, [0, 1, 2], "a")
    assert tuple(batch["none"].shape) == (0, 2)


def test_a_batch_without_arrays_takes_no_pinned_memory(cuda):
    structure, _ = nest.flatten(["a", 1])
    fields = {"structure": structure, "offsets": []}
    assert Worker(cuda).receiver.batch(Message(fields, memoryview(b""))) == ["a", 1]
    assert cuda.events == []
