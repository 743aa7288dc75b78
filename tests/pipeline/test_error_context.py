import functools

import numpy as np
import pytest

from mpwds import DataPipeline, RoundRobin, SimpleShardList, resampled, tarfile_samples
from mpwds.pipeline.error_context import arguments, given_options
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


def test_options_that_are_arrays_are_compared_and_printed():
    def normalize(mean=None, size=3):
        pass

    given = given_options(normalize, {"mean": np.zeros(3), "size": np.int64(3)})
    assert list(given) == ["mean"]
    assert arguments(**given) == "mean=array([0., 0., 0.])"


def test_arguments_are_shown_as_one_writes_them():
    class Crop:
        def __call__(self):
            pass

    assert arguments(functools.partial(len), Crop(), None, 3, a="b") == "len, Crop(...), None, 3, a='b'"


def fail(element):
    raise OSError("bad")


def copied(source):
    yield from source


def renamed(shards):
    return ({"url": shard["url"].upper()} for shard in shards)


SHARDS = SimpleShardList("{x,y}.tar")


@pytest.mark.parametrize(
    ("run", "place"),
    [
        (lambda stage: stage("ab"), "element 0 of a plain iterator"),
        (
            lambda stage: DataPipeline("ab", copied, stage),
            "element 0 of compose(copied) in worker 0 of rank 0",
        ),
        (lambda stage: DataPipeline(DataPipeline([{"__key__": "a"}]).repeat(2), stage), 'sample "a"'),
        (lambda stage: DataPipeline(DataPipeline("ab").slice(1, 2).repeat(2), stage), "element 1"),
        (lambda stage: DataPipeline(RoundRobin([DataPipeline("ab").slice(1, 2), "cd"]), stage), "element 1"),
        (lambda stage: DataPipeline(SHARDS, list, stage, tarfile_samples), "shard x.tar"),
        (lambda stage: DataPipeline(SHARDS, renamed, stage, tarfile_samples), "shard X.TAR"),
        (lambda stage: DataPipeline(SimpleShardList("x.tar"), resampled(3), stage), "shard x.tar"),
        (lambda stage: DataPipeline("ab").batched(1).pipe(stage), "a batch of element 0"),
        (
            lambda stage: DataPipeline("abc").batched(2).pipe(stage),
            "a batch of 2, from element 0 to element 1",
        ),
        (lambda stage: DataPipeline([[1, 2]]).unlisted().slice(1, 2).pipe(stage), "item 1 of element 0"),
    ],
)
def test_an_error_tells_which_element_it_is(run, place):
    with pytest.raises(OSError, match="bad") as caught:
        list(run(Map(fail)))
    assert caught.value.__notes__ == [f"in map(fail), on {place}"]


def test_an_error_that_is_raised_again_tells_only_the_place_where_it_is_now():
    bad, places = ValueError("bad"), []

    def fail(element):
        raise bad

    def note(error):
        places.append((*error.__notes__, error.incident.place))
        return True

    assert list(Map(fail, note)("ab")) == []
    elements = [f"element {n} of a plain iterator" for n in (0, 1)]
    assert places == [(f"in map(fail, handler=note), on {element}", element) for element in elements]
