import functools

import pytest

from mpwds.pipeline.error_context import add_note, arguments
from mpwds.pipeline.stages.map import Map
from mpwds.pipeline.stages.select import Select
from mpwds.pipeline.stream import Source


def test_an_error_keeps_its_type_and_says_where_once():
    def invert(n):
        return 1 / n

    stream = Select(bool).stream(Map(lambda n: n).stream(Map(invert).stream(Source([2, 0]))))
    next(stream)
    with pytest.raises(ZeroDivisionError) as caught:
        next(stream)
    assert caught.value.__notes__ == ["in map(invert), on element 1"]


def test_an_error_costs_only_its_element():
    stream = Map(lambda n: 1 / n).stream(Source([1, 0, 2]))
    next(stream)
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert [element for _, element in stream] == [0.5]


def test_a_function_cannot_end_the_dataset_by_stopiteration():
    with pytest.raises(
        RuntimeError, match=r"in map\(<lambda>\), on element 0: a function raised StopIteration"
    ):
        next(Map(lambda n: next(iter(()))).stream(Source([1])))


def test_notes_add_up_on_every_python():
    error = ValueError("bad")
    add_note(error, "in map(f)")
    add_note(error, "in batched(2)")
    assert error.__notes__ == ["in map(f)", "in batched(2)"]


def test_arguments_are_shown_as_one_writes_them():
    class Crop:
        def __call__(self):
            pass

    assert arguments(functools.partial(len), Crop(), None, 3, a="b") == "len, Crop(...), None, 3, a='b'"
