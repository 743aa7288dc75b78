"""Waiting for several workers: all that they sent arrives, and what is kept for them is sent meanwhile."""

import os
import select
import socket
import threading

import pytest

from mpwds.errors import MpwdsError, WorkerDied
from mpwds.loader.engine.epoch import EpochIterator
from mpwds.loader.engine.local_worker import BatchReceiver, LocalWorker
from mpwds.loader.engine.worker_handle import next_message
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Channel
from mpwds.loader.resume.progress import START, EpochProgress
from mpwds.sharedmem.arena import EventFd
from mpwds.sharedmem.lease import CopiedBatches
from mpwds.stats.collector import ConsumerTimer

LARGE = bytes(1 << 20)


class Process:
    """A process that has not ended, or whose end is ``last_words``, which is called before it."""

    pid, hint, exitcode = 4711, "", -9

    def __init__(self, last_words=None):
        self.last_words = last_words
        self.signal = os.eventfd(0)

    def fileno(self):
        return self.signal

    def wait(self, timeout_s):
        last_words, self.last_words = self.last_words, lambda: None
        if last_words is None:
            self.last_words = None
            return False
        last_words()
        return True

    def kill(self):
        pass


class Launcher:
    """Starts a worker whose end is here."""

    def __init__(self, process):
        self.process = process

    def launch(self, index, ends):
        self.channel = Channel(socket.socket(fileno=os.dup(ends.channel)))
        return self.process

    def send(self, kind, **fields):
        self.channel.send({"kind": kind, "generation": 1, **fields})


@pytest.fixture
def worker_of():
    made = []

    def worker_of(process, index=0):
        launcher = Launcher(process)
        copies = CopiedBatches()
        worker = LocalWorker(index, launcher, BatchReceiver(EventFd(), "numpy", 2, copies))
        made.append((worker, launcher, process))
        return worker, launcher

    yield worker_of
    for worker, launcher, process in made:
        worker.disconnect()
        worker.release()
        launcher.channel.close()
        os.close(process.signal)


def test_what_a_worker_sent_just_before_its_end_arrives_before_its_death_is_reported(worker_of):
    process = Process(lambda: (launcher.send("batch", sequence=0), launcher.send("end", sent=1)))
    worker, launcher = worker_of(process)
    worker.start(0, {0: START})
    assert [worker.receive().fields["kind"] for _ in range(2)] == ["batch", "end"]
    launcher.channel.close()
    with pytest.raises(WorkerDied, match="was killed by SIGKILL"):
        worker.receive()


class Group:
    """A loader's workers, which run."""

    def __init__(self, *workers):
        self.workers = list(workers)

    def begin_epoch(self):
        pass

    def is_owner(self):
        return True

    def close(self):
        pass


@pytest.mark.parametrize(("kind", "fields"), [("batch", {"sequence": 1}), ("end", {"sent": 1})])
def test_a_message_that_is_missing_is_an_error(kind, fields, worker_of):
    worker, launcher = worker_of(Process())
    epoch = EpochIterator(
        None,
        EpochProgress.at_start(0, 1),
        ConsumerTimer(),
        Group(worker),
        in_order=True,
        timeout=None,
        persistent=True,
    )
    launcher.send(kind, **fields)
    with pytest.raises(MpwdsError, match=f"worker 0 sent {kind} 1, expected 0: batches were lost"):
        next(epoch)


def test_while_one_worker_is_waited_for_others_get_what_is_kept_for_them(worker_of):
    """The worker answers once the other one has the tasks that its channel had no room for."""
    worker, launcher = worker_of(Process())
    other, others = worker_of(Process(), index=1)
    worker.start(0, {0: START})
    other.start(0, {0: START})
    while not other.unsent:
        other.give(LARGE)

    def answer():
        received = 0
        while received < 3:
            select.select([others.channel], [], [])
            message = others.channel.receive()
            received += message is not None and message.fields["kind"] == protocol.TASK
        launcher.send("batch", sequence=0)

    for _ in range(3):
        other.give(LARGE)
    threads = [threading.Thread(target=answer), threading.Timer(240, launcher.send, ["end"], {"sent": 0})]
    for thread in threads:
        thread.start()
    try:
        assert next_message([worker], None, [worker, other])[1].fields["kind"] == protocol.BATCH
    finally:
        others.channel.close()
        threads[1].cancel()
        for thread in threads:
            thread.join()
