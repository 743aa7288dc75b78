"""What stages after a loader hold goes with its streams to other ranks, and every sample comes once."""

import functools
import itertools
import random

import msgpack
import numpy as np
import pytest

import mpwds
from mpwds import DataPipeline
from mpwds.loader import even
from tests.loader.jobs import RANKS, as_json, as_lists, continued, run_ranks
from tests.loader.ranks.simulated_ranks import AlikeRanks, LongerRanks

pytestmark = pytest.mark.usefixtures("one_fork_server")

SAMPLES = 480


def itself(element):
    return element


def in_random_order(batch):
    rows = batch.tolist()
    random.shuffle(rows)
    return rows


def short_of_some(batch):
    return batch.astype(np.int32) if batch.min() > 300 else batch


def is_no_multiple_of_seven(number):
    return number % 7


def is_odd_or_early(number):
    return number % 2 or number < 150


class HoldsOne:
    """A user's stage that does not say that it takes what others held."""

    def stream(self, source, context):
        return HoldingStream(source)


class HoldingStream(mpwds.WrappedStream):
    def __next__(self):
        return next(self._source)

    def state_dict(self):
        return {**super().state_dict(), "held": []}


POOLS = {
    "rebatched": lambda loader: loader.rebatched(4, shuffle=40),
    "rebatched in order": lambda loader: loader.rebatched(5),
    "unbatched, shuffled and batched": lambda loader: loader.unbatched().shuffle(30).batched(4),
    "other columns": lambda loader: loader.map(short_of_some).unbatched().shuffle(30).batched(4),
    "shuffled batches": lambda loader: loader.shuffle(7),
    "rows": lambda loader: loader.unbatched().map(itself).shuffle(25),
    "batches of rows": lambda loader: loader.unbatched().map(itself).batched(4),
    "buckets": lambda loader: loader.unbatched().bucketed(int, [50, 200], 3, collation_fn=np.array),
    "filter": lambda loader: loader.unbatched().select(is_no_multiple_of_seven).batched(3),
    "threads": lambda loader: loader.map(itself, threads=3).rebatched(4, shuffle=30),
    "parts at random": lambda loader: loader.flatmap(in_random_order).shuffle(25),
    "run ahead": lambda loader: loader.rebatched(4, shuffle=40).prefetch(3),
    "twice": lambda loader: loader.unbatched().shuffle(20).shuffle(10),
}
NOT_MOVED = {
    "batches of rebatched": lambda loader: loader.rebatched(4).map(itself, threads=3),
    "rows of rebatched": lambda loader: loader.rebatched(4, shuffle=20).unbatched().shuffle(9),
}
ROUND_TRIPS = [
    as_json,
    lambda state: msgpack.unpackb(msgpack.packb(state)),
]


@pytest.fixture
def rank_of(loader_of):
    """Makes the loader of a rank, with stages after it."""
    numbers = DataPipeline(range(SAMPLES)).shuffle(20).batched(3)
    return lambda add, *places, dataset=numbers, **options: loader_of(dataset, *places, after=add, **options)


def taken(loader, most=None):
    """The samples of the next elements."""
    return samples_in([as_lists(loader, most)])


def samples_in(parts):
    return [sample for part in parts for element in part for sample in np.ravel(element).tolist()]


def numbers_of(name):
    return [number for number in range(SAMPLES) if name != "filter" or number % 7]


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, None) for name in POOLS),
        *itertools.product(["rebatched", "filter", "buckets", "run ahead"], ["drop", "pad", "wrap"]),
    ],
)
def test_every_sample_comes_once_on_whatever_ranks_the_job_goes_on(name, way, rank_of, monkeypatch):
    monkeypatch.setattr(even, "TorchRanks", AlikeRanks)  # so no rank ends before another
    draw = random.Random(f"{name} {way}")
    dataset = DataPipeline(range(SAMPLES)).shuffle(20).batched(3)
    if way == "pad":  # and nobody knows its length
        dataset = dataset.select(len)
    make = functools.partial(rank_of, POOLS[name], even=way, dataset=dataset)
    seen, state = [], None
    for _ in range(3):
        ranks, workers = draw.choice(RANKS), draw.choice([0, 0, 1])
        parts, states = run_ranks(make, ranks, draw.randrange(1, 25 // ranks + 2), state, workers)
        seen += samples_in(parts)
        state = mpwds.merge_states([draw.choice(ROUND_TRIPS)(each) for each in states])
    assert sorted(seen + taken(continued(make(workers=2), state))) == numbers_of(name)


@pytest.mark.parametrize("way", ["pad", "wrap"])
def test_other_ranks_do_not_go_on_with_what_one_has_repeated(way, rank_of, monkeypatch):
    dataset = DataPipeline(range(SAMPLES)).select(is_odd_or_early).batched(3)
    rank_of = functools.partial(rank_of, POOLS["rebatched"], even=way, dataset=dataset)
    seen, state = [], None
    for ranks, steps in ((2, 22), (3, 1)):
        states = []
        for rank in range(ranks):
            has_fewer = (rank, ranks) == (0, 2)  # 75 samples, the other has 240
            monkeypatch.setattr(even, "TorchRanks", LongerRanks if has_fewer else AlikeRanks)
            loader = rank_of(rank, ranks)
            if state is not None:
                loader.load_state_dict(state)
            seen += taken(loader, steps)
            states.append(loader.state_dict())
            assert states[-1]["repeated"] == (3 if has_fewer else 0)
        state = mpwds.merge_states(states)
    assert {*seen, *taken(continued(rank_of(), state))} == set(filter(is_odd_or_early, range(SAMPLES)))


@pytest.mark.parametrize("name", POOLS)
def test_on_as_many_ranks_the_order_stays(name, rank_of):
    make = functools.partial(rank_of, POOLS[name])
    undisturbed, _ = run_ranks(make, 2)
    before, after = (3, 2) if name == "rebatched" else (0, 0)  # workers
    begun, states = run_ranks(make, 2, 9, workers=before)
    ended, _ = run_ranks(make, 2, state=as_json(mpwds.merge_states(states[::-1])), workers=after)
    assert [first + second for first, second in zip(begun, ended, strict=True)] == undisturbed


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_have_finished_the_epoch_leave_what_others_hold(ranks, rank_of):
    make = functools.partial(rank_of, POOLS["rebatched"])
    begun, states = run_ranks(make, 2, [None, 20])
    ended, _ = run_ranks(make, ranks, state=mpwds.merge_states(states))
    assert sorted(samples_in(begun + ended)) == list(range(SAMPLES))


@pytest.mark.parametrize("way", [None, "drop", "pad", "wrap"])
def test_other_ranks_begin_the_next_epoch_without_messages(way, rank_of):
    rank_of = functools.partial(rank_of, POOLS["rebatched"], even=way)
    taken(first := rank_of())
    loader, undisturbed = rank_of(0, 2), rank_of(0, 2)
    loader.load_state_dict(first.state_dict())
    undisturbed.set_epoch(1)
    assert taken(loader) == taken(undisturbed)


def test_a_state_that_was_loaded_and_not_used_goes_to_other_ranks_again(rank_of):
    first = rank_of(POOLS["rebatched"])
    seen, state = taken(first, 30), first.state_dict()
    for ranks in (4, 2):
        states = []
        for rank in range(ranks):
            states.append(continued(rank_of(POOLS["rebatched"], rank, ranks), state).state_dict())
        state = mpwds.merge_states(states)
    assert sorted(seen + taken(continued(rank_of(POOLS["rebatched"]), state))) == list(range(SAMPLES))


def test_torchs_distributed_checkpoint_takes_it_to_other_ranks(tmp_path, rank_of):
    import torch.distributed.checkpoint as dcp

    first = rank_of(POOLS["rebatched"])
    seen, state = taken(first, 30), first.state_dict()
    for ranks, most in ((2, 0), (3, None)):
        dcp.save({"loader": state}, checkpoint_id=tmp_path / str(ranks), no_dist=True)
        states = []
        for rank in range(ranks):
            loader = rank_of(POOLS["rebatched"], rank, ranks)
            dcp.load({"loader": loader}, checkpoint_id=tmp_path / str(ranks), no_dist=True)
            seen += taken(loader, most)
            states.append(loader.state_dict())
        state = mpwds.merge_states(states)
    assert sorted(seen) == list(range(SAMPLES))


@pytest.mark.parametrize(
    ("add", "why"),
    [
        (
            lambda loader: loader.map(itself).slice(100).map(itself),
            r"stream 0, which another had: slice\(100\) counts elements",
        ),
        (lambda loader: loader.rebatched(4).with_epoch(90), r"with_epoch\(90\) counts elements of its rank"),
        (
            lambda loader: loader.unbatched().map(itself).batched(4).shuffle(5),
            "cannot be traced to one stream",
        ),
        (lambda loader: loader.compose(iter), "gives elements without addresses"),
        (lambda loader: loader.compose(HoldsOne()), "HoldsOne .* does not say that it takes others'"),
    ],
    ids=["counts", "epoch", "composed", "no addresses", "one of the user's own"],
)
def test_what_other_ranks_cannot_go_on_with_is_refused_with_its_reason(add, why, rank_of):
    _, (state,) = run_ranks(functools.partial(rank_of, add), 1, 10)
    rank_of(add).load_state_dict(state)
    with pytest.raises(ValueError, match=why):
        rank_of(add, 0, 2).load_state_dict(state)


@pytest.mark.parametrize("name", NOT_MOVED)
def test_batches_that_cannot_be_made_again_are_saved_for_as_many_ranks(name, rank_of):
    make = functools.partial(rank_of, NOT_MOVED[name])
    begun, (state,) = run_ranks(make, 1, 5)
    with pytest.warns(UserWarning, match="running the first 5 elements of the epoch again"):
        ended, _ = run_ranks(make, 1, state=state)
    assert sorted(samples_in(begun + ended)) == list(range(SAMPLES))
    with pytest.raises(ValueError, match="cannot be traced to one stream"):
        make(0, 2).load_state_dict(state)


def test_the_state_of_one_rank_is_not_that_of_all_if_others_began_the_epoch(rank_of):
    make = functools.partial(rank_of, POOLS["rebatched"])
    _, (state,) = run_ranks(make, 1, 30)
    _, (first, _) = run_ranks(make, 2, 3, state)
    with pytest.raises(ValueError, match="stream 1, which another had: it is not in the state"):
        make(1, 2).load_state_dict(first)


def test_a_batch_that_could_not_be_made_again_at_once_comes_later(rank_of):
    fails = []

    def fails_once(batch):
        if fails:
            raise OSError(fails.pop())
        return batch

    def add(loader):
        return loader.map(fails_once).rebatched(4, shuffle=40)

    seen, (state,) = run_ranks(functools.partial(rank_of, add), 1, 30)
    seen = samples_in(seen)
    for rank in range(2):
        loader = continued(rank_of(add, rank, 2), state)
        fails.append("for a moment")
        with pytest.raises(OSError, match="for a moment"):
            taken(loader)
        loader.load_state_dict(loader.state_dict())
        seen += taken(loader)
    assert sorted(seen) == list(range(SAMPLES))


def test_the_states_of_all_ranks_are_needed(rank_of):
    _, (state, _) = run_ranks(functools.partial(rank_of, POOLS["rebatched"]), 2, 10)
    with pytest.raises(ValueError, match=r"stream 1, .*not in the state: .*mpwds\.merge_states"):
        rank_of(POOLS["rebatched"]).load_state_dict(state)


def test_an_epoch_that_other_ranks_began_is_not_run_again_from_its_start(rank_of):
    def float_of_some(batch):
        return batch.astype(float) if batch.min() > 400 else batch  # which rebatched refuses

    def add(loader):
        return loader.map(float_of_some).rebatched(4)

    _, (state,) = run_ranks(functools.partial(rank_of, add), 1, 4)
    moved = continued(rank_of(add, 0, 2), state)
    with pytest.raises(ValueError, match="rebatched"):
        taken(moved)
    moved.load_state_dict(moved.state_dict())
    with pytest.raises(ValueError, match=r"from its start .*, and other ranks began it"):
        taken(moved)
