"""What follows from a worker's counters, and from all workers', by arithmetic."""

from dataclasses import replace

import pytest

from mpwds.stats.measures import LoaderMeasures, StageStats, WorkerStats, rates_of, worker_stats
from mpwds.stats.snapshot import CounterSnapshot, StageSnapshot

SECOND = 10**9
COUNTERS = CounterSnapshot(
    active_ns=10 * SECOND,
    waiting_ns=2 * SECOND,
    batches=5,
    samples=40,
    nbytes=3000,
    cpu_ns=6 * SECOND,
    queued_ns=SECOND,
    restarts=3,
    other=StageSnapshot(SECOND, 99),
    writing=StageSnapshot(SECOND, 98),
    stages={"tar": StageSnapshot(4 * SECOND, 50, True, 800), "decode": StageSnapshot(10 * SECOND, 40)},
    skipped={"decode: E": 2},
    shard="a.tar",
    pid=7,
    server="tcp://cpu1:7880",
    lost_s=1.5,
)
WORKER = WorkerStats(
    worker=4,
    pid=7,
    batches=5,
    samples=40,
    nbytes=3000,
    active_s=10.0,
    waiting_s=2.0,
    cpu_s=6.0,
    queued_s=1.0,
    skipped={"decode: E": 2},
    restarts=3,
    stages=(
        StageStats("between stages", 0.5, 0.0625, 5),
        StageStats("tar", 2.0, 0.25, 50, True, 800),
        StageStats("decode", 5.0, 0.625, 40),
        StageStats("writing batches", 0.5, 0.0625, 5),
    ),
    shard="a.tar",
    server="tcp://cpu1:7880",
    lost_s=1.5,
)


def test_a_worker_has_its_counters_in_seconds_and_its_working_time_divided_among_its_stages():
    assert worker_stats(4, COUNTERS) == WORKER
    assert worker_stats(4, COUNTERS).skipped is not COUNTERS.skipped  # which a user may change


def test_a_worker_has_a_rate_and_shares_of_its_active_time():
    assert (WORKER.working_s, WORKER.waiting_share, WORKER.samples_per_s) == (8.0, 0.2, 4.0)
    idle = replace(WORKER, active_s=0.0, waiting_s=0.0)
    assert (idle.working_s, idle.waiting_share, idle.samples_per_s) == (0.0, 0.0, 0.0)


def test_a_stage_has_the_rates_of_a_worker_that_does_nothing_else():
    assert (WORKER.stages[1].elements_per_s, WORKER.stages[1].bytes_per_s) == (25.0, 400.0)


def test_rates_are_counts_by_seconds():
    counts = {"batches": 2, "samples": 8, "nbytes": 100}
    rates = {"batches_per_s": 0.5, "samples_per_s": 2.0, "bytes_per_s": 25.0}
    assert rates_of(2, 8, 100, 4.0) == {**counts, **rates}
    assert rates_of(2, 8, 100, 0.0) == {**counts, **dict.fromkeys(rates, 0.0)}


def measured(*workers, **more):
    return LoaderMeasures(
        **{**rates_of(10, 80, 6000, 4.0), "cores": 2, "workers": workers, "waited_s": 1.0, **more}
    )


OTHER = replace(
    WORKER,
    active_s=6.0,
    waiting_s=6.0 - 0.5,
    skipped={"decode: E": 1, "map: E": 1},
    restarts=1,
    stages=(StageStats("decode", 0.5, 1.0, 10),),
    server="tcp://cpu2:7880",
    lost_s=0.0,
)


def test_the_figures_of_workers_add_up():
    both = measured(
        WORKER, OTHER, stages_skipped={"map: E": 4}, received_s=0.5, elsewhere_s=2.0, stages_s=0.5
    )
    assert (both.seconds, both.waiting_share) == (4.0, 0.25)
    assert both.workers_waiting_share == 7.5 / 16
    assert both.skipped == {"decode: E": 3, "map: E": 5}
    assert (both.restarts, both.lost) == (4, {"tcp://cpu1:7880": 1.5})
    assert [each.name for each in both.stages] == ["between stages", "tar", "decode", "writing batches"]
    assert both.stages[1] == StageStats("tar", 2.0, 2.0 / 8.5, 50, True, 800)
    assert both.stages[2] == StageStats("decode", 5.5, 5.5 / 8.5, 50)


@pytest.mark.parametrize(("cpu_s", "share"), [(0.0, 0.0), (4.0, 0.5), (8.0, 1.0), (9.0, 1.0)])
def test_other_processes_have_a_share_of_all_processors_and_no_more_than_all(cpu_s, share):
    assert measured(elsewhere_s=3.0, others_cpu_s=cpu_s).others_share == share
