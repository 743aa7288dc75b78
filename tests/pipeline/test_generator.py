import functools
import pickle
import random
import re
import sys
import types

import cloudpickle
import pytest
import webdataset.filters

from mpwds.pipeline.coercion import Generator, PipelineStage, pipelinefilter
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.iterable_sources import Iterated
from mpwds.pipeline.stages.map import Map
from mpwds.pipeline.stream import Source, collect


def noisy_twice(source):
    for element in source:
        yield element + random.random()
        yield element + random.random()


class Twice:
    def stream(self, source, context=None):
        for address, element in source:
            yield address, 2 * element


class Numbers:
    def stream(self, context=None):
        yield from enumerate(range(4))


def test_the_stream_of_a_class_may_be_a_generator_which_has_no_addresses():
    for dataset in (DataPipeline(range(4), Twice()), DataPipeline(Numbers(), Twice())):
        assert list(dataset) == [0, 2, 4, 6]
        stream = dataset.stream(Context())
        first = [next(stream)[1] for _ in range(2)]
        again = dataset.stream(Context())
        with pytest.warns(UserWarning, match="gives elements without addresses"):
            again.load_state_dict(stream.state_dict())
        assert first + [element for _, element in again] == [0, 2, 4, 6]


def test_a_stream_without_addresses_and_pairs_is_an_error_that_says_what_to_write():
    class Plain:
        def stream(self, source, context=None):
            yield from (element for _, element in source)

    with pytest.raises(TypeError, match=r"the stream of Plain gives 0, not a pair \(address, element\)"):
        list(DataPipeline(range(4), Plain()))


@pytest.mark.parametrize("returned", [None, 3])
def test_a_function_that_returns_no_iterator_is_named(returned):
    def crop(source):
        return returned

    with pytest.raises(TypeError, match=rf"compose\(.*crop\) returned {returned}, not an iterator"):
        collect(Generator(crop), "ab")


def test_its_random_numbers_are_the_same_in_each_run_of_an_epoch_also_behind_stages_that_draw():
    drawing = Map(lambda number: (number, random.random())[0])

    def run():
        source = drawing.stream(Source(range(5)), Context(stage=1, owns_process=True))
        stream = Generator(noisy_twice).stream(source, Context(stage=2, owns_process=True))
        return [element for _, element in stream]

    first = run()
    random.seed(99)
    assert run() == first
    assert len(set(first)) == 10


def test_workers_draw_different_numbers():
    runs = [collect(Generator(noisy_twice), range(5), Context(worker=worker)) for worker in (0, 1)]
    assert set(runs[0]).isdisjoint(runs[1])


# Both run a user's iterator: a source that is an iterable, and a stage that is a generator function.
KINDS = pytest.mark.parametrize(
    ("new", "prints"),
    [
        (lambda function: Iterated(function).stream(), "{}"),
        (lambda function: Generator(ignoring_the_source(function)).stream(Source("ab")), "compose({})"),
    ],
    ids=["source", "stage"],
)


def ignoring_the_source(function):
    return functools.wraps(function)(lambda source: function())


@KINDS
def test_it_draws_the_same_numbers_each_time_it_runs_and_leaves_the_users_alone(new, prints):
    def numbers():
        order = random.sample(range(20), 20)  # drawn when the iterator is made
        return (number + random.random() for number in order)

    before = random.getstate()
    runs = [[element for _, element in new(numbers)] for _ in range(2)]
    assert runs[0] == runs[1] != sorted(runs[0])
    assert len({number % 1 for number in runs[0]}) == 20
    assert random.getstate() == before


@KINDS
def test_an_error_says_how_far_it_came(new, prints):
    def failing():
        yield 1
        raise OSError("disconnected")

    stream = new(failing)
    next(stream)
    with pytest.raises(OSError, match="disconnected") as caught:
        next(stream)
    assert caught.value.__notes__ == [f"in {prints.format('failing')}, after 1 elements"]


@KINDS
def test_its_elements_cannot_be_fetched(new, prints):
    def numbers():
        yield 1

    stream = new(numbers)
    with pytest.raises(LookupError, match=re.escape(prints.format("numbers")) + " gives elements without"):
        stream.fetch(next(stream)[0])


def numbered(source, first, step=1):
    """Numbers its elements."""
    for element in source:
        yield first, element
        first += step


every = pipelinefilter(numbered)


def test_pipelinefilter_yields_what_webdatasets_yields():
    theirs = webdataset.filters.pipelinefilter(numbered)
    assert list(every(5, step=2)("abc")) == list(theirs(5, step=2)("abc")) == [(5, "a"), (7, "b"), (9, "c")]
    for dataset in (DataPipeline("ab", every(5)), DataPipeline("ab").compose(every(5))):
        assert list(dataset) == [(5, "a"), (6, "b")]


def test_a_pipelinefilter_keeps_name_and_documentation_and_its_stage_prints_the_call():
    assert (every.__name__, every.__doc__) == ("numbered", "Numbers its elements.")
    assert str(every(5, step=2)) == "numbered(5, step=2)"


def test_a_local_pipelinefilter_is_pickled_by_value():
    @pipelinefilter
    def twice(source):
        for element in source:
            yield from (element, element)

    copy = cloudpickle.loads(cloudpickle.dumps(twice()))
    assert list(copy("ab")) == ["a", "a", "b", "b"]


def test_a_pipelinefilter_of_a_module_is_pickled_by_its_name_as_functions_are(monkeypatch):
    module = types.ModuleType("a_users_module")
    monkeypatch.setitem(sys.modules, "a_users_module", module)
    exec(
        "from mpwds.pipeline.coercion import pipelinefilter\n"
        "@pipelinefilter\n"
        "def same(source):\n"
        "    yield from source\n",
        module.__dict__,
    )
    assert pickle.loads(pickle.dumps(module.same)) is module.same
    assert list(pickle.loads(pickle.dumps(module.same()))("ab")) == ["a", "b"]


def test_classes_with_a_method_run_are_stages_and_one_without_says_so():
    class Reversed(PipelineStage):
        def run(self, source):
            return reversed(list(source))

    class Nothing(PipelineStage):
        pass

    assert list(DataPipeline("abc", Reversed())) == ["c", "b", "a"]
    with pytest.raises(NotImplementedError, match="Nothing is a pipeline stage without a method run"):
        list(DataPipeline("abc", Nothing()))
