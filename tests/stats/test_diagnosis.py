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
    counts = (batches, 64 * batches, 10**6 * batches)
    times = (active_s, waiting_s, cpu_s, queued_s)
    return WorkerStats(index, 100 + index, *counts, *times, {}, 0, tuple(stages))


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


def several(count, **options):
    return [worker(index, **options) for index in range(count)]


def of_stages(shares, **more):
    return stats(worker(0, shares=shares), **more)


def of_server(index, lost_s=0.0, **options):
    return replace(worker(index, **options), server=f"tcp://cpu{index}:7880", lost_s=lost_s)


WAITS = "the trainer waits 62% of the time; "
WAITS_MOST = "the trainer waits 71% of the time; "
CROP = "stage map(crop) takes 70% of worker time: add workers or make it faster"
STEP = "of the time: the training step is the bound; "
WHOLE = {
    "a slow stage": (stats(), WAITS + CROP),
    "a stage that waits": (
        stats(worker(0, cpu_s=4.0), worker(1, cpu_s=5.0)),
        f"{WAITS}stage map(crop) takes 70% of worker time: add workers or let its calls overlap "
        "by map(f, threads=16), as they wait more than they compute",
    ),
    "epochs of one batch": (
        stats(batches=10, epochs=10, waited_s=0.0, first_batch_s=30.0),
        "not enough data yet: 10 batches in 40.0 s, of which the first batches of 10 epochs took 30.0: make "
        "epochs longer, by repeat(n)",
    ),
    "a stage whose threads wait": (
        stats(worker(cpu_s=1.0, shares={"map(f, threads=16)": 1.0})),
        f"{WAITS}stage map(f, threads=16) takes 100% of worker time: add workers or give it more threads, as "
        "its calls wait more than they compute",
    ),
    "a stage that waits as much as it computes": (
        stats(worker(0, cpu_s=5.0), worker(1, cpu_s=5.0)),
        WAITS + CROP,
    ),
    "a stage that waits for a processor": (
        stats(worker(0, cpu_s=4.0, queued_s=2.5), worker(1, cpu_s=4.0, queued_s=2.5)),
        WAITS + CROP,
    ),
    "a slow worker that holds nobody back, and a slow stage": (
        stats(worker(0), worker(1), worker(2, batches=100), in_order=False),
        f"{WAITS}{CROP}; worker 2 (pid 102) takes 100 ms a batch, the others 10: see what is in its shards",
    ),
    "the training step": (
        stats(*several(4, waiting_s=7.0), waited_s=0.2),
        f"workers wait for the trainer 70% {STEP}2 of 4 workers would do",
    ),
    "the training step, as workers are done early": (
        stats(*several(2, active_s=1.0), waited_s=0.2),
        f"workers wait for the trainer 90% {STEP}1 of 2 workers would do",
    ),
    "too few batches": (stats(batches=3), "not enough data yet: 3 batches in 10.5 s"),
    "almost enough batches": (stats(batches=4), "not enough data yet: 4 batches in 10.5 s"),
    "one batch": (stats(batches=1), "not enough data yet: 1 batch in 10.5 s"),
    "no batch": (stats(batches=0), "not enough data yet: 0 batches"),
    "just enough batches": (stats(batches=5), WAITS + CROP),
    "too little time": (
        stats(waited_s=0.1, received_s=0.0, elsewhere_s=0.09),
        "not enough data yet: 1,000 batches in 0.7 s",
    ),
    "just enough time": (stats(waited_s=0.15, received_s=0.0, elsewhere_s=0.06), f"{WAITS_MOST}{CROP}"),
    "a first batch of a second, which is not long": (
        stats(batches=3, waited_s=0.1, received_s=0.0, elsewhere_s=0.1, first_batch_s=1.0),
        "not enough data yet: 3 batches in 1.2 s",
    ),
    "a first batch that took long": (
        stats(batches=3, waited_s=0.1, received_s=0.0, elsewhere_s=0.1, first_batch_s=4.0),
        "not enough data yet: 3 batches in 4.2 s, of which the first took 4.0, in which workers start: keep "
        "the loader for all epochs",
    ),
    "a first batch that took no longer than two times the others": (
        stats(batches=3, waited_s=2.0, received_s=0.0, elsewhere_s=0.0, first_batch_s=4.0),
        "not enough data yet: 3 batches in 6.0 s",
    ),
    "small batches that are received": (
        stats(received_s=4.0, nbytes=500 * MANY, samples=MANY),
        "receiving takes 40% of the trainer's time: batches have 1 sample and 0.5 kB: make them larger",
    ),
    "batches of several samples that are received": (
        stats(received_s=4.0, nbytes=1500 * MANY, samples=2 * MANY),
        "receiving takes 40% of the trainer's time: batches have 2 samples and 1.5 kB: make them larger",
    ),
    "one batch that is kept": (
        stats(received_s=4.0, batches=6, private_copies=1),
        "receiving takes 40% of the trainer's time: 1 batch was copied out of shared memory, as many are "
        "kept: drop them sooner, or raise prefetch",
    ),
    "the training step, without workers": (
        stats(worker(0), in_process=True, waited_s=0.2),
        "the training step is the bound: making batches takes 2% of the time",
    ),
    "stages behind the loader": (
        stats(*several(2, waiting_s=8), waited_s=0.3, stages_s=6.0),
        "the trainer waits 3% of the time; the stages after the loader are the bound: they take 60% of the "
        "trainer's time: have the workers do more of it, or take rebatched(m, shuffle=n) in place of "
        "unbatched, shuffle and batched",
    ),
    "stages behind the loader, without workers": (
        stats(worker(0), in_process=True, waited_s=0.3, stages_s=6.0),
        "the trainer waits 3% of the time; the stages after the loader are the bound: they take 60% of the "
        "trainer's time: take workers, and have them do more of it, or take rebatched(m, shuffle=n) in place "
        "of unbatched, shuffle and batched",
    ),
    "stages behind the loader, and some waiting": (
        stats(waited_s=2.0, stages_s=6.0),
        "the trainer waits 20% of the time; the stages after the loader are the bound: they take 60% of the "
        "trainer's time: have the workers do more of it, or take rebatched(m, shuffle=n) in place of "
        "unbatched, shuffle and batched",
    ),
    "a balance": (
        stats(worker(0, waiting_s=1.0), waited_s=0.3),
        "balanced: the trainer waits 3% of the time, the workers 10%: a faster training step would wait for "
        "data",
    ),
    "one worker, of which there are no fewer": (
        stats(worker(0, waiting_s=9.0), waited_s=0.2),
        "workers wait for the trainer 90% of the time: the training step is the bound",
    ),
    "storage": (
        of_stages({"tarfile_to_samples()": 0.9, "map(f)": 0.1}),
        f"{WAITS}storage: tarfile_to_samples() takes 90% of worker time: add workers or read from faster "
        "storage (cache_dir= keeps copies of shards that are elsewhere)",
    ),
    "writing batches": (
        of_stages({"writing batches": 0.9, "map(f)": 0.1}),
        f"{WAITS}collation into shared memory takes 90% of worker time: add workers or send less: uint8 in "
        "place of float32, converted on the device",
    ),
    "workers without shards": (
        stats(worker(0), worker(1, batches=0), worker(2, batches=0)),
        f"{WAITS}2 of 3 workers have sent nothing: there are fewer shards than workers, or their first "
        "batches take long",
    ),
    "too many workers for the processors": (
        stats(*several(4, cpu_s=3.0, queued_s=6.0), cores=2),
        f"{WAITS}workers queue 60% of their time for one of 2 processors, so more would not help; stage "
        "map(crop) takes 70% of worker time: make it faster",
    ),
    "a slow worker for which others wait": (
        stats(*several(3, waiting_s=8.0, batches=100), worker(3, batches=100)),
        f"{WAITS}worker 3 (pid 103) takes 100 ms a batch, the others 20, which wait for their turn 80% of "
        "the time: see what is in its shards, or let the others go on by in_order=False",
    ),
    "workers that wait in turn": (
        stats(*several(2, waiting_s=5.0)),
        f"{WAITS}the workers wait 50% of their time, as batches take unequal time: raise prefetch, or take "
        "in_order=False",
    ),
    "servers that do not answer": (
        stats(of_server(0, 12.0), of_server(1, 75.0), of_server(2, 0.0)),
        "no answer from tcp://cpu0:7880 for 12 s, from tcp://cpu1:7880 for 1 min 15 s: their workers make "
        "nothing until they are back",
    ),
    "one server that does not answer": (
        stats(of_server(0), of_server(1, 75.0)),
        "no answer from tcp://cpu1:7880 for 1 min 15 s: its workers make nothing until it is back",
    ),
    "a slow worker of one of several servers": (
        stats(of_server(0), of_server(1), of_server(2, batches=100), in_order=False),
        f"{WAITS}{CROP}; worker 2 of tcp://cpu2:7880 (pid 102) takes 100 ms a batch, the others 10: see what "
        "is in its shards",
    ),
    "a slow worker of the only server": (
        stats(
            *(replace(each, server="tcp://cpu0:7880") for each in (worker(0), worker(1, batches=100))),
            in_order=False,
        ),
        f"{WAITS}{CROP}; worker 1 (pid 101) takes 100 ms a batch, the others 10: see what is in its shards",
    ),
    "a slow worker beside the trainer and a server": (
        stats(of_server(0), worker(1, batches=100), in_order=False),
        f"{WAITS}{CROP}; worker 1 (pid 101) takes 100 ms a batch, the others 10: see what is in its shards",
    ),
}


@pytest.mark.parametrize(("figures", "verdict"), WHOLE.values(), ids=WHOLE)
def test_the_verdict_names_what_bounds_the_training(figures, verdict):
    assert figures.verdict == verdict


OF_STORAGE = StageStats("tarfile_to_samples()", 9.0, 1.0, 100, storage=True, nbytes=180_000_000)
ADVICE = {
    "storage and its rate": (
        stats(replace(worker(0, active_s=9.0), stages=(OF_STORAGE,))),
        "storage: tarfile_to_samples() takes 100% of worker time at 20 MB/s each",
    ),
    "a dataset": (
        of_stages({"the dataset": 1.0}, nbytes=200 * MANY),
        "; the dataset takes 100% of worker time: add workers or make it faster",
    ),
    "batches that are too small": (
        of_stages({"writing batches": 0.8, "map(f)": 0.2}, nbytes=200 * MANY, samples=2 * MANY),
        "batches have 2 samples and 0.2 kB, and take longer to send than to make: make them larger",
    ),
    "no workers": (
        stats(worker(0), in_process=True),
        "stage map(crop) takes 70% of worker time: take workers$",
    ),
    "workers to spare, of which a fifth is kept": (
        stats(*several(8, waiting_s=7.5), waited_s=0.2),
        "3 of 8 workers would do$",
    ),
    "processors that are all busy": (
        stats(cores=2),
        "add workers (on more than 2 processors, which are all busy)",
    ),
    "workers that wait in any order": (
        stats(*several(2, waiting_s=5.0), in_order=False),
        "raise prefetch$",
    ),
    "stages behind the loader that take less than the training step": (
        stats(*several(2, waiting_s=8), waited_s=0.3, stages_s=4.0),
        "the training step is the bound",
    ),
}


@pytest.mark.parametrize(("figures", "said"), ADVICE.values(), ids=ADVICE)
def test_the_verdict_advises_for_what_takes_the_time(figures, said):
    """``$`` stands for its end."""
    assert said in f"{figures.verdict}$"


def test_nothing_stands_in_place_of_stages_that_are_not_known():
    at_first = stats(replace(worker(batches=0), stages=()), batches=0)
    assert all(str(at_first).splitlines())


def test_what_can_be_gained_is_no_more_than_the_trainer_waits():
    said = "the trainer waits 14% of the time, the most that can be gained; stage map(crop) takes 70%"
    assert stats(waited_s=1.4).verdict.startswith(said)
    assert "gained" not in stats(waited_s=5.1).verdict


def test_processors_that_other_processes_hold():
    held = stats(*[worker(index, queued_s=4.0) for index in range(8)], others_cpu_s=40.0)
    assert "for one of 8 processors, 50% of whose time other processes take, so more" in held.verdict
    assert "other processes take 50% of the 8 processors" in str(held)
    assert "busy, 50% of whose time other processes take)" in stats(cores=4, others_cpu_s=20.0).verdict
    alone = stats(*[worker(index, queued_s=4.0) for index in range(8)], others_cpu_s=7.0)
    assert "other processes" not in alone.verdict + str(alone)
    assert "other processes take 100% of the 8 processors" in str(stats(others_cpu_s=999.0))


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


def test_a_slow_worker_holds_nobody_back_where_others_take_no_turns():
    slow, fast = worker(3, batches=100), several(3, waiting_s=8.0, batches=100)
    assert "worker 3" not in stats(*fast, slow, in_order=False).verdict


@pytest.mark.parametrize("in_order", [True, False])
def test_a_slow_worker_that_the_others_have_left_alone(in_order):
    slow, fast = worker(2, batches=100), [worker(index, batches=100, active_s=1.0) for index in range(2)]
    assert stats(*fast, slow, in_order=in_order).verdict == (
        "the trainer waits 62% of the time; worker 2 (pid 102) takes 100 ms a batch, the others 10, which "
        "had done all of theirs for the last 90% of its time: see what is in its shards"
    )


def test_that_a_slow_worker_was_started_again_is_said():
    fast = [worker(index, waiting_s=8.0, batches=100) for index in range(3)]
    for restarts, said in (1, "pid 103, once started again"), (3, "pid 103, 3 times started again"):
        slow = replace(worker(3, batches=100), restarts=restarts)
        assert f"worker 3 ({said}) takes 100 ms a batch" in stats(*fast, slow).verdict


def test_a_worker_that_has_more_to_do_is_not_slow():
    busy, done = worker(0, batches=1000), worker(1, batches=100, active_s=1.0)
    assert "worker 0" not in stats(busy, done).verdict
