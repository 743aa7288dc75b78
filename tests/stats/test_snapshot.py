"""Snapshots of counters add up and subtract."""

import pytest

from mpwds.stats.snapshot import NOTHING_COUNTED, CounterSnapshot, StageSnapshot, plain_values, stage_name

STAGES = {"decode": StageSnapshot(5, 10), "tar": StageSnapshot(1, 10, True, 900)}
EARLY = CounterSnapshot(batches=3, restarts=1, stages=STAGES, skipped={"decode: E": 2}, shard="a", pid=7)
MORE = CounterSnapshot(
    batches=4, stages={"decode": StageSnapshot(6, 2)}, skipped={"decode: E": 1}, shard="b", pid=8
)


def test_counts_add_up_and_the_difference_is_what_was_added():
    both = EARLY + MORE
    assert (both.batches, both.restarts, both.skipped) == (7, 1, {"decode: E": 3})
    assert both.stages == {"decode": StageSnapshot(11, 12), "tar": StageSnapshot(1, 10, True, 900)}
    rest = both - EARLY
    assert (rest.batches, rest.restarts, rest.skipped) == (4, 0, {"decode: E": 1})
    assert rest.stages["decode"] == StageSnapshot(6, 2)
    assert rest.stages["tar"] == StageSnapshot(0, 0, True, 0)
    assert EARLY + NOTHING_COUNTED == NOTHING_COUNTED + EARLY == EARLY
    assert (EARLY - EARLY).skipped == {}


def test_process_and_shard_are_the_latest_that_are_known():
    assert ((EARLY + MORE).pid, (EARLY + MORE).shard) == (8, "b")
    unknown = EARLY + CounterSnapshot(batches=1)
    assert (unknown.pid, unknown.shard) == (7, "a")
    assert ((EARLY + MORE) - EARLY).shard == "b"


def test_a_server_that_answers_again_is_no_longer_lost():
    lost, found = (CounterSnapshot(server="tcp://cpu1:7880", lost_s=each) for each in (12.0, 0.0))
    assert ((lost + found).server, (lost + found).lost_s) == ("tcp://cpu1:7880", 0.0)
    assert ((found - lost).lost_s, (lost - found).lost_s) == (0.0, 12.0)


@pytest.mark.parametrize("values", [{}, {"time_ns": "x", "elements": 1, "storage": 1, "nbytes": 1}])
def test_values_become_those_of_their_fields_and_what_lacks_some_or_is_no_number_is_refused(values):
    given = {"time_ns": 5, "elements": 2.0, "storage": 0, "nbytes": 0, "x": 1}
    assert str(plain_values(StageSnapshot, given)) == str(vars(StageSnapshot(5, 2)))
    with pytest.raises((KeyError, ValueError)):
        plain_values(StageSnapshot, values)


def test_a_stage_that_prints_several_lines_goes_by_the_first():
    assert [stage_name(part) for part in ("map(f)", "map(f)\nmore", "")] == ["map(f)", "map(f)", ""]
