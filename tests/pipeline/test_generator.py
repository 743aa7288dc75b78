import random

import pytest

from mpwds.pipeline.coercion import Generator
from mpwds.pipeline.context import Context
from mpwds.pipeline.stages.map import Map
from mpwds.pipeline.stream import Source, collect


def noisy_twice(source):
    for element in source:
        yield element + random.random()
        yield element + random.random()


def test_gets_plain_elements_and_gives_plain_elements():
    def pairs(source):
        for element in source:
            yield element, next(source, None)

    assert collect(Generator(pairs), "abc") == [("a", "b"), ("c", None)]


def test_any_function_of_an_iterator_will_do():
    assert collect(Generator(lambda source: map(str.upper, source)), "ab") == ["A", "B"]


@pytest.mark.parametrize("returned", [None, 3])
def test_a_function_that_returns_no_iterator_is_named(returned):
    def crop(source):
        return returned

    with pytest.raises(TypeError, match=rf"compose\(.*crop\) returned {returned}, not an iterator"):
        collect(Generator(crop), "ab")


def test_draws_the_same_numbers_each_time_it_runs():
    runs = [collect(Generator(noisy_twice), range(5)) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len({number % 1 for number in runs[0]}) == 10


def test_a_function_that_draws_before_its_first_element_does_so_again():
    def shuffled(source):
        elements = list(source)
        random.shuffle(elements)
        return iter(elements)

    before = random.getstate()
    runs = [collect(Generator(shuffled), range(20)) for _ in range(2)]
    assert runs[0] == runs[1] != list(range(20))
    assert random.getstate() == before


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


def test_an_error_says_how_far_it_came():
    def failing(source):
        yield next(source)
        raise OSError("lost")

    with pytest.raises(OSError, match="lost") as caught:
        collect(Generator(failing), "ab")
    assert caught.value.__notes__ == ["in compose(failing), after 1 elements"]


def test_its_elements_cannot_be_fetched():
    stream = Generator(noisy_twice).stream(Source([1]))
    with pytest.raises(LookupError, match=r"compose\(noisy_twice\) gives elements without addresses"):
        stream.fetch(next(stream)[0])
