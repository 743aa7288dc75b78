"""Streams of a job: its order, and its states, are those of any number of ranks and workers."""

import functools
import itertools
import os
import random
import signal
import warnings

import numpy as np
import pytest

import mpwds
from mpwds import DataPipeline
from tests.loader.jobs import RANKS, STREAMS, as_json, as_lists, in_turn, left_out_at_random, noisy, run_ranks
from tests.marks import slow

pytestmark = pytest.mark.usefixtures("one_fork_server")


def shuffled(*stages):
    return DataPipeline(range(300)).shuffle(20).compose(*stages).batched(3)


DATASETS = {
    "shuffle": shuffled(),
    "filter and map": shuffled().unbatched().select(lambda number: number % 7 != 3).map(noisy).batched(2),
    "flatmap": DataPipeline(range(240)).flatmap(lambda n: [n] * (1 + n // 12 % 2)).shuffle(9).batched(4),
    "drawn again": DataPipeline(range(50)).repeat(2).shuffle(30).map(noisy).batched(2),
    "generator": shuffled(left_out_at_random),
}


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize(("ranks", "workers"), [(1, 3), (2, 0), (3, 2), (12, 0)])
def test_the_order_does_not_depend_on_ranks_and_workers(name, ranks, workers, loader_of):
    dataset = DATASETS[name]
    whole = as_lists(loader_of(dataset))
    parts, _ = run_ranks(functools.partial(loader_of, dataset), ranks, workers=workers)
    job = in_turn(parts)
    assert job[: 4 * STREAMS] == whole[: 4 * STREAMS]
    assert sorted(map(str, job)) == sorted(map(str, whole))


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("seed", [0, *slow(1, 2)])
def test_a_job_goes_on_with_other_ranks_and_workers_also_where_states_are_missing(name, seed, loader_of):
    make, draw = functools.partial(loader_of, DATASETS[name]), random.Random(f"{name} {seed}")
    whole = as_lists(make())
    job, state = [], None
    for _ in range(3):
        ranks = draw.choice([ranks for ranks in RANKS if len(job) % ranks == 0])
        workers = draw.choice([0, 1, 12 // ranks if ranks > 3 else 3])
        parts, states = run_ranks(make, ranks, draw.randrange(1, 1 + STREAMS // ranks), state, workers)
        job += in_turn(parts)
        if ranks > 1 and draw.random() < 0.3:
            states.pop(draw.randrange(ranks))
        state = as_json(mpwds.merge_states(states))
        assert state["delivered"] == len(job)
    loader = make(workers=2)
    loader.load_state_dict(state)
    job += as_lists(loader)
    assert job[: 4 * STREAMS] == whole[: 4 * STREAMS]
    assert sorted(map(str, job)) == sorted(map(str, whole))


def test_a_stream_whose_state_is_missing_is_made_again_with_one_warning(loader_of):
    whole = as_lists(loader_of(DATASETS["shuffle"]))
    first = loader_of(DATASETS["shuffle"], rank=0, ranks=2)
    as_lists(first, 9)
    state = first.state_dict()
    loader = loader_of(DATASETS["shuffle"])
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="the state of stream 1 is missing") as warnings:
        assert as_lists(loader) == whole[18:]
    assert len(warnings) == 1


def test_ranks_that_cannot_go_on_at_a_batch_are_told_the_next_one(loader_of):
    loader = loader_of(DATASETS["shuffle"], rank=0, ranks=2)
    as_lists(loader, 5)
    state = loader.state_dict()
    with pytest.raises(ValueError, match=r"after 10 batches .* as then \(2\), or a state after 12 batches"):
        loader_of(DATASETS["shuffle"], rank=0, ranks=4).load_state_dict(state)


@pytest.mark.parametrize("workers", [1, 3])
def test_in_any_order_all_samples_come_once_also_after_a_change(workers, loader_of):
    dataset = DATASETS["filter and map"]
    whole = sorted(map(str, as_lists(loader_of(dataset))))
    first = loader_of(dataset, workers=workers, in_order=False)
    job = as_lists(first, 30)
    second = loader_of(dataset, workers=2)
    second.load_state_dict(first.state_dict())
    assert sorted(map(str, job + as_lists(second))) == whole


def test_in_any_order_the_worker_that_is_free_takes_the_next_stream(loader_of):
    """Stream 0 waits until the others are done, which one worker makes then."""
    release, held = os.pipe()

    def wait_in_stream_0(number):
        if number == 0:
            os.read(release, 1)
        return number

    dataset = DataPipeline(range(24)).map(wait_in_stream_0)
    batches = iter(loader_of(dataset, workers=2, in_order=False, start_method="fork"))
    got = [int(next(batches)) for _ in range(22)]
    assert set(got) == set(range(24)) - {0, 12}
    os.write(held, b"x")
    assert [int(batch) for batch in batches] == [0, 12]
    os.close(release)
    os.close(held)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_worker_that_dies_is_replaced_with_all_its_streams(in_order, loader_of):
    dataset = DataPipeline(range(300)).map(lambda n: np.full(9000, noisy(n))).shuffle(20).batched(3)
    whole = as_lists(loader_of(dataset))
    loader = loader_of(dataset, workers=2, in_order=in_order, on_worker_death="restart")
    job = []
    with pytest.warns(match="took its place"):
        for number, batch in enumerate(loader):
            job.append(batch.tolist())
            if number == 20:
                os.kill(loader.worker_pids[0], signal.SIGKILL)
    assert job == whole if in_order else sorted(map(str, job)) == sorted(map(str, whole))


def test_stages_after_a_loader_in_any_order_do_not_run_again_in_another_one(loader_of):
    def loader(in_order):
        return loader_of(DATASETS["shuffle"], workers=1, in_order=in_order).compose(left_out_at_random)

    first = loader(in_order=False)
    as_lists(first, 5)
    state = first.state_dict()
    with pytest.raises(ValueError, match="in_order of the loader changed"):
        loader(in_order=True).load_state_dict(state)


def test_torchs_distributed_checkpoint_keeps_the_streams_by_their_names(tmp_path, loader_of):
    import torch.distributed.checkpoint as dcp

    whole = as_lists(loader_of(DATASETS["shuffle"]))
    loader = loader_of(DATASETS["shuffle"])
    as_lists(loader, 14)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)
    halves = []
    for rank in range(2):
        half = loader_of(DATASETS["shuffle"], rank, 2)
        dcp.load({"loader": half}, checkpoint_id=tmp_path, no_dist=True)
        halves.append(as_lists(half))
    assert in_turn(halves) == whole[14:]


UNEVEN = DataPipeline(range(120)).select(lambda number: number % STREAMS in (1, 3) or number < 60)
"""Streams 1 and 3, which two ranks give to the second, are twice as long as others."""


@pytest.mark.parametrize("way", ["merged", "one by one"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_rank_may_have_finished_the_epoch_that_others_are_in(way, ranks, loader_of):
    """``one by one`` is what torch's distributed checkpoint does: it keeps one of the ranks' values."""
    (first, second), states = run_ranks(functools.partial(loader_of, UNEVEN), 2, 34)
    states = list(map(as_json, states))
    assert [state["epoch"] for state in states] == [1, 0]
    one_by_one = {**states[0], "streams": {**states[0]["streams"], **states[1]["streams"]}}
    state = mpwds.merge_states(states) if way == "merged" else one_by_one
    rest, states = run_ranks(functools.partial(loader_of, UNEVEN), ranks, state=state)
    assert {state["epoch"] for state in states} == {1}
    assert sorted([*first, *second, *itertools.chain(*rest)]) == sorted(as_lists(loader_of(UNEVEN)))


def test_a_rank_that_has_set_the_next_epoch_has_still_finished_the_one_that_others_are_in(loader_of):
    got, states = [], []
    for rank in range(2):
        loader = loader_of(UNEVEN, rank, 2)
        got += map(int, itertools.islice(loader, 34))
        if rank == 0:
            loader.set_epoch(1)
        states.append(loader.state_dict())
    loader = loader_of(UNEVEN)
    loader.load_state_dict(mpwds.merge_states(states))
    assert sorted([*got, *map(int, loader)]) == sorted(map(int, loader_of(UNEVEN)))


def test_the_length_is_that_of_the_ranks_streams(loader_of):
    dataset = DataPipeline(range(100)).batched(3)
    assert [len(loader_of(dataset, rank, 3)) for rank in range(3)] == [
        len(as_lists(loader_of(dataset, rank, 3))) for rank in range(3)
    ]


def test_indexed_samples_take_every_kth_place_of_their_order(loader_of):
    loader = loader_of(DataPipeline(list(range(48))), workers=3)
    assert list(map(int, loader)) == list(range(48))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"streams": 0}, ValueError, "streams must be at least 1, got 0"),
        ({"streams": "many"}, ValueError, "streams must be an integer"),
        ({"streams": 5, "ranks": 2}, ValueError, "streams=5 cannot be dealt to 2 ranks equally"),
        ({"streams": 4, "ranks": 2, "workers": 3}, ValueError, "3 workers for 2 streams of this rank"),
        ({"dataset": lambda: iter([1])}, TypeError, "streams=12 needs a pipeline of mpwds"),
        ({"dataset": DataPipeline(lambda: iter([1])).map(abs)}, TypeError, "lambda.* divides itself among"),
        (
            {"dataset": mpwds.WebDataset("x-{0..3}.tar", nodesplitter=left_out_at_random)},
            TypeError,
            "ShardList.* divides itself among",
        ),
        (
            {"dataset": mpwds.RandomMix([DataPipeline(range(9)), DataPipeline(lambda: iter([1]))])},
            TypeError,
            "lambda.* divides itself among",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options, error, message, loader_of):
    with pytest.raises(error, match=message):
        loader_of(**{"dataset": DataPipeline(range(9)), **options})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda first, second: [], "no states"),
        (lambda first, second: [{"streams": []}], "not that of a loader with streams="),
        (lambda first, second: [first, {**second, "kind": "LoaderPipeline"}], "kind differs"),
        (lambda first, second: [first, {**second, "epoch": 7}], r"epoch differs .*: \[0, 7\]"),
        (lambda first, second: [first, second], r"saved at different steps, after \[3, 4\] batches"),
    ],
)
def test_states_that_do_not_belong_together_are_not_merged(change, message, loader_of):
    _, states = run_ranks(functools.partial(loader_of, DATASETS["shuffle"]), 2, [3, 4])
    with pytest.raises(ValueError, match=message):
        mpwds.merge_states(change(*states))


@pytest.mark.parametrize("epochs", [(0, 1), (0, 2)])
def test_ranks_in_the_middle_of_different_epochs_are_not_merged(epochs, loader_of):
    states = []
    for rank, epoch in enumerate(epochs):
        loader = loader_of(UNEVEN, rank, 2)
        loader.set_epoch(epoch)
        next(iter(loader))
        states.append(loader.state_dict())
    with pytest.raises(ValueError, match=rf"stream 1 is in {epochs[1]}, others in 0"):
        mpwds.merge_states(states)


@pytest.mark.parametrize(("in_order", "before"), [(True, 65), (False, 3)])
def test_ranks_that_began_with_streams_that_were_not_in_step_are_merged(in_order, before, loader_of):
    """Each carries one stream. After 65 batches in order, streams 1 and 3 are left."""
    whole = sorted(map(int, loader_of(UNEVEN)))
    loader = loader_of(UNEVEN, in_order=in_order)
    got = [int(number) for number in itertools.islice(loader, before)]
    state, states = loader.state_dict(), []
    for rank in range(STREAMS):
        loader = loader_of(UNEVEN, rank, STREAMS, in_order=in_order)
        loader.load_state_dict(state)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*had nothing left")
            got += map(int, itertools.islice(loader, 1))
        states.append(loader.state_dict())
    loader = loader_of(UNEVEN)
    loader.load_state_dict(mpwds.merge_states(states))
    assert sorted([*got, *map(int, loader)]) == whole


def test_a_damaged_stream_is_an_error_that_names_it(loader_of):
    loader = loader_of(DATASETS["shuffle"])
    state = loader.state_dict()
    state["streams"]["stream4"] = "not base64!"
    with pytest.raises(ValueError, match="stream4='not base64!'"):
        loader.load_state_dict(state)


def test_a_dataset_that_has_become_shorter_is_an_error_that_names_the_stream(loader_of):
    loader = loader_of(DataPipeline(range(48)))
    as_lists(loader, 30)
    state = loader.state_dict()
    shorter = loader_of(DataPipeline(range(12)).compose(left_out_at_random))
    state["facts"]["dataset"] = shorter.state_dict()["facts"]["dataset"]
    shorter.load_state_dict(state)
    with (
        pytest.warns(UserWarning, match="running it again"),
        pytest.raises(mpwds.MpwdsError, match="stream [0-9]+ made [01] batches, [23] were delivered before"),
    ):
        list(shorter)


def test_another_number_of_streams_is_an_error(loader_of):
    state = loader_of(DATASETS["shuffle"]).state_dict()
    with pytest.raises(ValueError, match="streams of the loader changed .*it was 12, is 6"):
        loader_of(DATASETS["shuffle"], streams=6).load_state_dict(state)
    with pytest.raises(ValueError, match="streams of the loader changed .*it was 12, is None"):
        loader_of(DATASETS["shuffle"], streams=None).load_state_dict(state)


def test_statistics_tell_what_the_shuffle_buffers_of_all_streams_hold(loader_of):
    for sizes, held in (({"size": 20}, 20 * STREAMS // 2), ({"total": 60}, 60 // 2)):
        loader = loader_of(DataPipeline(range(300)).shuffle(**sizes).batched(3), rank=1, ranks=2)
        list(loader)
        stats = loader.stats()
        assert stats.buffered == held
        assert f"shuffle buffers hold up to {held} elements" in str(stats)


def test_in_any_order_streams_that_are_over_hold_up_none_of_the_others(loader_of):
    """The first streams, which the workers would begin with, are over when the state is saved."""
    dataset = DataPipeline(range(300)).select(lambda number: number % STREAMS > 2 or number < STREAMS)
    whole = sorted(map(int, loader_of(dataset)))
    first = loader_of(dataset, workers=2, in_order=False)
    got = [int(number) for number in itertools.islice(first, 60)]
    for workers in (0, 1, 2, 3):
        second = loader_of(dataset, workers=workers, in_order=False)
        second.load_state_dict(first.state_dict())
        assert sorted(got + list(map(int, second))) == whole
