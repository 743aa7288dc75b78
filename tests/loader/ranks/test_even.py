"""Even epochs: every rank delivers the same number of batches, and nothing that others need is lost."""

import itertools
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds import DataPipeline, EvenEpochError, MultiLoader, WebDataset
from mpwds.loader.engine.epoch import EpochIterator
from mpwds.loader.even import EvenIterator, LengthConsensus, RankShard
from mpwds.storage.writing.tar_writer import TarWriter
from tests.loader.ranks.simulated_ranks import AlikeRanks, on_all_ranks

pytestmark = pytest.mark.usefixtures("one_fork_server")

MODES = ["drop", "pad", "wrap"]


class Batches:
    """A rank's part: ``number`` batches, in each pass others; counts how many were taken."""

    def __init__(self, rank, number):
        self.rank = rank
        self.number = number
        self.taken = 0

    def __call__(self, a_pass):
        for batch in range(self.number):
            self.taken += a_pass == 0
            yield [self.rank, a_pass, batch]

    def expected(self, even, target):
        endless = ([self.rank, a_pass, batch] for a_pass in itertools.count() for batch in range(self.number))
        own = [[self.rank, 0, batch] for batch in range(self.number)]
        if even == "pad":
            return own + own[-1:] * (target - len(own))
        return list(itertools.islice(endless, target))


def agreed_epoch(ranks, batches, even, window, epoch=0):
    part = RankShard(batches, even)
    return EvenIterator(part, LengthConsensus(ranks, part.look_ahead, even, epoch, None, window))


def epochs_of_ranks(numbers, even, window):
    parts = [Batches(rank, number) for rank, number in enumerate(numbers)]

    def run(ranks):
        part = parts[ranks.rank]
        epoch = agreed_epoch(ranks, part, even, window)
        delivered = []
        for batch in epoch:
            delivered.append(list(batch))
            assert 0 <= part.taken - len(delivered) + max(0, len(delivered) - part.number) <= window
            batch.clear()  # the training loop may do with a batch what it likes
        return delivered

    return parts, on_all_ranks(len(numbers), run)


@settings(deadline=None, max_examples=150)
@given(
    numbers=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    even=st.sampled_from(MODES),
    window=st.integers(1, 5),
)
def test_all_ranks_deliver_as_many_batches_and_each_its_own_first(numbers, even, window):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts, delivered = epochs_of_ranks(numbers, even, window)
    if even != "drop" and min(numbers) == 0 < max(numbers):
        assert all(
            isinstance(error, EvenEpochError) and "no batch at all" in str(error) for error in delivered
        )
        return
    target = min(numbers) if even == "drop" else max(numbers)
    assert delivered == [part.expected(even, target) for part in parts]


def test_a_rank_that_fails_ends_the_epoch_on_all_ranks_at_the_same_batch():
    def failing(a_pass):
        yield from ("a", "b")
        raise OSError("disk on fire")

    def run(ranks):
        source = failing if ranks.rank == 1 else Batches(ranks.rank, 9)
        epoch = agreed_epoch(ranks, source, "pad", 1)
        seen = 0
        try:
            for _ in epoch:
                seen += 1
        except Exception as error:
            return seen, error

    (seen, error), (seen_where_it_failed, failure) = on_all_ranks(2, run)
    assert seen == seen_where_it_failed
    assert isinstance(failure, OSError)
    assert isinstance(error, EvenEpochError)
    assert "rank 1 failed" in str(error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([{"even": "drop"}, {"even": "pad"}], "differ in even, from drop to pad"),
        ([{"epoch": 4}, {"epoch": 5}], "differ in epoch, from 4 to 5"),
    ],
)
def test_ranks_with_other_arguments_are_told_so_all_of_them(arguments, message):
    def run(ranks):
        given = {"even": "drop", "window": 2, "epoch": 0, **arguments[ranks.rank]}
        return list(agreed_epoch(ranks, Batches(ranks.rank, 9), **given))

    for error in on_all_ranks(2, run):
        with pytest.raises(EvenEpochError, match=message):
            raise error


def test_a_rank_that_left_an_epoch_early_ends_all_ranks_in_place_of_a_hang():
    def run(ranks):
        first = agreed_epoch(ranks, Batches(ranks.rank, 9), "drop", 2)
        for number, _ in enumerate(first, 1):
            if number == 4 and ranks.rank == 1:
                break
        return list(agreed_epoch(ranks, Batches(ranks.rank, 9), "drop", 2, epoch=1))

    for error in on_all_ranks(2, run):
        with pytest.raises(EvenEpochError, match="one has left an epoch early"):
            raise error


def test_ranks_that_all_leave_at_the_same_batch_go_on_with_the_next_epoch():
    def run(ranks):
        first = agreed_epoch(ranks, Batches(ranks.rank, 9), "drop", 2)
        next(first)
        next(first)
        return len(list(agreed_epoch(ranks, Batches(ranks.rank, 5 + ranks.rank), "drop", 2, epoch=1)))

    assert on_all_ranks(2, run) == [5, 5]


@pytest.mark.parametrize("even", MODES)
def test_where_no_rank_has_anything_there_is_nothing_to_complain_about(even):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, delivered = epochs_of_ranks([0, 0], even, 2)
    assert delivered == [[], []]


@pytest.mark.parametrize("even", MODES)
@pytest.mark.parametrize("before", range(7))
def test_an_epoch_that_is_gone_on_with_ends_where_it_would_have(before, even):
    numbers = [3, 6]

    def run(ranks):
        batches = Batches(ranks.rank, numbers[ranks.rank])
        part = RankShard(
            lambda number: itertools.islice(batches(number), 0 if number else before, None), even
        )
        agreement = LengthConsensus(ranks, part.look_ahead, even, 0, timeout=None)
        return list(EvenIterator(part, agreement, delivered=before))

    target = 3 if even == "drop" else 6
    before = min(before, target)
    found = on_all_ranks(2, run)
    assert [len(batches) for batches in found] == [target - before] * 2
    assert found[1] == [[1, 0, batch] for batch in range(before, target)]


@pytest.mark.parametrize("really", [2, 4])
def test_a_part_of_another_length_than_was_counted_is_an_error(really):
    part = RankShard(lambda number: iter(range(really)), "drop", counted=3)
    with pytest.raises(EvenEpochError, match="but 3 were counted"):
        list(EvenIterator(part, lambda delivered: 3 - delivered))


def test_after_an_error_the_iteration_is_over():
    epoch = EvenIterator(
        RankShard(lambda number: iter("a"), "drop", counted=2), lambda delivered: 2 - delivered
    )
    assert next(epoch) == "a"
    with pytest.raises(EvenEpochError):
        next(epoch)
    assert list(epoch) == []


# Loaders whose datasets tell how many elements they have: nothing is said between the ranks.


def numbers_of(batches):
    return [int(number) for batch in batches for number in batch]


@pytest.mark.parametrize("add_stages", [lambda loader: loader, lambda loader: loader.rebatched(2)])
@pytest.mark.parametrize("even", MODES)
def test_a_sequence_is_divided_evenly_without_a_word(even, add_stages, at_rank):
    epochs = []
    for rank in range(3):
        at_rank(rank, 3)
        loader = add_stages(MultiLoader(DataPipeline(range(19)).batched(3), workers=0, even=even))
        epochs.append([[int(number) for number in batch] for batch in loader])
        assert len(loader) == len(epochs[-1])
    assert len({len(epoch) for epoch in epochs}) == 1
    delivered = [number for epoch in epochs for batch in epoch for number in batch]
    if even == "drop":
        assert len(set(delivered)) == len(delivered)
    else:
        assert set(delivered) == set(range(19))


def test_a_rank_that_runs_out_begins_its_part_again_in_another_order(at_rank):
    dataset = DataPipeline(range(25)).shuffle(100).batched(2)
    at_rank(0, 2)  # 13 elements, 7 batches
    assert len(list(MultiLoader(dataset, workers=0, even="wrap"))) == 7
    at_rank(1, 2)  # 12 elements, 6 batches
    with MultiLoader(dataset, workers=2, even="wrap") as loader:
        *own, again = [batch.tolist() for batch in loader]
        loader.set_epoch(0)
        assert [batch.tolist() for batch in loader] == [*own, again]
    assert sorted(numbers_of(own)) == list(range(1, 25, 2))
    assert set(again) <= set(range(1, 25, 2))
    assert again != own[0]


def test_padding_repeats_the_last_batch_as_it_was(at_rank):
    at_rank(1, 2)
    with MultiLoader(DataPipeline(np.arange(9)).batched(2), workers=1, even="pad", output="numpy") as loader:
        epoch = []
        for batch in loader:
            epoch.append(batch.tolist())
            batch[:] = -1
    assert epoch == [[1, 3], [5, 7], [5, 7]]


def test_epochs_of_so_many_elements_are_even_already(at_rank):
    at_rank(1, 2)
    drawn = WebDataset("x-{0..9}.tar", resampled=True).with_epoch(10)
    assert len(MultiLoader(drawn, workers=3, even="drop")) == 30
    loader = MultiLoader(lambda: iter([1, 2]), workers=0, even="drop").with_epoch(5)
    assert (len(loader), len(list(loader))) == (5, 5)


def test_a_rank_whose_part_is_empty_is_an_error_where_epochs_have_so_many_elements(at_rank):
    at_rank(1, 2)
    empty = pytest.warns(RuntimeWarning, match="ends after 0 elements: the dataset is empty")
    with empty, pytest.raises(EvenEpochError, match="part of it was empty"):
        list(MultiLoader(lambda: iter([]), workers=0, even="drop").with_epoch(5))


@pytest.mark.parametrize("even", ["pad", "wrap"])
def test_more_ranks_than_elements_are_an_error_on_all_ranks(even, at_rank):
    for rank in range(3):
        at_rank(rank, 3)
        with pytest.raises(EvenEpochError, match="no batch at all"):
            iter(MultiLoader([1, 2], workers=0, even=even))


def test_more_ranks_than_elements_drop_everything_with_a_warning(at_rank):
    at_rank(0, 3)
    with pytest.warns(RuntimeWarning, match="no rank gets any"):
        assert list(MultiLoader([1, 2], workers=0, even="drop")) == []


def test_numbers_that_nobody_knows_need_torch_distributed(at_rank):
    at_rank(1, 2)
    loader = MultiLoader(DataPipeline(range(9)).select(bool), workers=0, even="drop")
    with pytest.raises(EvenEpochError, match="this is rank 1 of 2.*init_process_group.*with_epoch"):
        iter(loader)
    with pytest.raises(EvenEpochError, match="init_process_group"):
        iter(loader.batched(2))


@pytest.mark.parametrize(("ranks", "streams", "delivered"), [(2, None, 2), (1, 2, 4)])
def test_workers_that_do_not_persist_end_with_an_epoch_that_drops_batches(ranks, streams, delivered, at_rank):
    at_rank(0, ranks)
    options = {"even": "drop", "streams": streams, "persistent": False}
    with MultiLoader(DataPipeline(range(5)), workers=1, **options) as loader:
        batches = iter(loader)
        assert len(list(batches)) == delivered
        assert loader.worker_pids == []


def test_what_a_dataset_merely_says_of_its_length_decides_nothing(at_rank):
    at_rank(1, 2)
    dataset = DataPipeline(range(9)).select(bool).with_length(7, silent=True)
    loader = MultiLoader(dataset, workers=0, even="drop")
    assert len(loader) == 7
    with pytest.raises(EvenEpochError, match="init_process_group"):
        iter(loader)


def test_one_rank_alone_iterates_as_ever():
    with MultiLoader([1, 2, 3], workers=1, even="pad") as loader:
        epoch = iter(loader)
        assert isinstance(epoch, EpochIterator)
        assert [int(number) for number in epoch] == [1, 2, 3]
        del epoch


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 2), (2, 1), (3, 2), (6, 1), (1, 254)])
@pytest.mark.parametrize("even", ["drop", "pad"])
def test_batches_taken_ahead_leave_workers_blocks_to_write_to(even, workers, prefetch, at_rank, monkeypatch):
    monkeypatch.setattr("mpwds.loader.even.world_size", lambda: 2)
    monkeypatch.setattr("mpwds.loader.even.TorchRanks", lambda: first_rank)
    at_rank(0, 2)
    large = DataPipeline(range(24)).map(lambda number: np.full(1 << 16, number, np.uint8))
    options = {"workers": workers, "prefetch": prefetch, "output": "numpy", "start_method": "fork"}

    def run(ranks):
        nonlocal first_rank
        first_rank = ranks
        with MultiLoader(large, even=even, **options) as loader:
            numbers = [int(batch[0]) for batch in loader]
            return sorted(numbers), loader._group._copies.made

    first_rank = None
    assert on_all_ranks(1, run) == [(list(range(0, 24, 2)), 0)]


@pytest.mark.filterwarnings("ignore:there are fewer shards than workers")
@pytest.mark.parametrize(("even", "each"), [("drop", 4), ("pad", 8), ("wrap", 8)])
def test_ranks_with_idle_workers_deliver_equally_many(even, each, tmp_path, at_rank, monkeypatch):
    for shard in range(3):  # two for rank 0, one for rank 1, which leaves its second worker without
        with TarWriter(str(tmp_path / f"{shard}.tar")) as archive:
            for number in range(4 * shard, 4 * shard + 4):
                archive.write({"__key__": str(number), "cls": number})
    dataset = WebDataset(str(tmp_path / "{0..2}.tar")).decode().to_tuple("cls").map(lambda label: label[0])
    one_at_a_time = threading.Lock()

    def run(ranks):
        with one_at_a_time:
            at_rank(ranks.rank, 2)
            monkeypatch.setattr("mpwds.loader.even.TorchRanks", lambda: ranks)
            loader = MultiLoader(dataset, workers=2, even=even, output="numpy")
            epoch = iter(loader)
        with loader:
            return [int(number) for number in epoch]

    first, second = on_all_ranks(2, run)
    assert len(first) == len(second) == each
    assert set(first) < {0, 1, 2, 3, 8, 9, 10, 11} if even == "drop" else len(set(first)) == 8
    assert second[:4] == [4, 5, 6, 7]
    assert second[4:] == {"drop": [], "pad": [7] * 4}.get(even, [4, 5, 6, 7])


@pytest.mark.parametrize(("workers", "messages"), [(1, 7), (6, 5)])
def test_ranks_agree_on_a_round_of_the_workers_and_on_four_batches_at_the_least(
    workers, messages, at_rank, monkeypatch
):
    sent = []

    class Ranks(AlikeRanks):
        def largest(self, numbers, timeout):
            sent.append(numbers)
            return numbers

    monkeypatch.setattr("mpwds.loader.even.TorchRanks", Ranks)
    at_rank(0, 1)
    monkeypatch.setattr("mpwds.loader.even.world_size", lambda: 2)
    dataset = DataPipeline(range(24)).map(int)
    with MultiLoader(dataset, workers=workers, even="drop") as loader:
        assert len(list(loader)) == 24
    assert len(sent) == messages
