"""The fingerprint of a dataset: what it tells apart, and what it does not."""

import functools
from dataclasses import dataclass

import pytest

import mpwds
from mpwds.loader.resume.description import described, fingerprint
from mpwds.loader.worker.elements import as_dataset


def of(*functions):
    """The fingerprint of a dataset with these functions, whose names and text the pipeline prints alike."""
    return fingerprint(mpwds.DataPipeline(range(9)).map(Named(list(functions))))


class Named:
    """A function of functions, printed without them."""

    def __init__(self, held):
        self.held = held

    def __call__(self, number):
        return number

    def __repr__(self):
        return "Named()"

    def method(self, number):
        return number + 1


@dataclass
class Options:
    size: int
    name: str = "x"


def power(exponent, **more):
    def apply(number):
        return number**exponent, more

    return apply


def plus(one, by=1):
    return one + by


def within(item, depth):
    return item if not depth else [within(item, depth - 1)]


def changed(function, **attributes):
    """A copy of a function that differs in these attributes alone."""
    other = type(function)(function.__code__, {}, function.__name__, function.__defaults__)
    for name, value in attributes.items():
        setattr(other, name, value)
    return other


DIFFER = {
    "numbers": (1, 2),
    "types of numbers": (1, 1.0),
    "texts": ("a", "b"),
    "lengths": ((1, 2), (1, 2, 2)),
    "large lengths": ([1] * 150, [1] * 160),
    "lists and tuples": ([1], (1,)),
    "keys": ({"a": 1}, {"b": 1}),
    "values": ({"a": 1}, {"a": 2}),
    "fields": (Options(1), Options(2)),
    "classes": (Options, Named),
    "functions of C": (len, abs),
    "code": (lambda x: x + 1, lambda x: x - 1),
    "constants": (lambda x: x + 1, lambda x: x + 2),
    "names in code": (lambda x: len(x), lambda x: abs(x)),
    "inner functions": (lambda x: [y + 1 for y in (lambda: x)()], lambda x: [y + 1 for y in (lambda: -x)()]),
    "closures": (power(2), power(3)),
    "closures of closures": (power(2, by=power(2)), power(2, by=power(3))),
    "defaults": (plus, changed(plus, __defaults__=(2,))),
    "keyword defaults": (changed(plus, __kwdefaults__={"k": 1}), changed(plus, __kwdefaults__={"k": 2})),
    "methods": (Named(0).method, Named(0).__call__),
    "objects of methods": (Named(1).method, Named(2).method),
    "functions of partial": (functools.partial(power(2), 1), functools.partial(plus, 1)),
    "arguments of partial": (functools.partial(plus, 1), functools.partial(plus, 2)),
    "keywords of partial": (functools.partial(plus, by=1), functools.partial(plus, by=2)),
    "what is deep within": (within(1, 4), within(2, 4)),
}
ARE_ALIKE = {
    "functions that were made twice": (power(2), power(2)),
    "paths": ("/data/one", "/mnt/two"),
    "paths in closures": (power("/data/one"), power("/mnt/two")),
}


@pytest.mark.parametrize("what", DIFFER)
def test_it_tells_apart(what):
    one, other = DIFFER[what]
    assert of(one) == of(one) != of(other)


@pytest.mark.parametrize("what", ARE_ALIKE)
def test_it_does_not_tell_apart(what):
    one, other = ARE_ALIKE[what]
    assert of(one) == of(other)


def test_a_dataset_that_holds_itself_has_one():
    held = [1]
    held.append(held)
    assert of(held) == of(held)


def test_where_shards_are_does_not_count_but_how_many_does():
    places = "/a/{x,y}-{0..4}.tar", "s3://b/{0..9}.tar", "/a/{x,y}-{0..5}.tar"
    here, there, more = (fingerprint(mpwds.WebDataset(place)) for place in places)
    assert here == there != more


def test_what_becomes_of_bad_samples_does_not_count(tmp_path):
    def dataset():
        handler = mpwds.quarantine(tmp_path / "bad.jsonl")
        return mpwds.DataPipeline(range(9)).map(str, handler=handler)

    before = fingerprint(dataset())
    (tmp_path / "bad.jsonl").write_text("{}\n")
    assert fingerprint(dataset()) == before == fingerprint(mpwds.DataPipeline(range(9)).map(str))


def test_what_the_package_brings_is_described_by_name():
    """The code of a lambda differs among Pythons, so their states would not be each other's."""
    shards = mpwds.WebDataset("x-{0..3}.tar", shardshuffle=True).shuffle(9).decode("rgb8")
    for dataset in (shards.batched(4), mpwds.ResampledShards("x.tar"), mpwds.DataPipeline(range(3))):
        assert not [text for text in described(as_dataset(dataset)) if ", code " in text]
