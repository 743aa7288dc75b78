import pickle
from itertools import islice
from types import SimpleNamespace

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpwds
from mpwds.pipeline.coercion import Splitter
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.sources.shards import (
    SimpleShardList,
    non_empty,
    single_node_only,
    split_by_node,
    split_by_worker,
)
from mpwds.pipeline.stream import Source
from tests.pipeline.places import read_everywhere, watched

ALL = [split_by_node, split_by_worker, single_node_only, non_empty]


def elements(stage, source, **context):
    return [element for _, element in stage.stream(Source(source), Context(**context))]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 30), world_size=st.integers(1, 4), workers=st.integers(1, 4))
def test_node_and_worker_together_divide_everything(n, world_size, workers):
    def stream(context):
        return split_by_worker.stream(split_by_node.stream(Source(range(n)), context), context)

    assert sorted(read_everywhere(stream, world_size, workers)) == list(range(n))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 20), stop=st.integers(0, 21), stage=st.sampled_from(ALL[:2]))
def test_a_share_continues_from_its_state_exactly(continues, n, stop, stage):
    context = Context(rank=1, world_size=3, worker=1, workers=3)
    continues(lambda: stage.stream(Source(range(n)), context), stop)


class Counting(Source):
    """A stream that notes which elements it makes."""

    def __init__(self):
        super().__init__(range(20))
        self.made = []

    def fetch(self, address):
        self.made.append(address)
        return super().fetch(address)


@pytest.mark.parametrize("watch", [None, watched])
def test_elements_of_other_shares_are_not_made(watch):
    source = Counting()
    dataset = DataPipeline(SimpleNamespace(stream=lambda context: source), split_by_node, split_by_worker)
    share = dataset.stream(Context(rank=0, world_size=2, worker=1, workers=3, watch=watch))
    assert [element for _, element in share] == source.made == [2, 8, 14]


def test_as_functions_they_ask_the_environment(monkeypatch):
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "WORKER": 2, "NUM_WORKERS": 3}.items():
        monkeypatch.setenv(name, str(value))
    assert list(split_by_node(range(7))) == [1, 3, 5]
    assert list(split_by_worker(range(7))) == [2, 5]
    with pytest.raises(ValueError, match="on node 1 of 2: split the shards with nodesplitter="):
        single_node_only(range(7))


def test_nothing_at_all_is_an_error_where_something_was_declared():
    with pytest.raises(ValueError, match="no elements in worker 1 of 2, on node 0 of 1"):
        elements(non_empty, "", worker=1, workers=2)
    assert elements(non_empty, "a") == ["a"]


def test_the_error_of_non_empty_ends_the_stream():
    stream = non_empty.stream(Source(""))
    with pytest.raises(ValueError, match="gave no elements"):
        next(stream)
    assert list(stream) == []


def test_a_restored_stream_knows_that_it_was_not_empty():
    first = non_empty.stream(Source("a"))
    next(first)
    second = non_empty.stream(Source("a"))
    second.load_state_dict(first.state_dict())
    assert list(second) == []


@pytest.mark.parametrize("stage", ALL, ids=str)
def test_there_is_one_of_each_in_every_process(stage):
    assert pickle.loads(pickle.dumps(stage)) is stage
    assert pickle.loads(cloudpickle.dumps([stage]))[0] is stage


SHARDS = [{"url": f"{n}.tar"} for n in range(9)]


@settings(max_examples=30, deadline=None)
@given(stop=st.integers(0, 10), step=st.integers(1, 3))
def test_what_a_splitter_chooses_continues_exactly(continues, stop, step):
    stage = Splitter(lambda shards: islice(shards, 1, None, step))
    continues(lambda: stage.stream(Source(SHARDS)), stop)


def test_a_splitter_may_make_dicts_of_its_own():
    stage = Splitter(lambda shards: ({"url": shard["url"]} for shard in list(shards)[::-1]))
    assert [address for address, _ in stage.stream(Source(SHARDS))] == list(range(8, -1, -1))


def test_a_shard_that_the_splitter_brings_itself_has_its_url_for_an_address():
    stream = Splitter(lambda shards: iter([{"url": "other.tar"}])).stream(Source(SHARDS))
    address, shard = next(stream)
    assert stream.fetch(address) == shard == {"url": "other.tar"}
    assert str(stream.describe(address)) == "shard other.tar"


def test_of_two_shards_of_one_name_each_keeps_its_address():
    twice = [{"url": "a.tar"}, {"url": "a.tar"}]
    assert [address for address, _ in Splitter(iter).stream(Source(twice))] == [0, 1]


def test_a_splitter_without_an_end_is_not_read_ahead():
    def forever(shards):
        shards = list(shards)
        while True:
            yield from shards

    stream = Splitter(forever).stream(Source(SHARDS))
    assert [address for address, _ in islice(stream, 20)] == [n % 9 for n in range(20)]


def test_a_splitter_that_chooses_less_when_it_runs_again_cannot_be_restored():
    runs = []

    def less_each_time(shards):
        runs.append(1)
        yield from islice(shards, 5 - len(runs))

    first = Splitter(less_each_time).stream(Source(SHARDS))
    for _ in range(4):
        next(first)
    second = Splitter(less_each_time).stream(Source(SHARDS))
    with pytest.raises(RuntimeError, match="ended after 3 elements but 4 were delivered before"):
        second.load_state_dict(first.state_dict())


def test_a_function_before_the_reader_of_shards_leaves_the_pipeline_addressable(shards, continues):
    reader = mpwds.tarfile_samples
    dataset = DataPipeline(SimpleShardList(shards), lambda urls: islice(urls, 0, None, 2), reader)
    assert {sample["__url__"][-9:] for sample in dataset} == {"x-000.tar", "x-002.tar", "x-004.tar"}
    continues(dataset.stream, 3)


def test_a_command_that_only_a_state_names_is_refused():
    """A trainer sends states to servers on other machines, where it must not run commands."""
    made = Splitter(lambda shards: ({"url": f"pipe:cat {shard['url']}"} for shard in shards))
    own, other = made.stream(Source(SHARDS)), made.stream(Source(SHARDS))
    address, shard = next(own)
    assert own.fetch(address) == shard
    other.load_state_dict(own.state_dict())
    assert other.fetch(address) == shard
    with pytest.raises(mpwds.SecurityError, match="a state names the shard 'pipe:rm x', which"):
        other.fetch("pipe:rm x")


def test_a_stream_goes_back_to_an_earlier_state_of_its_own():
    stream = Splitter(lambda shards: islice(shards, 1, None, 2)).stream(SimpleShardList("{0..9}").stream())
    assert next(stream)[1] == {"url": "1"}
    state = stream.state_dict()
    rest = list(stream)
    stream.load_state_dict(state)
    assert list(stream) == rest
    assert len(rest) == 4


@pytest.mark.parametrize("nested", ["mix", "repeat"])
def test_a_source_that_draws_is_alike_on_all_workers_if_a_later_stage_divides(nested):
    first, second = (SimpleShardList(f"{name}-{{0..9}}.tar") for name in "ab")
    source = mpwds.RandomMix([first, second], longest=True)
    if nested == "repeat":
        source = DataPipeline(SimpleShardList("{a,b}-{0..9}.tar")).shuffle(100).repeat(1, nbatches=20)
    dataset = DataPipeline(source, split_by_worker)
    seen = [shard["url"] for shard in read_everywhere(dataset.stream, 1, 2)]
    assert len(seen) == len(set(seen)) == 20
