import pickle
import random

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.pipeline.stages.batched import Batched
from mpwds.pipeline.stages.collation import Stack
from mpwds.pipeline.stages.shuffle import Shuffle


def numbers(dataset, **context):
    return [element for _, element in dataset.stream(Context(**context))]


STAGES = [
    lambda dataset: dataset.shuffle(6),
    lambda dataset: dataset.shuffle(3, initial=1, seed=5),
    lambda dataset: dataset.map(lambda sample: (sample[0], sample[1] + random.random())),
    lambda dataset: dataset.map_tuple(None, lambda number: number + np.random.rand()),
    lambda dataset: dataset.select(lambda sample: int(sample[0]) % 3),
    lambda dataset: dataset.batched(4).unbatched(),
    lambda dataset: dataset.batched(3, partial=False).unbatched().batched(2).unbatched(),
]


@settings(max_examples=60, deadline=None)
@given(
    stages=st.lists(st.sampled_from(STAGES), max_size=4),
    batched=st.booleans(),
    stop=st.integers(0, 21),
    workers=st.integers(1, 3),
    data=st.data(),
)
def test_any_pipeline_over_shards_continues_exactly(shards, continues, stages, batched, stop, workers, data):
    dataset = WebDataset(shards, shardshuffle=True, seed=1).decode().to_tuple("__key__ cls")
    for stage in stages:
        dataset = stage(dataset)
    dataset = dataset.batched(3) if batched else dataset
    context = Context(epoch=2, worker=data.draw(st.integers(0, workers - 1)), workers=workers)
    continues(lambda: dataset.stream(context), stop)


def test_each_iteration_is_another_epoch_and_set_epoch_goes_back():
    dataset = DataPipeline(range(50)).shuffle(50)
    first, second = list(dataset), list(dataset)
    assert sorted(first) == sorted(second)
    assert first != second
    dataset.set_epoch(0)
    assert [list(dataset), list(dataset)] == [first, second]


def test_an_iterable_keeps_an_epoch_of_its_own_until_the_pipeline_is_given_one():
    class Numbers:
        epoch = 7

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            yield self.epoch

    dataset = DataPipeline(Numbers()).map(int)
    assert [*dataset, *dataset] == [7, 7]
    dataset.set_epoch(3)
    assert [*dataset, *dataset] == [3, 4]


def test_a_pipeline_continues_another():
    dataset = DataPipeline(DataPipeline(range(4), seed=3).shuffle(2), Batched(2))
    assert dataset.stages == (Shuffle(2), Batched(2))
    assert numbers(dataset.unbatched()) == numbers(DataPipeline(range(4), seed=3).shuffle(2))


def test_the_loaders_seed_goes_before_the_datasets_and_a_stages_own_before_both():
    def order(dataset_seed, loader_seed, stage_seed=None):
        dataset = DataPipeline(range(50), seed=dataset_seed).shuffle(50, seed=stage_seed)
        return numbers(dataset, seed=loader_seed)

    assert order(None, None) == order(0, None) == order(5, 0) != order(5, None) == order(0, 5)
    assert order(1, 2, 3) == order(4, None, 3)


def test_two_stages_with_the_same_function_draw_different_numbers_also_in_a_pipeline_inside_another():
    def draw(element):
        return (*element, random.random())

    inner = DataPipeline([()]).map(draw).map(draw).repeat(1, 1)
    assert len({*next(iter(DataPipeline(inner).map(draw)))}) == 3


def test_only_the_last_stage_defers():
    rows = [np.zeros(3)] * 4
    deferred = Context(deferred=True)
    ((_, last),) = DataPipeline(rows).batched(4).stream(deferred)
    assert isinstance(last, Stack)
    ((_, inner),) = DataPipeline(rows).batched(4).map(lambda batch: batch).stream(deferred)
    assert isinstance(inner, np.ndarray)


def test_reads_like_what_one_wrote():
    dataset = WebDataset("x-{000..011}.tar", shardshuffle=True, seed=0).shuffle(1000, initial=10)
    dataset = dataset.decode("rgb8", only="png").to_tuple("png", "cls", missing_is_error=False)
    dataset = dataset.map_tuple(len, None).map_dict(cls=int).batched(64, partial=False).unbatched()
    assert repr(dataset.compose(reversed)).split("\n    .") == [
        "WebDataset('x-{000..011}.tar', shardshuffle=True, seed=0)",
        "shuffle(1000, initial=10)",
        "decode('rgb8', only=('png',))",
        "to_tuple('png', 'cls', missing_is_error=False)",
        "map_tuple(len, None)",
        "map_dict(cls=int)",
        "batched(64, partial=False)",
        "unbatched()",
        "compose(reversed)",
    ]


@pytest.mark.parametrize("seed", [np.int64(7), -1, 2**80])
def test_any_whole_number_is_a_seed(seed):
    dataset = DataPipeline(range(9), seed=seed).shuffle(9).map(lambda number: number + random.random())
    assert numbers(dataset) == numbers(DataPipeline(dataset, seed=int(seed)))


def test_travels_to_other_processes_small_and_whole(shards):
    dataset = WebDataset(shards, seed=4).shuffle(5).decode().map(lambda sample: sample["cls"]).batched(4)
    sent = cloudpickle.dumps(dataset)
    assert len(sent) < 5000
    received = pickle.loads(sent)
    assert repr(received) == repr(dataset)
    assert [batch.tolist() for batch in received] == [batch.tolist() for batch in dataset]


def test_a_dropped_iterator_closes_its_files(shards, open_shards):
    stream = WebDataset(shards).shuffle(3).map(lambda sample: sample).batched(2, collation_fn=None).stream()
    next(stream)
    stream.fetch(((3, 0),))
    assert len(open_shards()) == 2
    del stream
    assert open_shards() == []


def add_four(source):
    for element in source:
        yield element + 4


@pytest.mark.parametrize(
    "parts",
    [
        (lambda: iter([1, 2, 3, 4]), add_four),
        ([1, 2, 3, 4], add_four),
        (DataPipeline([1, 2, 3, 4]), None, [add_four]),
        (None, DataPipeline([1, 2, 3, 4]).map(lambda n: n + 4)),
        ([DataPipeline([1, 2, 3, 4]), Shuffle(1)], [[add_four]][0]),
        ({1: 0, 2: 0, 3: 0, 4: 0}.keys(), lambda source: (n + 4 for n in source)),
        (DataPipeline([0, 1, 2, 3]).with_epoch(4), add_four, iter, lambda source: (n + 1 for n in source)),
    ],
)
def test_a_pipeline_is_made_of_whatever_webdataset_takes(parts):
    assert list(DataPipeline(*parts)) == [5, 6, 7, 8]


def test_stages_may_be_appended_one_by_one():
    dataset = DataPipeline()
    assert repr(dataset) == "DataPipeline()"
    for part in (range(4), Shuffle(1), add_four):
        assert dataset.append(part) is None
    assert list(dataset) == [4, 5, 6, 7]
    assert [dataset.stage(number) for number in range(3)] == [range(4), Shuffle(1), add_four]


def test_the_list_of_parts_may_be_edited():
    dataset = DataPipeline(range(3), add_four)
    copy = dataset.compose(add_four)
    del dataset.pipeline[1:]
    assert list(dataset) == [0, 1, 2]
    assert list(copy) == [8, 9, 10]


def test_a_pipelines_seed_counts_inside_another_that_has_none():
    def order(inner, outer):
        dataset = DataPipeline(range(50), seed=inner).shuffle(50).repeat(1, 50)
        return numbers(DataPipeline(dataset, seed=outer))

    assert order(1, None) != order(2, None)
    assert order(1, 3) == order(2, 3)
