import copy
import pickle
import random
from itertools import islice

import cloudpickle
import pytest

from mpwds.pipeline.caching.stored import Cached, mcached
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.stream import Source, collect


def test_reads_as_it_is_written():
    assert str(mcached()) == "mcached()"


def test_every_stage_object_has_its_own_memory():
    one, other = mcached(), mcached()
    collect(one, "ab")
    assert collect(other, "xy") == ["x", "y"]
    assert collect(one, "uv") == ["a", "b"]


def test_datasets_that_share_the_stage_share_its_memory():
    dataset = DataPipeline("abc").compose(mcached())
    assert list(dataset.map(str.upper)) == ["A", "B", "C"]
    assert list(dataset) == ["a", "b", "c"]


@pytest.mark.parametrize("through", [pickle, cloudpickle])
def test_the_memory_is_not_pickled(through):
    stage = Cached()
    collect(stage, ["x" * 100_000])
    packed = through.dumps(stage)
    assert len(packed) < 1000
    assert collect(through.loads(packed), "ab") == ["a", "b"]
    assert collect(copy.deepcopy(stage), "ab") == ["a", "b"]


def test_it_keeps_what_no_database_could():
    class Anything:
        def __init__(self, value):
            self.value = value

    stage = Cached()
    first = collect(stage, [Anything([1])])[0]
    first.value.append(2)
    second = collect(stage, [])[0]
    assert second.value == [1]


def test_seeds_have_memories_of_their_own():
    stage = Cached()
    for seed in (1, 2, 1, 2):
        source = Source([seed, seed])
        assert [element for _, element in stage.stream(source, Context(seed=seed))] == [seed, seed]


def test_a_state_saved_in_the_second_epoch_is_restored_without_the_memory():
    stage = Cached()
    collect(stage, range(500))
    stream = stage.stream(Source(range(500)))
    assert [element for _, element in islice(stream, 350)] == list(range(350))
    taken = []

    class Told(Source):
        def __next__(self):
            item = super().__next__()
            taken.append(item[0])
            return item

    elsewhere = Cached().stream(Told(range(500)))
    elsewhere.load_state_dict(stream.state_dict())
    assert [element for _, element in elsewhere] == list(range(350, 500))
    assert taken[0] >= 250


def test_a_generator_after_it_draws_the_same_numbers_whether_elements_are_stored_or_not():
    dataset = (
        DataPipeline(range(60))
        .map(abs)
        .compose(mcached(), lambda numbers: (number for number in numbers if random.random() < 0.5))
    )
    epochs = []
    for _ in range(2):
        random.seed(1)
        epochs.append([number for _, number in dataset.stream(Context(epoch=1, owns_process=True))])
    assert epochs[0] == epochs[1]
