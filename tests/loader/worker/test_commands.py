"""Commands: a worker hears every start once, and every reason to leave an epoch."""

import socket

import pytest

from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Channel, ChannelClosed
from mpwds.loader.worker.sending import Commands


@pytest.fixture
def ends():
    trainer, worker = map(Channel, socket.socketpair())
    yield trainer, Commands(worker)
    trainer.close(), worker.close()


def start(generation):
    return {"kind": protocol.START, "epoch": 0, "generation": generation}


def stop(generation):
    return {"kind": protocol.STOP, "generation": generation}


def test_a_stop_ends_its_epoch_and_those_before_but_none_after(ends):
    trainer, commands = ends
    assert not commands.stopped(2)
    trainer.send(stop(1))
    assert not commands.stopped(2)
    trainer.send(stop(2))
    assert commands.stopped(2)
    assert commands.stopped(1)
    assert not commands.stopped(3)


def test_of_many_commands_that_wait_the_newest_counts(ends):
    trainer, commands = ends
    for generation in range(1, 50):
        trainer.send(start(generation))
        trainer.send(stop(generation))
    trainer.send(start(50))
    assert commands.wait_for_start()["generation"] == 50
    trainer.send(start(51))
    trainer.send(stop(51))
    assert commands.stopped(50)
    trainer.send(start(52))
    assert commands.wait_for_start()["generation"] == 52


def test_a_stop_that_comes_when_the_epoch_is_over_is_ignored(ends):
    trainer, commands = ends
    trainer.send(stop(1))
    trainer.send(start(2))
    assert commands.wait_for_start()["generation"] == 2


@pytest.mark.parametrize("before", [[stop(1)], []])
def test_a_start_ends_the_epoch_before_it_and_is_not_lost(ends, before):
    trainer, commands = ends
    for fields in [*before, start(2)]:
        trainer.send(fields)
    assert commands.stopped(1)
    assert commands.wait_for_start()["generation"] == 2


def test_the_end_of_the_channel_ends_everything(ends):
    trainer, commands = ends
    trainer.close()
    with pytest.raises(ChannelClosed):
        commands.stopped(1)
    with pytest.raises(ChannelClosed):
        commands.wait_for_start()


def task(generation, index=b""):
    return {"kind": protocol.TASK, "generation": generation, "index": index}


@pytest.mark.parametrize("command", [start(2), stop(1)], ids=["start", "stop"])
def test_tasks_that_are_not_begun_end_with_their_epoch(ends, command):
    trainer, commands = ends
    trainer.send(start(1))
    trainer.send(task(1, b"old"))
    assert commands.wait_for_start()["generation"] == 1
    trainer.send(command)
    assert commands.wait_for_task(1) is None
    trainer.send(start(3))
    trainer.send(task(3, b"new"))
    assert commands.wait_for_start()["generation"] == 3
    assert commands.wait_for_task(3) == b"new"


def test_waiting_for_a_task_ends_when_the_trainer_is_gone(ends):
    trainer, commands = ends
    trainer.close()
    with pytest.raises(ChannelClosed):
        commands.wait_for_task(1)
