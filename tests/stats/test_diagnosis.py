"""The line that says what bounds the training, for figures as they come."""

from dataclasses import replace

import pytest

from mpwds.stats.measures import StageStats, WorkerStats
from mpwds.stats.report import LoaderStats

MANY = 1000


def worker(index=0, waiting_s=0.0, batches=MANY, cpu_s=10.0, queued_s=0.0, active_s=10.0, shares=None):
    working_s = active_s - waiting_s
    stages = [
        StageStats(name, share * working_s, share, batches, name == "tarfile_to_samples()")
        for name, share in (shares or {"map(crop)": 0.7, "writing batches": 0.3}).items()
    ]
    return WorkerStats(
        index,
        100 + index,
        batches,
        64 * batches,
        10**6 * batches,
        active_s,
        waiting_s,
        cpu_s,
        queued_s,
        {},
        0,
        tuple(stages),
    )


def stats(*workers, waited_s=6.2, received_s=0.1, stages_s=0.0, batches=MANY, **more):
    given = LoaderStats(
        epoch=0,
        first_batch_s=0.5,
        waited_s=waited_s,
        received_s=received_s,
        elsewhere_s=10 - waited_s - received_s - stages_s,
        stages_s=stages_s,
        batches=batches,
        samples=64 * batches,
        nbytes=10**6 * batches,
        batches_per_s=batches / 10,
        samples_per_s=64 * batches / 10,
        bytes_per_s=10**5 * batches,
        private_copies=0,
        in_order=True,
        in_process=False,
        cores=8,
        workers=workers or (worker(0), worker(1)),
    )
    return replace(given, **more)


def test_a_trainer_that_is_busy_with_the_stages_behind_the_loader():
    waiting = [worker(index, waiting_s=8) for index in range(2)]
    verdict = stats(*waiting, waited_s=0.3, stages_s=6.0).verdict
    assert verdict.startswith("the trainer waits 3% of the time; the stages behind the loader are the bound")
    assert "they take 60% of the trainer's time" in verdict


def test_stages_behind_the_loader_that_take_less_than_the_training_step_are_not_the_bound():
    waiting = [worker(index, waiting_s=8) for index in range(2)]
    verdict = stats(*waiting, waited_s=0.3, stages_s=4.0).verdict
    assert "the training step is the bound" in verdict


def test_a_trainer_that_waits_for_a_stage():
    assert stats().verdict == (
        "the trainer waits 62% of the time; stage map(crop) takes 70% of worker time: add workers or make it "
        "faster"
    )


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        (
            {"decode('rgb8')": 0.8, "map(f)": 0.2},
            "stage decode('rgb8') takes 80% of worker time: add workers or make it faster",
        ),
        (
            {"tarfile_to_samples()": 0.9, "map(f)": 0.1},
            "storage: tarfile_to_samples() takes 90% of worker time: add workers or read from faster",
        ),
        ({"the dataset": 1.0}, "the dataset takes 100% of worker time: add workers or make it faster"),
        (
            {"writing batches": 0.9, "map(f)": 0.1},
            "collation into shared memory takes 90% of worker time: add workers or send less: uint8",
        ),
    ],
)
def test_advice_is_for_what_takes_the_time(shares, said):
    assert said in stats(worker(0, shares=shares)).verdict


def test_what_can_be_gained_is_no_more_than_the_trainer_waits():
    said = "the trainer waits 14% of the time, and no more can be gained; stage map(crop) takes 70%"
    assert stats(waited_s=1.4).verdict.startswith(said)
    assert "gained" not in stats(waited_s=5.1).verdict


def test_storage_is_named_with_its_rate():
    stage = StageStats("tarfile_to_samples()", 9.0, 0.9, 100, storage=True, nbytes=180_000_000)
    assert (
        "storage: tarfile_to_samples() takes 100% of worker time at 20 MB/s each"
        in stats(replace(worker(0, active_s=9.0), stages=(replace(stage, share=1.0),))).verdict
    )


def test_processors_that_other_processes_hold():
    held = stats(*[worker(index, queued_s=4.0) for index in range(8)], others_cpu_s=40.0)
    assert "for one of 8 processors, 50% of whose time other processes take, so more" in held.verdict
    assert "other processes take 50% of the 8 processors" in str(held)
    assert "busy, 50% of whose time other processes take)" in stats(cores=4, others_cpu_s=20.0).verdict
    alone = stats(*[worker(index, queued_s=4.0) for index in range(8)], others_cpu_s=7.0)
    assert "other processes" not in alone.verdict + str(alone)


def test_servers_that_do_not_answer():
    away = replace(worker(1), server="tcp://cpu2:7880", lost_s=75.0)
    here = replace(worker(0), server="tcp://cpu1:7880", shard="s3://data/train-3.tar")
    lost = stats(here, away)
    assert lost.verdict == (
        "no answer from tcp://cpu2:7880 for 1 min 15 s: its workers make nothing until it is back"
    )
    assert "tcp://cpu2:7880 (no answer for 1 min 15 s)" in str(lost)
    assert "train-3.tar" in str(lost)


def test_workers_that_would_do_have_a_fifth_to_spare():
    idle = [worker(index, waiting_s=7.5) for index in range(8)]
    assert stats(*idle, waited_s=0.2).verdict.endswith("3 of 8 workers would do")


def test_a_slow_worker_that_waits_itself_holds_nobody_up():
    others = [worker(index, waiting_s=8.0) for index in range(3)]
    assert "wait for their turn" in stats(*others, worker(3, waiting_s=3.9)).verdict
    assert "wait for their turn" not in stats(*others, worker(3, waiting_s=4.5)).verdict
    done = [worker(index, active_s=1.0) for index in range(3)]
    assert "had done all of theirs" in stats(*done, worker(3)).verdict
    assert "had done all of theirs" not in stats(*done, worker(3, waiting_s=2.0)).verdict


def test_a_few_private_copies_are_not_what_receiving_takes():
    assert "copied out" in stats(received_s=4.0, waited_s=1.0, private_copies=200).verdict
    assert "copied out" not in stats(received_s=4.0, waited_s=1.0, private_copies=50).verdict


def test_other_programs_take_no_more_than_there_is():
    assert "other processes take 100% of the 8 processors" in str(stats(others_cpu_s=999.0))


def test_a_training_step_that_is_the_bound():
    busy = [worker(index, waiting_s=7.0) for index in range(4)]
    assert stats(*busy, waited_s=0.2).verdict == (
        "workers wait for the trainer 70% of the time: the training step is the bound; 2 of 4 workers would "
        "do"
    )


def test_workers_that_are_done_early_can_be_spared():
    done = [worker(index, active_s=1.0) for index in range(2)]
    assert stats(*done, waited_s=0.2).verdict == (
        "workers wait for the trainer 90% of the time: the training step is the bound; 1 of 2 workers would "
        "do"
    )


def test_a_balance():
    verdict = stats(worker(0, waiting_s=1.0), waited_s=0.3).verdict
    assert verdict.startswith("balanced: the trainer waits 3% of the time, the workers 10%")


def test_too_little_to_judge():
    assert stats(batches=3).verdict == "not enough data yet: 3 batches in 10.5 s"


def test_workers_that_take_long_to_start():
    verdict = stats(batches=3, waited_s=0.1, received_s=0.0, elsewhere_s=0.1, first_batch_s=4.0).verdict
    assert "of which the first took 4.0" in verdict


def test_a_slow_worker_holds_the_others_back_where_they_take_turns():
    slow, fast = worker(3, batches=100), [worker(index, waiting_s=8.0, batches=100) for index in range(3)]
    verdict = stats(*fast, slow).verdict
    assert "worker 3 (pid 103) takes 100 ms a batch, the others 20" in verdict
    assert "in_order=False" in verdict
    assert "worker 3" not in stats(*fast, slow, in_order=False).verdict


@pytest.mark.parametrize("in_order", [True, False])
def test_a_slow_worker_that_the_others_have_left_alone(in_order):
    slow, fast = worker(2, batches=100), [worker(index, batches=100, active_s=1.0) for index in range(2)]
    assert stats(*fast, slow, in_order=in_order).verdict == (
        "the trainer waits 62% of the time; worker 2 (pid 102) takes 100 ms a batch, the others 10, which "
        "had done all of theirs for the last 90% of its time: see what is in its shards"
    )


def test_a_slow_worker_that_holds_nobody_back_is_named_beside_what_takes_the_time():
    slow, fast = worker(2, batches=100), [worker(index) for index in range(2)]
    assert stats(*fast, slow, in_order=False).verdict == (
        "the trainer waits 62% of the time; stage map(crop) takes 70% of worker time: add workers or make it "
        "faster; worker 2 (pid 102) takes 100 ms a batch, the others 10: see what is in its shards"
    )


def test_that_a_slow_worker_was_started_again_is_said():
    fast = [worker(index, waiting_s=8.0, batches=100) for index in range(3)]
    for restarts, said in (1, "pid 103, once started again"), (3, "pid 103, 3 times started again"):
        slow = replace(worker(3, batches=100), restarts=restarts)
        assert f"worker 3 ({said}) takes 100 ms a batch" in stats(*fast, slow).verdict


def test_a_worker_that_has_more_to_do_is_not_slow():
    busy, done = worker(0, batches=1000), worker(1, batches=100, active_s=1.0)
    assert "worker 0" not in stats(busy, done).verdict


def test_workers_that_wait_in_turn():
    waiting = [worker(index, waiting_s=5.0) for index in range(2)]
    assert stats(*waiting).verdict.endswith("raise prefetch, or take in_order=False")
    assert stats(*waiting, in_order=False).verdict.endswith("raise prefetch")


def test_workers_without_shards():
    assert "1 of 2 workers have sent nothing" in stats(worker(0), worker(1, batches=0)).verdict


def test_too_many_workers_for_the_processors():
    verdict = stats(*(worker(index, cpu_s=3.0, queued_s=6.0) for index in range(4)), cores=2).verdict
    assert "workers queue 60% of their time for one of 2 processors, so more would not help" in verdict


def test_processors_that_are_all_busy():
    assert "add workers (on more than 2 processors, which are all busy)" in stats(cores=2).verdict


def test_batches_that_are_too_small():
    small = worker(0, shares={"writing batches": 0.8, "map(f)": 0.2})
    verdict = stats(small, nbytes=200 * MANY, samples=2 * MANY).verdict
    assert (
        "batches have 2 samples and 0.2 kB, and take longer to send than to make: make them larger" in verdict
    )


def test_batches_that_are_kept():
    verdict = stats(waited_s=0.5, received_s=5.0, private_copies=900).verdict
    assert "900 batches were copied out of shared memory, as many are kept" in verdict


def test_a_loader_without_workers():
    verdict = stats(worker(0), in_process=True).verdict
    assert verdict.endswith("stage map(crop) takes 70% of worker time: take workers")
