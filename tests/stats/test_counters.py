"""The counters that a worker writes and its trainer reads."""

import ctypes
import subprocess
import time

import pytest

from mpwds.stats.counters import Counters, StatusPage
from mpwds.stats.snapshot import NOTHING_COUNTED, StageSnapshot


@pytest.fixture
def both():
    """The worker's counters and the trainer's, in the same memory."""
    memory = bytearray(ctypes.sizeof(Counters))
    return Counters.from_buffer(memory), Counters.from_buffer(memory)


@pytest.mark.parametrize("name", ["active_ns", "waiting_ns"])
def test_a_time_counts_while_it_runs(both, name):
    worker, trainer = both
    setattr(worker, name, 5_000_000 - time.monotonic_ns())
    first, second = (getattr(trainer.read(), name) for _ in range(2))
    assert 5_000_000 <= first < second


def test_times_add_up(both):
    worker, trainer = both
    for begin, end in ((100, 150), (1000, 1007)):
        worker.waiting_ns -= begin
        worker.waiting_ns += end
    assert trainer.read().waiting_ns == 57


def test_stages_have_names_times_and_elements(both):
    worker, trainer = both
    for number, name in enumerate(["", "", "decode('rgb8')", "x" * 300, "map(über)"]):
        worker.describe_stage(number, name, storage=number == 3)
    worker.stages[2].time_ns = 1500
    worker.stages[2].elements = 90
    stages = trainer.read().stages
    assert list(stages) == ["decode('rgb8')", "x" * 101 + "…", "map(über)"]
    assert stages["decode('rgb8')"] == StageSnapshot(time_ns=1500, elements=90)
    assert [stage.storage for stage in stages.values()] == [False, True, False]


def test_there_is_room_for_many_stages_and_kinds_of_error(both):
    worker, trainer = both
    for number in range(100):
        worker.describe_stage(number, f"map({number})", False).time_ns += 1
        worker.count_skipped(f"kind {number}")
    reading = trainer.read()
    assert len(reading.stages) == 46
    assert reading.stages["further ones"].time_ns == 53
    assert len(reading.skipped) == 24
    assert reading.skipped["further ones"] == 77


def test_errors_are_counted_by_kind_and_what_was_before_is_subtracted(both):
    worker, trainer = both
    assert trainer.read() == NOTHING_COUNTED
    stage = worker.describe_stage(2, "map(f)", False)
    stage.time_ns = 10
    worker.count_skipped("a")
    before = trainer.read()
    stage.time_ns += 5
    for kind in ("b", "a", "b"):
        worker.count_skipped(kind)
    since = trainer.read() - before
    assert (since.stages["map(f)"].time_ns, since.skipped) == (5, {"a": 1, "b": 2})
    assert (since + before).stages["map(f)"].time_ns == 15


def test_a_name_that_is_cut_within_a_character_loses_that_one_only(both):
    worker, trainer = both
    for stage, name in enumerate(("", "writing", "ab" + "é" * 60, "a" + "é" * 60)):
        worker.describe_stage(stage, name, storage=False)
    assert list(trainer.read().stages) == ["ab" + "é" * 49 + "…", "a" + "é" * 50 + "…"]


def test_a_worker_that_does_not_answer_yet_is_not_asked_for_its_stack():
    """The signal would end it."""
    page = StatusPage()
    with subprocess.Popen(["sleep", "60"]) as worker:
        assert page.stack(worker.pid) == ""
        assert worker.poll() is None
        worker.kill()
    page.close()
