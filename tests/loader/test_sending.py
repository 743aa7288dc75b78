"""BatchSender: rows that lie in their block before the batch is complete, and the blocks that they need."""

import os
import random
import signal
import socket

import numpy as np
import pytest
import torch

import mpwds
from mpwds.loader import handover, protocol
from mpwds.loader.channel import Channel
from mpwds.loader.commands import Commands
from mpwds.loader.counters import Counters
from mpwds.loader.meter import Meter
from mpwds.loader.receiving import BatchReceiver
from mpwds.loader.sending import BatchSender
from mpwds.pipeline.collation.collate import deferred_collation_fn
from mpwds.pipeline.collation.rows_in_place import RowsInPlace
from mpwds.sharedmem.bell import Bell
from mpwds.sharedmem.private import PrivateCopies

BLOCKS = 3
FORM = ((2, 100, 100, 3), np.dtype("float32"))


class Wire:
    """A sender, and a trainer that receives what it sends."""

    def __init__(self):
        self.trainer, worker = map(Channel, socket.socketpair())
        self.fetched, gives = socket.socketpair()
        bell = Bell()
        meter = Meter(Counters(), None, counts_cpu=False)
        self.sender = BatchSender(worker, gives, Commands(worker), bell, BLOCKS, meter)
        self.receiver = BatchReceiver(bell, "numpy", BLOCKS - 1, PrivateCopies(), warn=False)
        self.rooms = []
        self.rows = RowsInPlace(self._find_room)
        self._closed = [self.receiver, self.trainer, worker, self.fetched, gives]

    def _find_room(self, forms):
        self.rooms.append(self.sender.find_room(forms))
        return self.rooms[-1]

    def gather(self, samples):
        """A batch of samples, the large rows of which are put in their places if there is room."""
        put = self.rows.begin(samples[0], len(samples))
        if put is not None:
            samples = [put(number, sample) for number, sample in enumerate(samples)]
        return deferred_collation_fn(samples)

    def send(self, batch):
        """Sends a batch; returns the number of its block, and the batch as it arrives."""
        self.sender.send(batch, 1, 0)
        while (message := self.trainer.receive()).fields["kind"] == protocol.SEGMENT:
            self.receiver.map_segment(message, handover.take(self.fetched))
        return message.fields.get("block"), self.receiver.batch(message)

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


def samples(*values):
    return [(image(value), value) for value in values]


def values(batch):
    images, labels = batch
    assert (images == images[:, :1, :1, :1]).all()
    return images[:, 0, 0, 0].tolist(), labels.tolist()


def test_rows_are_sent_in_the_block_that_they_were_put_into(wire):
    wire.send(wire.gather(samples(1, 2)))
    block, batch = wire.send(wire.gather(samples(3, 4)))
    room = wire.rooms[-1]
    assert (block, room.given_up, values(batch)) == (room.block.number, True, ([3, 4], [3, 4]))


def test_all_columns_are_aligned_to_64_bytes(wire):
    wire.send(wire.gather(samples(1, 2)))
    _, (images, labels) = wire.send(wire.gather(samples(3, 4)))
    assert images.ctypes.data % 64 == labels.ctypes.data % 64 == 0


def test_tensors_are_put_too(wire):
    tensors = [(torch.from_numpy(image(value)), value) for value in (1, 2)]
    wire.send(wire.gather(tensors))
    block, batch = wire.send(wire.gather(tensors))
    assert (block, values(batch)) == (wire.rooms[-1].block.number, ([1, 2], [1, 2]))


def test_a_batch_of_fewer_rows_than_expected_is_sent_from_there_too(wire):
    wire.send(wire.gather(samples(1, 2)))
    put = wire.rows.begin(image(3), 2)
    block, batch = wire.send(deferred_collation_fn([put(0, image(3))]))
    assert (block, batch.shape, batch.max()) == (wire.rooms[-1].block.number, (1, 100, 100, 3), 3)


def test_there_is_no_room_before_the_first_batch_nor_two_at_a_time(wire):
    assert wire.sender.find_room([FORM]) is None
    wire.send(wire.gather(samples(1, 2)))
    assert wire.sender.find_room([FORM]) is not None
    assert wire.sender.find_room([FORM]) is None


def test_an_epochs_end_takes_room_back(wire):
    wire.send(wire.gather(samples(1, 2)))
    room = wire.sender.find_room([FORM])
    wire.sender.end_epoch()
    assert room.given_up
    assert wire.sender.find_room([FORM]).block.number == room.block.number


def test_a_row_of_another_dtype_makes_the_batch_of_both(wire):
    wire.send(wire.gather(samples(1, 2)))
    _, batch = wire.send(wire.gather([(image(3), 3), (image(0.1, "float64"), 4)]))
    assert batch[0].dtype == "float64"
    assert values(batch) == ([3, 0.1], [3, 4])


def test_a_batch_that_does_not_fit_beside_its_rows_gets_a_larger_block_and_the_next_have_room_there(wire):
    wire.send(wire.gather(samples(1, 2)))
    for _ in range(2):
        _, (images, texts) = wire.send(wire.gather([(image(3), np.ones(8000)), (image(4), np.ones(8000))]))
        assert (images[:, 0, 0, 0].tolist(), texts.sum()) == ([3, 4], 16000)
    assert wire.rooms[-1].block.memory.nbytes > 8000 * 16
    assert wire.rooms[-1].given_up


def test_whatever_batches_follow_each_other_all_arrive_as_they_were_and_no_block_is_lost(wire):
    rng = random.Random(0)
    kept = []
    for number in range(200):
        rows = samples(*(rng.randrange(100) for _ in range(rng.choice([1, 2, 2, 2, 3]))))
        expected = [row[0].max() for row in rows], [row[1] for row in rows]
        if rng.random() < 0.2:
            rows[-1] = (rows[-1][0].astype("float64"), rows[-1][1])
        if rng.random() < 0.1:
            wire.rows.begin(image(0, "uint8"), 2)  # a batch that comes to nothing
        _, batch = wire.send(wire.gather(rows))
        kept = [*kept, (expected, batch)][-rng.choice([1, 2, 3]) :]
        for was, arrived in kept:
            assert values(arrived) == was, number


def batched(number, shape):
    dataset = mpwds.DataPipeline(range(number)).map(lambda value: (np.full(shape, value, "float32"), value))
    return dataset.batched(4)


@pytest.mark.parametrize(
    "dataset",
    [
        batched(50, (100, 100)),
        batched(50, (100, 100)).repeat(3),
        batched(50, (100, 100)).with_epoch(20),
        mpwds.RandomMix([batched(50, (100, 100)), batched(60, (120, 100))], longest=True),
    ],
    ids=["once", "repeated", "epochs of a number", "mixed"],
)
def test_loaders_deliver_what_the_dataset_gives(dataset):
    with mpwds.MultiLoader(dataset, workers=1, output="numpy", prefetch=1) as loader:
        for _ in range(2):
            seen = sorted(
                (images.shape, images[:, 7, 7].tolist(), labels.tolist()) for images, labels in loader
            )
            assert all(images == labels for _, images, labels in seen)
            assert sum(len(labels) for _, _, labels in seen) > 0


def test_a_worker_that_dies_with_a_batch_half_in_its_block_is_replaced_and_each_row_comes_once(tmp_path):
    died = tmp_path / "died"

    def sample(value):
        if value == 42 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full((100, 100), value, "float32"), value

    dataset = mpwds.DataPipeline(range(100)).map(sample).batched(16)
    loader = mpwds.MultiLoader(dataset, workers=1, output="numpy", prefetch=8, on_worker_death="restart")
    with loader, pytest.warns(RuntimeWarning, match="killed"):
        batches = list(loader)
    assert np.concatenate([labels for _, labels in batches]).tolist() == list(range(100))
    assert all((images == labels[:, None, None]).all() for images, labels in batches)
