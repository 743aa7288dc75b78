"""States of epochs that are made even: what was taken ahead of the program comes again."""

import contextlib
import warnings
from itertools import islice

import pytest

from mpwds import DataPipeline, MultiLoader
from mpwds.loader import even
from tests.loader.jobs import as_json, as_lists
from tests.loader.ranks.simulated_ranks import AlikeRanks, LongerRanks

pytestmark = pytest.mark.usefixtures("quick_workers")


@pytest.fixture(autouse=True)
def _two_ranks(at_rank, monkeypatch):
    at_rank(0, 2)
    monkeypatch.setattr(even, "TorchRanks", AlikeRanks)


def is_even(number):
    return number % 2 == 0


def unknown(**options):
    """A loader whose number of batches nobody knows; there are 14, of all even numbers, on this rank."""
    dataset = DataPipeline(range(80)).select(is_even).batched(3)
    return MultiLoader(dataset, output="numpy", **options)


def left(loader, number):
    iterator = iter(loader)
    return as_lists(iterator, number), as_json(loader.state_dict()), as_lists(iterator)


def rest(loader, state):
    loader.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is run again from its start
        return as_lists(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("even", ["drop", "pad", "wrap"])
@pytest.mark.parametrize("number", [0, 1, 3, 12])  # of 14, so the last two are taken at once
def test_batches_taken_ahead_come_again(workers, even, number):
    with unknown(workers=workers, even=even) as loader:
        first, state, others = left(loader, number)
        assert len(first) == number
        assert others != []
    with unknown(workers=workers, even=even) as loader:
        assert rest(loader, state) == others
        assert len(list(loader)) == number + len(others)


@pytest.mark.parametrize("way", ["drop", "pad", "wrap"])
@pytest.mark.parametrize("number", [0, 2, 5, 9])
def test_so_do_those_of_stages_behind_the_workers(way, number):
    with unknown(workers=0, even=way).rebatched(4, shuffle=8) as loader:
        first, state, others = left(loader, number)
        assert (len(first), len(others) > 0) == (number, True)
    with unknown(workers=0, even=way).rebatched(4, shuffle=8) as loader:
        assert rest(loader, state) == others


def test_states_of_such_stages_follow_each_other():
    def loader():
        return unknown(workers=0, even="drop").rebatched(4, shuffle=8)

    _, state, others = left(loader(), 2)
    (again := loader()).load_state_dict(state)
    second, state, last = left(again, 3)
    assert [*second, *last] == others
    assert rest(loader(), state) == last


@pytest.mark.parametrize("bad", range(4, 12))
def test_an_error_in_what_is_taken_ahead_leaves_the_state_at_the_batch_before(bad):
    failing = [bad]

    def fails_once(batch):
        if batch.min() // 6 in failing:
            raise OSError(f"no batch {failing.pop()}")
        return batch

    def loader():
        return unknown(workers=0, even="drop").map(fails_once).rebatched(4, shuffle=8)

    begun, seen = loader(), []
    with pytest.raises(OSError, match=f"no batch {bad}"):
        seen += (batch.tolist() for batch in begun)
    assert [*seen, *rest(loader(), begun.state_dict())] == as_lists(loader())


@pytest.mark.parametrize("way", ["pad", "wrap"])
@pytest.mark.parametrize("number", [3, 5, 6])
def test_an_epoch_may_be_gone_on_with_where_batches_were_repeated(way, number, at_rank):
    at_rank(1, 2)

    def loader():
        # Rank 0 has 6 batches, this one 5, by elements that are dealt one by one.
        return MultiLoader(DataPipeline(range(11)), workers=0, even=way, output="numpy")

    whole = [int(number) for number in loader()]
    assert len(whole) == 6
    iterator = iter(begun := loader())
    seen = [int(element) for element in islice(iterator, number)]
    state = begun.state_dict()
    assert seen == whole[:number]
    other = loader()
    other.load_state_dict(state)
    with pytest.warns(match="had nothing left") if number == 6 else contextlib.nullcontext():
        remaining = [int(element) for element in other]
    assert len(remaining) == 6 - number
    assert [*seen, *remaining][:5] == whole[:5]


@pytest.mark.parametrize("way", ["pad", "wrap"])
def test_an_epoch_that_goes_on_with_repeats_is_not_said_to_be_empty(way, monkeypatch):
    def loader():
        return unknown(workers=0, even=way).rebatched(4)  # of 40 elements

    monkeypatch.setattr(even, "TorchRanks", LongerRanks)
    begun = loader()
    assert len(list(islice(begun, 12))) == 12
    state = begun.state_dict()
    assert state["repeated"] == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (other := loader()).load_state_dict(state)
        assert len(list(islice(other, 3))) == 3


def test_the_state_behind_the_last_batch_is_the_start_of_the_next_epoch():
    loader = unknown(workers=0, even="drop")
    assert len(list(loader)) == 14
    assert loader.state_dict()["epoch"] == 1
