"""Epochs and orders where several processes share a pipeline, each knowing only its own place."""

import random
from itertools import chain

import numpy as np
import pytest
import torch

import mpwds
from mpwds.pipeline.context import Context


@pytest.fixture
def urls():
    return [f"{number:02d}.tar" for number in range(20)]


def numbers(dataset, **context):
    return [int(shard["url"][:2]) for _, shard in dataset.stream(Context(**context))]


def all_places(dataset, ranks, workers, runs):
    return [
        numbers(dataset, rank=rank, world_size=ranks, worker=worker, workers=workers, run=runs[rank])
        for rank in range(ranks)
        for worker in range(workers)
    ]


README = (mpwds.shuffle(100), mpwds.split_by_node, mpwds.split_by_worker)
WITH_A_SEED = (mpwds.shuffle(100, seed=7), mpwds.split_by_node, mpwds.split_by_worker)
NODES_FIRST = (mpwds.split_by_node, mpwds.shuffle(100), mpwds.split_by_worker)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stages", [README, WITH_A_SEED, NODES_FIRST, "ShardList"])
def test_each_shard_is_read_once_however_it_is_shuffled_and_divided(urls, stages, ranks):
    if stages == "ShardList":
        dataset = mpwds.DataPipeline(mpwds.ShardList(urls, shuffle=True))
    else:
        dataset = mpwds.DataPipeline(mpwds.SimpleShardList(urls), *stages)
    for runs in ([0, 0], [11, 12]):
        assert sorted(chain(*all_places(dataset, ranks, 3, runs))) == list(range(20))


@pytest.mark.parametrize("ranks", [1, 2])
def test_runs_of_one_epoch_have_orders_of_their_own_if_it_is_shuffled(urls, ranks):
    dataset = mpwds.DataPipeline(mpwds.ShardList(urls, shuffle=True))
    assert all_places(dataset, ranks, 2, [11, 11]) != all_places(dataset, ranks, 2, [12, 12])
    dataset = mpwds.DataPipeline(mpwds.ShardList(urls))
    places = [rank + ranks * worker for rank in range(ranks) for worker in range(2)]
    assert all_places(dataset, ranks, 2, [11, 12]) == [[*range(place, 20, 2 * ranks)] for place in places]


DRAWN = {
    "resampled": lambda urls: mpwds.ResampledShards(urls, 20, worker_seed=lambda: 3),
    "chosen": lambda urls: mpwds.MultiShardSample({"datasets": [{"shards": urls, "choose": 10}]}),
    "seeded": lambda urls: mpwds.DataPipeline(mpwds.SimpleShardList(urls), mpwds.shuffle(100, seed=7)),
}


@pytest.mark.parametrize("name", DRAWN)
def test_runs_of_one_epoch_draw_shards_of_their_own(urls, name):
    dataset = mpwds.DataPipeline(DRAWN[name](urls))
    assert numbers(dataset, run=11) == numbers(dataset, run=11) != numbers(dataset, run=12)


def test_what_is_drawn_before_ranks_divide_it_is_the_same_on_all(urls):
    stages = mpwds.rsample(0.5), mpwds.split_by_node, mpwds.split_by_worker
    read = [*chain(*all_places(mpwds.DataPipeline(mpwds.SimpleShardList(urls), *stages), 2, 2, [11, 12]))]
    assert 0 < len(read) == len({*read}) < 20


def loaded(dataset):
    return [int(number) for number in torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)]


def test_torchs_seed_gives_each_epoch_its_order_though_workers_are_new():
    dataset = mpwds.DataPipeline(range(60)).shuffle(60)
    orders = []
    for _ in range(2):
        torch.manual_seed(5)
        orders.append([loaded(dataset), loaded(dataset)])
    assert orders[0] == orders[1]
    first, second = orders[0]
    assert sorted(first) == sorted(second) == list(range(60))
    assert first != second


class Doubled(mpwds.DataPipeline):
    def __iter__(self):
        return (2 * number for number in super().__iter__())


@pytest.mark.slow
def test_a_subclass_that_iterates_in_its_own_way_is_iterated_so_everywhere():
    dataset = Doubled(range(6))
    assert list(dataset) == list(mpwds.DataPipeline(dataset)) == [0, 2, 4, 6, 8, 10]
    with mpwds.MultiLoader(dataset, workers=2, start_method="fork") as loader:
        assert sorted(int(number) for number in loader) == [0, 2, 4, 6, 8, 10]


def test_the_programs_own_random_numbers_are_not_disturbed_between_elements():
    dataset = mpwds.DataPipeline(range(4)).map(lambda n: (n, random.random(), np.random.rand())).map(tuple)

    def drawn(elements):
        random.seed(1)
        np.random.seed(1)
        return [(random.random(), np.random.randn()) for _ in elements]

    assert drawn(dataset) == drawn(range(4))


def test_a_dataset_that_is_iterated_inside_a_stage_disturbs_nothing_either():
    inner = mpwds.DataPipeline(range(2)).map(lambda n: random.random())
    outer = mpwds.DataPipeline(range(3)).map(lambda n: [*inner, random.random()])
    random.seed(1)
    before = random.getstate()
    assert [len(element) for element in outer] == [3, 3, 3]
    assert random.getstate() == before
