"""What mcached, lmdb_cached and DBCache have in common, and what is particular to mcached."""

import contextlib
import copy
import itertools
import os
import pickle
import random
from collections import Counter
from itertools import islice

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.caching.cached import Cached, DBCache, LMDBCached, mcached
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.sources.mix import RandomMix
from mpwds.pipeline.stages.shuffle import Shuffle
from mpwds.pipeline.stream import Source, collect

KINDS = ["mcached", "lmdb_cached", "DBCache"]


@pytest.fixture(scope="session")
def new(tmp_path_factory):
    """Makes a stage of a kind with an empty store."""
    folder = tmp_path_factory.mktemp("stores")
    numbers = itertools.count()

    def new(kind):
        path = str(folder / str(next(numbers)))
        if kind == "mcached":
            return Cached()
        return LMDBCached(path, 1e8, chunksize=40) if kind == "lmdb_cached" else DBCache(path, 10_000)

    return new


class Counted(Source):
    """A source that counts what it gives, and fails where it is told to."""

    given = 0
    bad = None

    def __next__(self):
        item = super().__next__()
        Counted.given += 1
        if item[0] == self.bad:
            raise ValueError("bad element")
        return item


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def stage(kind, new):
    Counted.given = 0
    return new(kind)


def elements(stream):
    return [element for _, element in stream]


def take(stream, count):
    return elements(itertools.islice(stream, count))


def test_a_source_without_elements_is_complete(stage):
    assert collect(stage, []) == []
    assert collect(stage, "abc") == []


def test_elements_are_what_they_were(stage):
    sample = {
        "__key__": "a/b",
        "png": b"\x00\xff",
        "json": {"x": [1, 2.5, None, True, "ä"], "t": (1, (2,))},
        "npy": np.arange(6, dtype="int16").reshape(2, 3),
        "scalar": np.float32(1.5),
        "pth": torch.arange(3.0),
    }
    collect(stage, [sample])
    (again,) = collect(stage, [])
    assert again.keys() == sample.keys()
    for field in ("__key__", "png", "json"):
        assert again[field] == sample[field]
    assert again["json"]["t"].__class__ is tuple
    assert again["npy"].dtype == np.int16
    assert again["npy"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert type(again["scalar"]) is np.float32
    assert torch.equal(again["pth"], sample["pth"])


def test_what_a_later_stage_does_to_an_element_is_not_stored(stage):
    for _ in range(3):
        for _, element in stage.stream(Source([{"x": [[1]], "a": np.zeros(2)}])):
            assert element["x"] == [[1]]
            assert element["a"].tolist() == [0, 0]
            element["x"][0].append(2)
            element["a"][:] = 7


@settings(max_examples=15)
@given(n=st.integers(0, 250), stops=st.lists(st.integers(0, 250), max_size=4), kind=st.sampled_from(KINDS))
def test_interrupted_epochs_give_a_part_each_and_the_last_one_everything_once(new, n, stops, kind):
    stage = new(kind)
    for stop in stops:
        assert take(stage.stream(Source(range(n))), stop) == list(range(min(n, stop)))
    assert collect(stage, range(n)) == list(range(n))
    assert collect(stage, []) == list(range(n))


def test_an_interrupted_epoch_is_not_read_again_from_its_beginning(stage):
    take(stage.stream(Source(range(1000))), 990)
    Counted.given = 0
    assert elements(stage.stream(Counted(range(1000)))) == list(range(1000))
    assert Counted.given < 300


@settings(max_examples=15)
@given(n=st.integers(0, 250), stop=st.integers(0, 251), kind=st.sampled_from(KINDS))
def test_continues_from_its_state_exactly_with_the_store_it_had(continues, new, n, stop, kind):
    stage = new(kind)
    continues(lambda: stage.stream(Shuffle(20).stream(Source(range(n)))), stop)


@settings(max_examples=15)
@given(n=st.integers(0, 250), stop=st.integers(0, 251), kind=st.sampled_from(KINDS))
def test_continues_from_its_state_exactly_with_an_empty_store(continues, new, n, stop, kind):
    continues(lambda: new(kind).stream(Shuffle(20).stream(Source(range(n)))), stop)


@settings(max_examples=15)
@given(n=st.integers(0, 250), stop=st.integers(0, 251), kind=st.sampled_from(KINDS))
def test_after_it_was_continued_elsewhere_the_next_epoch_is_whole(new, n, stop, kind):
    first = new(kind).stream(Source(range(n)))
    take(first, stop)
    stage = new(kind)
    second = stage.stream(Source(range(n)))
    second.load_state_dict(first.state_dict())
    assert elements(second) == list(range(n))[stop:]
    assert collect(stage, range(n)) == collect(stage, range(n)) == list(range(n))


def test_fetches_an_element_from_the_store_and_others_from_the_source(stage):
    collect(stage, "abc")
    stream = stage.stream(Source("xyzuvw"))
    assert [stream.fetch(address) for address in (2, 0, 5)] == ["c", "a", "w"]


def test_an_element_that_fails_is_skipped_in_this_epoch_and_tried_again_in_the_next(stage):
    source = Counted(range(10))
    source.bad = 4
    stream = stage.stream(source)
    assert take(stream, 4) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="bad element"):
        next(stream)
    assert take(stream, 2) == [5, 6]
    resumed = stage.stream(Source(range(10)))
    resumed.load_state_dict(stream.state_dict())
    assert elements(resumed) == elements(stream) == [7, 8, 9]
    assert collect(stage, range(10)) == list(range(10))


@pytest.mark.parametrize("now", [range(100, 200), range(5), range(0, 100, 2)])
def test_stored_elements_of_another_source_are_thrown_away_if_they_are_not_all(new, kind, now):
    class Placed(Source):
        """Its addresses are its elements."""

        def __next__(self):
            _, element = super().__next__()
            return element, element

    stage = new(kind)
    take(stage.stream(Placed(range(100))), 50)
    with pytest.warns(RuntimeWarning, match="stored elements of an incomplete epoch are removed"):
        assert elements(stage.stream(Placed(now))) == list(now)
    assert collect(stage, []) == list(now)


def test_a_plain_generator_before_it_is_run_once(stage):
    runs = []

    def doubled(source):
        runs.append(1)
        for element in source:
            yield 2 * element

    dataset = DataPipeline(range(30)).compose(doubled, stage)
    assert [list(dataset) for _ in range(3)] == [[2 * n for n in range(30)]] * 3
    assert len(runs) == 1


def test_a_plain_generator_before_it_is_run_again_after_an_interruption(stage):
    dataset = DataPipeline(range(30)).compose(lambda source: (2 * n for n in source), stage)
    assert list(itertools.islice(dataset, 20)) == [2 * n for n in range(20)]
    assert list(dataset) == list(dataset) == [2 * n for n in range(30)]


def test_what_is_before_it_is_in_the_first_epoch_always(stage):
    dataset = DataPipeline(range(30)).shuffle(30)
    order = elements(dataset.stream())
    dataset = dataset.compose(stage)
    assert take(dataset.stream(Context(epoch=1)), 20) == order[:20]
    assert elements(dataset.stream(Context(epoch=2))) == order


def test_workers_have_parts_of_their_own(stage):
    contexts = [Context(worker=worker, workers=3) for worker in range(3)]
    dataset = DataPipeline(range(40)).compose(stage)
    for _ in range(2):
        parts = [elements(dataset.stream(context)) for context in contexts]
        assert sorted(itertools.chain(*parts)) == list(range(40))
    assert sorted(elements(dataset.stream(Context()))) == list(range(40))


def test_two_streams_at_once_store_every_element_once(stage):
    one, other = stage.stream(Source(range(100))), stage.stream(Source(range(100)))
    taken = take(one, 20), take(other, 70), take(one, 15)
    assert taken == (list(range(20)), list(range(70)), list(range(20, 35)))
    assert (elements(one), elements(other)) == (list(range(35, 100)), list(range(70, 100)))
    assert collect(stage, []) == list(range(100))


def test_a_stream_begins_where_another_has_filled_the_store_since_it_was_made(stage):
    one, other, late = [stage.stream(Source(range(100))) for _ in range(3)]
    taken = take(one, 50), take(other, 20)
    assert (taken[0] + elements(one), taken[1] + elements(other)) == (list(range(100)), list(range(100)))
    assert elements(late) == list(range(100))


def test_datasets_of_a_mix_that_share_the_stage_have_every_element_in_each_epoch(stage):
    cached = DataPipeline(range(100)).shuffle(10).compose(stage)
    mix = RandomMix([cached.map(int), cached.map(str)], longest=True)
    for _ in range(2):
        assert Counter(mix) == Counter([*range(100), *map(str, range(100))])


def test_nothing_stays_open(kind, new, nothing_left):
    stage = new(kind)
    take(stage.stream(Source(range(20))), 10)
    assert collect(stage, range(20)) == list(range(20))


def test_a_fork_uses_the_store_of_its_parent_but_not_its_open_files(stage, kind):
    stream = stage.stream(Source(range(60)))
    assert take(stream, 30) == list(range(30))
    child = os.fork()
    if child == 0:
        if kind != "mcached" and set(_open_files()) & set(_databases(stage)):
            os._exit(2)
        right = elements(stream) == list(range(30, 60)) and collect(stage, range(60)) == list(range(60))
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert elements(stream) == list(range(30, 60))
    assert collect(stage, range(60)) == list(range(60))


def _open_files():
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists the others
            yield os.readlink(f"/proc/self/fd/{number}")


def _databases(stage):
    if isinstance(stage, DBCache):
        return [stage.path, stage.path + "-wal"]
    return [os.path.join(stage.fname, name) for name in ("elements.db", "elements.db-wal")]


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


def test_a_state_that_is_saved_again_before_the_next_element_is_at_the_same_place():
    stage = Cached()
    collect(stage, range(500))
    first = stage.stream(Source(range(500)))
    take(first, 350)
    second, third = (Cached().stream(Source(range(500))) for _ in range(2))
    second.load_state_dict(first.state_dict())
    third.load_state_dict(second.state_dict())
    assert elements(third) == list(range(350, 500))


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
