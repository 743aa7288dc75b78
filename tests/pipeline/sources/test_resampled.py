import pickle
import random
from collections import Counter
from itertools import count, islice

import cloudpickle
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.randomness import Draws
from mpwds.pipeline.sources.shards import ResampledShardList, ResampledShards, SimpleShardList, resampled
from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.pipeline.stream import Source

NAMES = [f"{number}.tar" for number in range(10)]


def drawn(shards, n=50, **context):
    return [shard["url"] for _, shard in islice(shards.stream(Context(**context)), n)]


@settings(max_examples=40, deadline=None)
@given(stop=st.integers(0, 20), nshards=st.integers(0, 18), epoch=st.integers(0, 3))
def test_drawn_shards_continue_from_their_state_exactly(continues, stop, nshards, epoch):
    shards = ResampledShards(NAMES, nshards)
    continues(lambda: shards.stream(Context(epoch=epoch, worker=1, workers=2)), stop)


@settings(max_examples=30, deadline=None)
@given(stop=st.integers(0, 20), count=st.integers(0, 9))
def test_drawn_elements_continue_from_their_state_exactly(continues, stop, count):
    continues(lambda: resampled(15).stream(Source(range(count)), Context(epoch=1)), stop)


def test_draws_depend_on_seed_epoch_rank_and_worker_alone():
    shards = ResampledShards(NAMES)
    places = [{}, {"epoch": 1}, {"seed": 3}, {"rank": 1, "world_size": 2}, {"worker": 1, "workers": 2}]
    orders = [tuple(drawn(shards, **place)) for place in places]
    assert len(set(orders)) == len(places)
    assert [tuple(drawn(ResampledShards(NAMES), **place)) for place in places] == orders
    assert tuple(drawn(ResampledShards(NAMES, seed=1))) != orders[0]


def test_a_worker_seed_of_ones_own_takes_the_place_of_rank_and_worker():
    def one():
        return 1

    shards = ResampledShards(NAMES, worker_seed=one)
    assert drawn(shards) == drawn(shards, worker=1, workers=2)
    assert drawn(shards) != drawn(shards, epoch=1)


def test_a_shard_that_is_drawn_twice_has_two_addresses_and_draws_other_random_numbers(shards):
    dataset = WebDataset(shards, resampled=True).map(lambda sample: (sample["cls"], random.random()))
    made = list(islice(dataset.stream(), 60))
    assert len({cls for _, (cls, _) in made}) <= 20
    assert len({number for _, (_, number) in made}) == 60
    assert all(dataset.stream().fetch(address) == element for address, element in made[::7])


def test_iterated_by_itself_it_draws_anew_each_time_as_webdatasets_test_wants():
    many = [str(number) for number in range(100000)]
    shards = ResampledShards(many)
    first, second = list(islice(shards, 10)), list(islice(shards, 10))
    assert first != second
    assert list(islice(ResampledShards(many), 10)) != first


def test_deterministic_it_draws_the_same_in_the_same_epoch():
    shards = ResampledShards(NAMES, 20, deterministic=True)
    first, second = list(shards), list(shards)
    assert first != second
    shards.set_epoch(0)
    assert [list(shards), list(shards)] == [first, second]


def test_has_webdatasets_attributes():
    worker_seed = int
    shards = ResampledShardList(NAMES, 2, 7, worker_seed, False, int(1e6))
    assert (shards.urls, shards.nshards, shards.seed, shards.epoch) == (NAMES, 2, 7, -1)
    assert (shards.worker_seed, shards.deterministic) == (worker_seed, False)
    assert len(list(shards)) == 2


def test_no_more_than_max_urls_are_taken_from_an_iterable():
    assert ResampledShards((f"{n}.tar" for n in count()), max_urls=3).urls == ["0.tar", "1.tar", "2.tar"]


def test_shows_its_seed_where_the_user_asks_for_it(monkeypatch, capsys):
    monkeypatch.setenv("WDS_SHOW_SEED", "1")
    drawn(ResampledShards(NAMES, seed=5))
    assert "# ResampledShards: seed 5" in capsys.readouterr().out


def test_a_stage_draws_so_many_of_its_sources_elements():
    dataset = DataPipeline(SimpleShardList(NAMES), resampled(27))
    first, second = list(dataset), list(dataset)
    assert len(first) == len(second) == 27
    assert first != second
    assert {shard["url"] for shard in first} <= set(NAMES)
    assert len(list(resampled(5)(iter("ab")))) == 5


def test_travels_to_other_processes():
    shards = pickle.loads(cloudpickle.dumps(ResampledShards(NAMES, worker_seed=lambda: 3)))
    assert drawn(shards) == drawn(ResampledShards(NAMES, worker_seed=lambda: 3))


def test_draws_are_even_and_independent_of_each_other():
    draws = Draws("test", 1)
    counts = Counter(draws.index(number, 4) for number in range(4000))
    assert all(900 < counts[value] < 1100 for value in range(4))
    fractions = [draws.fraction(number) for number in range(1000)]
    assert all(0 <= fraction < 1 for fraction in fractions)
    assert 0.45 < sum(fractions) / 1000 < 0.55


def test_what_several_workers_draw_has_an_address_in_each():
    contexts = [Context(rank=rank, worker=worker, workers=2) for rank in (0, 1) for worker in (0, 1)]
    stage = resampled(9)
    for source in (lambda context: stage.stream(Source("a"), context), ResampledShards("a.tar", 9).stream):
        addresses = [address for context in contexts for address, _ in source(context)]
        assert len(set(addresses)) == 4 * 9
