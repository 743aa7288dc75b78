"""The clock of an epoch, and what it reads of the processors."""

import io
import os
from types import SimpleNamespace

import pytest

from mpwds import MultiLoader
from mpwds.stats import collector
from mpwds.stats.collector import RECEIVED, WAITED, ConsumerTimer


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still; its processors were used for twice, this process for once its seconds."""
    clock = SimpleNamespace(s=100.0)
    monkeypatch.setattr(
        collector,
        "time",
        SimpleNamespace(monotonic_ns=lambda: int(clock.s * 1e9), process_time=lambda: clock.s),
    )
    monkeypatch.setattr(collector, "_used_s", lambda: (2 * clock.s, clock.s))
    return clock


def epoch(clock, weight=1.0):
    """Two batches: the first after 5 s, the second with 3 s of waiting, 1 of receiving; 2 s in stages."""
    timer = ConsumerTimer()
    steps = [
        (1, lambda: timer.enter(WAITED)),
        (3, lambda: timer.enter(RECEIVED)),
        (1, lambda: timer.delivered(8, 800)),
        (2, lambda: timer.enter(WAITED)),
        (3, lambda: timer.enter(RECEIVED)),
        (1, lambda: timer.delivered(4, 400)),
        (1, timer.stages_began),
        (1, lambda: timer.stages_ended(weight)),
        (0, timer.stages_began),
        (1, lambda: timer.stages_ended(weight)),
    ]
    for seconds, step in steps:
        clock.s += seconds
        step()
    return timer


@pytest.mark.parametrize(("weight", "elsewhere_s", "stages_s"), [(1, 4, 2), (2, 2, 4), (9, 0, 6)])
def test_time_goes_to_what_the_trainer_did(clock, weight, elsewhere_s, stages_s):
    timer = epoch(clock, weight)
    clock.s += 1
    timer.end()
    clock.s += 50  # after the end
    timer.enter(WAITED)
    found = timer.read()
    assert (found.first_batch_s, found.waited_s, found.received_s) == (5, 3, 1)
    assert (found.elsewhere_s, found.stages_s) == (elsewhere_s, stages_s)
    assert (found.batches, found.samples, found.nbytes) == (2, 12, 1200)
    assert (found.first_batches, found.first_samples, found.first_nbytes) == (1, 8, 800)
    assert (found.busy_s, found.cpu_s) == (20, 10)
    assert found + collector.ConsumerSnapshot() == found


def test_the_clock_of_an_epoch_that_runs_tells_the_time_so_far(clock):
    timer = ConsumerTimer()
    clock.s += 2
    timer.enter(WAITED)
    clock.s += 4
    assert timer.read() == collector.ConsumerSnapshot(first_batch_s=6)
    timer = epoch(clock)
    timer.enter(WAITED)
    clock.s += 7
    assert (timer.read().waited_s, timer.read().elsewhere_s, timer.read().busy_s) == (3 + 7, 3, 32)


def test_only_processors_that_this_process_may_use_count(monkeypatch):
    text = b"cpu 99 99 99 99 99 99 99 0\ncpu1 1 2 4 8 16 32 64 0\ncpu11 9 9 9 9 9 9 9 0\nintr 5\n"
    monkeypatch.setattr(collector, "open", lambda *_: io.BytesIO(text), raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    assert collector._used_s()[0] == (1 + 2 + 4 + 32 + 64) / os.sysconf("SC_CLK_TCK")


def test_what_begins_while_another_thread_reads_makes_no_time_negative(clock, monkeypatch):
    timer = epoch(clock)
    monotonic_ns = collector.time.monotonic_ns

    def interrupted():
        now_ns = monotonic_ns()
        monkeypatch.setattr(collector.time, "monotonic_ns", monotonic_ns)
        clock.s += 1
        timer.enter(WAITED)  # the training's thread goes on
        return now_ns

    monkeypatch.setattr(collector.time, "monotonic_ns", interrupted)
    found = timer.read()
    assert (found.waited_s, found.elsewhere_s) == (3, 3)


def test_an_epoch_that_ends_while_another_thread_reads_counts_once(monkeypatch):
    loader = MultiLoader([1, 2, 3], workers=0, output="numpy")
    next(iter(loader))
    elements = iter(loader)
    next(elements)
    read_used = collector._used_s

    def interrupted():
        monkeypatch.setattr(collector, "_used_s", read_used)
        list(elements)  # the training's thread ends this epoch, and begins the next one
        next(iter(loader))
        return read_used()

    monkeypatch.setattr(collector, "_used_s", interrupted)
    stats = loader.stats("start")
    assert (stats.batches, stats.epochs) == (1 + 3, 2)
    assert (loader.stats("start").batches, loader.stats("start").epochs) == (1 + 3 + 1, 3)
