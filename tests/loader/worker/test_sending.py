"""BatchSender and BatchReceiver: batches lie aligned in blocks, and blocks are used again when let go."""

import random
import socket

import numpy as np
import pytest

from mpwds.loader.engine.local_worker import BatchReceiver
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Channel, take_descriptor
from mpwds.loader.worker.sending import BatchSender, Commands
from mpwds.pipeline.filter import rows_in
from mpwds.pipeline.stages.collation import collate_by, defer
from mpwds.sharedmem.arena import EventFd
from mpwds.sharedmem.lease import CopiedBatches
from mpwds.stats.counters import Counters
from mpwds.stats.profiler import StageProfiler

BLOCKS = 3


class Wire:
    """A sender, and a trainer that receives what it sends."""

    def __init__(self):
        self.trainer, worker = map(Channel, socket.socketpair())
        self.fetched, gives = socket.socketpair()
        bell = EventFd()
        meter = StageProfiler(Counters(), rows_in, counts_cpu=False)
        self.sender = BatchSender(worker, gives, Commands(worker), bell, BLOCKS, meter)
        self.receiver = BatchReceiver(bell, "numpy", BLOCKS - 1, CopiedBatches(), warn=False)
        self._closed = [self.receiver, self.trainer, worker, self.fetched, gives]

    def send(self, samples):
        """The batch of some samples, as it arrives."""
        self.sender.send(collate_by(defer, (), samples), {"generation": 1, "sequence": 0})
        while (message := self.trainer.receive()).fields["kind"] == protocol.SEGMENT:
            self.receiver.map_segment(message, take_descriptor(self.fetched))
        return self.receiver.batch(message)

    def close(self):
        for closes in self._closed:
            closes.close()
        self.__dict__.clear()  # with it goes the arena


@pytest.fixture
def wire():
    wire = Wire()
    yield wire
    wire.close()


def image(value, dtype="float32"):
    return np.full((100, 100, 3), value, dtype)


def test_whatever_batches_follow_each_other_all_arrive_as_they_were_and_no_block_is_lost(wire):
    rng = random.Random(0)
    kept = []
    for number in range(200):
        rows = [(image(value), value) for value in rng.choices(range(100), k=rng.choice([1, 2, 2, 2, 3]))]
        if rng.random() < 0.2:
            rows[-1] = (rows[-1][0].astype("float64"), rows[-1][1])
        expected = [value for _, value in rows]
        kept = [*kept, (expected, wire.send(rows))][-rng.choice([1, 2, 3]) :]
        for was, (images, labels) in kept:
            assert (images == images[:, :1, :1, :1]).all(), number
            assert images[:, 0, 0, 0].tolist() == labels.tolist() == was, number
