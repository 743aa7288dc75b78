"""Even epochs of streams: whole rounds, whose batches are the same on any ranks and workers."""

import functools
import os
import random
import signal
import warnings

import numpy as np
import pytest

from mpwds import DataPipeline, EvenEpochError
from mpwds.pipeline.stream import Count
from tests.fake_cuda import FakeCuda, loader_on
from tests.loader.jobs import (
    MODES,
    RANKS,
    STREAMS,
    as_lists,
    disturbed,
    in_turn,
    left_out_at_random,
    noisy,
    of_other_lengths,
    run_ranks,
)
from tests.marks import slow

pytestmark = [
    pytest.mark.usefixtures("one_fork_server"),
    pytest.mark.filterwarnings("ignore:.*the epoch is continued by running it again"),
]

DATASETS = {
    "known lengths": DataPipeline(range(220)).shuffle(20).batched(3),
    "filter and map": of_other_lengths().unbatched().map(noisy).batched(4),
    "generator": of_other_lengths(left_out_at_random),
}
KNOWN = DATASETS["known lengths"]


@pytest.fixture
def loader_of(loader_of):
    return lambda dataset, even, *places, **options: loader_of(dataset, *places, even=even, **options)


def by_stream(batches):
    return [batches[stream::STREAMS] for stream in range(STREAMS)]


def streams_of(dataset, loader_of):
    """The batches of each stream in an epoch that is not even."""
    loader = loader_of(dataset, None)
    streams = [[] for _ in range(STREAMS)]
    iterator = iter(loader)
    for batch in iterator:
        streams[iterator.place[0]].append(batch.tolist())
    return streams


@pytest.mark.parametrize("name", DATASETS)
class TestAnEpochIsWholeRounds:
    def test_dropping_ends_before_the_first_round_that_a_stream_cannot_serve(self, name, loader_of):
        streams = streams_of(DATASETS[name], loader_of)
        rounds = min(map(len, streams))
        assert rounds < max(map(len, streams))
        got = by_stream(as_lists(loader_of(DATASETS[name], "drop")))
        assert got == [stream[:rounds] for stream in streams]

    def test_padding_repeats_the_last_batch_of_each_stream(self, name, loader_of):
        streams = streams_of(DATASETS[name], loader_of)
        rounds = max(map(len, streams))
        got = by_stream(as_lists(loader_of(DATASETS[name], "pad")))
        assert got == [stream + stream[-1:] * (rounds - len(stream)) for stream in streams]

    def test_wrapping_makes_another_pass_in_another_order(self, name, loader_of):
        streams = streams_of(DATASETS[name], loader_of)
        got = by_stream(as_lists(loader_of(DATASETS[name], "wrap")))
        assert {len(stream) for stream in got} == {max(map(len, streams))}
        for stream, own in zip(got, streams, strict=True):
            again = stream[len(own) :]
            assert stream[: len(own)] == own
            assert again == [] or again != own[: len(again)]
            assert len({int(number) % STREAMS for batch in stream for number in batch}) == 1


@pytest.mark.parametrize("even", MODES)
class TestTheOrder:
    @pytest.mark.parametrize("name", DATASETS)
    def test_does_not_depend_on_the_workers(self, name, even, loader_of):
        whole = as_lists(loader_of(DATASETS[name], even))
        assert as_lists(loader_of(DATASETS[name], even, workers=3)) == whole

    @pytest.mark.parametrize("ranks", [2, 3, 12])
    def test_does_not_depend_on_the_ranks(self, ranks, even, loader_of):
        whole = as_lists(loader_of(KNOWN, even))
        parts, _ = run_ranks(functools.partial(loader_of, KNOWN, even), ranks)
        assert in_turn(parts) == whole

    @pytest.mark.parametrize("name", DATASETS)
    @pytest.mark.parametrize("seed", [0, *slow(1, 2)])
    def test_goes_on_after_any_batch_with_other_workers_and_ranks(self, name, seed, even, loader_of):
        make = functools.partial(loader_of, DATASETS[name], even)
        whole = as_lists(make())
        ranks = RANKS if name == "known lengths" else (1,)  # others would have to agree by messages
        job, state = disturbed(make, whole, random.Random(f"{name} {seed}"), ranks)
        loader = make()
        loader.load_state_dict(state)
        assert (job, as_lists(loader)) == (whole, [])
        assert as_lists(loader) != whole  # the next epoch

    def test_is_kept_when_a_worker_dies_among_repeats(self, even, loader_of):
        dataset = of_other_lengths().map(lambda batch: np.repeat(batch, 4000))
        whole = as_lists(loader_of(dataset, even))
        loader = loader_of(dataset, even, workers=2, on_worker_death="restart")
        job = []
        with pytest.warns(match="took its place"):
            for number, batch in enumerate(loader, 1):
                job.append(batch.tolist())
                if number == len(whole) - 30:
                    os.kill(loader.worker_pids[1], signal.SIGKILL)
        assert job == whole

    def test_its_length_is_known_if_that_of_the_streams_is(self, even, loader_of):
        for ranks in (1, 3):
            loader = loader_of(KNOWN, even, ranks=ranks)
            assert len(loader) == len(as_lists(loader))
        with pytest.raises(TypeError, match="number of elements in an epoch is not known"):
            len(loader_of(DATASETS["generator"], even))


class TestAStreamWithoutABatch:
    SMALL = DataPipeline(range(30)).select(lambda number: number % STREAMS != 5)

    @pytest.mark.parametrize("even", ["pad", "wrap"])
    def test_cannot_be_made_as_long_as_others(self, even, loader_of):
        with pytest.raises(EvenEpochError, match="stream 5 has no batch to repeat: use more shards"):
            as_lists(loader_of(self.SMALL, even))

    @pytest.mark.parametrize(
        "dataset",
        [SMALL, SMALL.select(lambda number: number == 0), DataPipeline(range(STREAMS - 1))],
        ids=["unknown", "in one stream alone", "known"],
    )
    def test_leaves_no_round_and_a_warning(self, dataset, loader_of):
        with pytest.warns(match="a stream has no batch at all"):
            assert as_lists(loader_of(dataset, "drop")) == []

    @pytest.mark.parametrize("even", MODES)
    def test_among_others_like_it_is_an_empty_epoch(self, even, loader_of):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert as_lists(loader_of(self.SMALL.select(lambda number: False), even)) == []


class Claims(DataPipeline):
    """A pipeline of two elements in each of twelve streams that counts others."""

    claimed = 0

    def count_in(self, context, exact=True):
        return Count(self.claimed)


@pytest.mark.parametrize(
    ("even", "claimed", "message"),
    [
        ("drop", 3, "stream 0 ends after 2 batches, but more were counted"),
        ("pad", 1, "stream 0 has more batches than the 1 that were counted"),
        ("wrap", 1, "stream 0 has more batches than the 1 that were counted"),
    ],
)
def test_other_batches_than_counted_are_an_error(even, claimed, message, loader_of):
    dataset = Claims(range(2 * STREAMS))
    dataset.claimed = claimed
    with pytest.raises(EvenEpochError, match=message):
        as_lists(loader_of(dataset, even))


def test_fewer_batches_than_counted_are_an_error_also_where_a_device_takes_them_ahead():
    dataset = Claims(range(2 * STREAMS))
    dataset.claimed = 3
    options = {"device": "cuda", "streams": STREAMS, "even": "drop", "prefetch": 3 * STREAMS}
    with loader_on(FakeCuda("when awaited"), dataset, **options) as loader:
        with pytest.raises(EvenEpochError, match="stream 0 ends after 2 batches, but more were counted"):
            list(loader)


def test_another_mode_is_an_error_where_a_state_is_loaded(loader_of):
    state = loader_of(KNOWN, "pad").state_dict()
    with pytest.raises(ValueError, match="even of the loader changed .*it was 'pad', is 'wrap'"):
        loader_of(KNOWN, "wrap").load_state_dict(state)


@pytest.mark.parametrize(
    ("dataset", "in_order"), [(KNOWN, False), (KNOWN.map(noisy, threads=2, in_order=False), True)]
)
def test_rounds_need_an_order(dataset, in_order, loader_of):
    with pytest.raises(ValueError, match="even='drop' makes rounds.* use in_order=True"):
        loader_of(dataset, "drop", in_order=in_order)
