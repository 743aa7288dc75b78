import pickle
import random
import tracemalloc

import cloudpickle
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.sources.shards import ShardList, SimpleShardList, split_by_node, split_by_worker
from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.storage.streams.patterns import Names
from tests.pipeline.places import read_everywhere, watched

NAMES = [f"{number}.tar" for number in range(40)]


def urls(shards, **context):
    return [shard["url"] for _, shard in shards.stream(Context(**context))]


@pytest.mark.filterwarnings("ignore:.*shards for .* workers")
@settings(max_examples=50, deadline=None)
@given(
    count=st.integers(1, 40),
    world_size=st.integers(1, 4),
    workers=st.integers(1, 4),
    shuffled=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_each_shard_is_read_once_over_all_nodes_and_workers(count, world_size, workers, shuffled, epoch):
    shards = ShardList(NAMES[:count], shuffled)
    read = read_everywhere(shards.stream, world_size, workers, epoch=epoch, seed=7)
    assert sorted(shard["url"] for shard in read) == sorted(NAMES[:count])


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 60), workers=st.integers(1, 12), watch=st.sampled_from([None, watched]))
def test_the_streams_of_a_pattern_and_of_its_names_are_the_same_parts_of_one_order(count, workers, watch):
    pattern = f"{{1..{count}}}.tar"
    orders = []
    for given_urls in (pattern, list(Names(pattern))):
        for shards in (
            ShardList(given_urls, shuffle=True),
            DataPipeline(SimpleShardList(given_urls, seed=True), split_by_node, split_by_worker),
        ):
            parts = [urls(shards, worker=each, workers=workers, watch=watch) for each in range(workers)]
            dealt = [part[turn] for turn in range(count) for part in parts if turn < len(part)]
            assert sorted(dealt) == sorted(Names(pattern))
            orders.append((urls(shards, watch=watch), dealt))
    first, second = orders[:2]
    assert first[0] == first[1]
    assert second[0] == second[1]
    assert orders[2:] == [first, second]


def test_a_million_shards_cost_no_memory():
    tracemalloc.start()
    try:
        dataset = WebDataset("x-{000000..999999}.tar", shardshuffle=True)
        streams = [dataset.stage(0).stream(Context(worker=each, workers=96)) for each in range(96)]
        firsts = {next(stream)[1]["url"] for stream in streams}
        dataset.stream().state_dict()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(firsts) == 96
    assert peak < 1 << 20


def test_a_state_of_other_shards_is_refused():
    stream = SimpleShardList(NAMES).stream()
    with pytest.raises(ValueError, match="the state is of a dataset of 39 shards, this one has 40"):
        stream.load_state_dict({**stream.state_dict(), "shards": 39})


@settings(max_examples=30, deadline=None)
@given(shuffled=st.booleans(), worker=st.integers(0, 2), stop=st.integers(0, 15))
def test_continues_from_its_state_exactly(continues, shuffled, worker, stop):
    shards = ShardList(NAMES, shuffled)
    continues(lambda: shards.stream(Context(epoch=2, worker=worker, workers=3)), stop)


@settings(max_examples=20, deadline=None)
@given(seed=st.sampled_from([None, 5, True]), stop=st.integers(0, 41))
def test_a_simple_list_continues_from_its_state_exactly(continues, seed, stop):
    continues(lambda: SimpleShardList(NAMES, seed).stream(Context(epoch=2)), stop)


def test_takes_the_arguments_of_webdataset_0_1():
    default = ShardList(NAMES, shuffle=True, nodesplitter=True, splitter=True)
    assert str(default) == str(ShardList(NAMES, True, split_by_node, split_by_worker))


def test_unshuffled_shards_are_dealt_in_order():
    place = {"rank": 1, "world_size": 2, "worker": 0, "workers": 2}
    assert urls(ShardList("{0..6}.tar"), **place) == ["1.tar", "5.tar"]


def test_epoch_and_seed_change_the_order():
    orders = [urls(ShardList(NAMES, True), epoch=epoch, seed=seed) for epoch in (0, 1) for seed in (0, 1)]
    assert all(sorted(order) == sorted(NAMES) for order in orders)
    assert len(set(map(tuple, orders))) == 4


def test_no_seed_is_seed_zero():
    assert urls(ShardList(NAMES, True)) == urls(ShardList(NAMES, True), seed=0)


@pytest.mark.parametrize("name", ["nodesplitter", "splitter"])
def test_a_function_may_slice_the_shards_it_divides(continues, name):
    shards = ShardList("{0..6}.tar", **{name: lambda shards: shards[1::2]})
    assert urls(shards) == ["1.tar", "3.tar", "5.tar"]
    continues(lambda: shards.stream(Context()), 2)


def test_a_function_given_to_webdataset_may_draw_on_an_iterator(shards):
    def but_the_first(source):
        next(source)
        yield from source

    (first, *_), *rest = (list(WebDataset(shards, nodesplitter=f)) for f in (None, but_the_first))
    assert first["__url__"] not in {sample["__url__"] for sample in rest[0]}


def test_without_splitters_every_worker_reads_all():
    place = {"rank": 1, "world_size": 2, "worker": 1, "workers": 2}
    assert urls(ShardList("{0..3}.tar", nodesplitter=None), **place) == ["1.tar", "3.tar"]
    assert urls(ShardList(NAMES[:4], nodesplitter=None, splitter=None), **place) == NAMES[:4]


@pytest.mark.parametrize("seed", [None, 0, 17])
def test_a_simple_list_has_webdatasets_order(seed):
    assert list(SimpleShardList(NAMES, seed)) == list(webdataset.SimpleShardList(NAMES, seed))


def test_a_simple_lists_seed_may_be_set_later_as_webdatasets_test_does():
    dataset = DataPipeline(SimpleShardList(list(map(str, range(10)))))
    assert next(iter(dataset))["url"] == "0"
    dataset.stage(0).seed = 17
    order = list(map(str, range(10)))
    random.Random(17).shuffle(order)
    assert [shard["url"] for shard in dataset] == order


def test_a_simple_list_with_seed_true_has_another_order_in_each_epoch_and_the_same_in_all_workers():
    shards = SimpleShardList(NAMES, True)
    assert urls(shards, epoch=1) != urls(shards, epoch=2)
    assert urls(shards, epoch=1) == urls(shards, epoch=1, worker=1, workers=2)


def test_a_list_of_shards_knows_its_length_and_is_iterated_by_epochs():
    shards = ShardList(NAMES, shuffle=True)
    assert len(shards) == len(SimpleShardList("{0..39}.tar")) == 40
    first, second = list(shards), list(shards)
    assert first != second
    shards.set_epoch(0)
    assert list(shards) == first


def test_a_pattern_travels_as_it_was_written():
    shards = ShardList("x-{00000..99999}.tar", shuffle=True)
    sent = cloudpickle.dumps(shards)
    assert len(sent) < 1000
    assert pickle.loads(sent).urls[99999] == "x-99999.tar"


def test_a_variable_has_the_value_it_had_when_the_list_was_made(monkeypatch):
    monkeypatch.setenv("WDS_WHERE", "here")
    shards = SimpleShardList("${WHERE}/{0..1}.tar")
    monkeypatch.delenv("WDS_WHERE")
    assert list(shards.urls) == ["here/0.tar", "here/1.tar"]


def test_prints_as_it_was_written():
    assert str(ShardList("{0..3}.tar", True)) == "ShardList('{0..3}.tar', shuffle=True)"
    assert str(SimpleShardList(NAMES, 3)).endswith("... (40 shards)], seed=3)")
