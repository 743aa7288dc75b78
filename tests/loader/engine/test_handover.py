"""The handover: descriptors reach the trainer, or the error says why not."""

import os
import socket

import pytest

from mpwds.errors import MpwdsError, SharedMemoryError
from mpwds.loader.messages.channel import give_descriptor, take_descriptor
from tests.open_files import none_left


@pytest.fixture
def ends():
    trainer, worker = socket.socketpair()
    with trainer, worker:
        yield trainer, worker


def test_descriptors_arrive_in_order_and_close_on_exec(ends):
    trainer, worker = ends
    for content in (b"first", b"second"):
        reading, writing = os.pipe()
        os.write(writing, content)
        give_descriptor(worker, reading)
        os.close(reading), os.close(writing)
    for content in (b"first", b"second"):
        descriptor = take_descriptor(trainer)
        assert not os.get_inheritable(descriptor)
        assert os.read(descriptor, 10) == content
        os.close(descriptor)


def test_no_descriptor_left_is_a_clear_error(ends):
    trainer, worker = ends
    give_descriptor(worker, 0)
    with none_left(), pytest.raises(SharedMemoryError, match=r"no file descriptor left .*ulimit -n"):
        take_descriptor(trainer)


def test_a_worker_that_is_gone_is_a_clear_error(ends):
    trainer, worker = ends
    worker.close()
    with pytest.raises(MpwdsError, match="did not hand it over"):
        take_descriptor(trainer)


def test_a_trainer_that_is_gone_does_not_matter_to_the_giver(ends):
    trainer, worker = ends
    trainer.close()
    give_descriptor(worker, 0)
