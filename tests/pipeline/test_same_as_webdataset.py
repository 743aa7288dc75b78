"""What the stages that webdataset has too make of the same samples."""

import inspect
import operator

import numpy as np
import pytest
import webdataset
import webdataset.filters
import webdataset.tariterators
from hypothesis import given, settings
from hypothesis import strategies as st

import mpwds
from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.pipeline.stages.batched import batched
from mpwds.pipeline.stages.fields import map_dict, to_tuple
from mpwds.pipeline.stages.map import map, map_tuple
from mpwds.pipeline.stages.select import select
from mpwds.pipeline.stages.shuffle import shuffle

fields = st.sampled_from(["png", "jpg", "cls"])
values = st.none() | st.integers(-3, 3)
dicts = st.lists(st.dictionaries(fields, values).map(lambda sample: {"__key__": "a", **sample}), max_size=6)
tuples = st.lists(st.tuples(values, values), max_size=6)
handlers = st.sampled_from(
    [webdataset.reraise_exception, webdataset.ignore_and_continue, webdataset.ignore_and_stop]
)


def outcome(stage, elements):
    """What comes out, and which error ends it."""
    found = []
    try:
        for element in stage(iter([*elements])):
            found.append(element)
    except (ValueError, TypeError, ArithmeticError, KeyError) as error:
        return found, type(error)
    return found, None


def invert(value):
    return 6 / value


def sample_of(sample):
    """A dict without a key, nothing, or an error."""
    value = sample.get("cls")
    return None if value == 1 else {"x": invert(value)}


@settings(max_examples=60, deadline=None)
@given(samples=dicts, handler=handlers)
def test_map(samples, handler):
    assert outcome(map(sample_of, handler), samples) == outcome(webdataset.map(sample_of, handler), samples)


@settings(max_examples=60, deadline=None)
@given(samples=dicts, handler=handlers)
def test_map_dict(samples, handler):
    stages = [make(handler, cls=invert, png=str) for make in (map_dict, webdataset.map_dict)]
    ours, theirs = [outcome(stage, [dict(sample) for sample in samples]) for stage in stages]
    assert ours == theirs


@settings(max_examples=60, deadline=None)
@given(samples=tuples, handler=handlers, functions=st.lists(st.sampled_from([None, invert, str]), max_size=2))
def test_map_tuple(samples, handler, functions):
    stages = [make(*functions, handler=handler) for make in (map_tuple, webdataset.map_tuple)]
    ours, theirs = [outcome(stage, samples) for stage in stages]
    assert ours == theirs


@settings(max_examples=100, deadline=None)
@given(
    samples=dicts,
    handler=handlers,
    specs=st.sampled_from([("png;jpg", "cls"), ("png;jpg cls",), ("__key__",), (["cls", "jpg"], "png")]),
    missing=st.booleans(),
    none=st.none() | st.booleans(),
)
def test_to_tuple(samples, handler, specs, missing, none):
    options = {"handler": handler, "missing_is_error": missing, "none_is_error": none}
    stages = [make(*specs, **options) for make in (to_tuple, webdataset.to_tuple)]
    ours, theirs = [outcome(stage, samples) for stage in stages]
    assert ours == theirs


@settings(max_examples=30, deadline=None)
@given(samples=tuples)
def test_select(samples):
    accepted = operator.itemgetter(0)
    assert outcome(select(accepted), samples) == outcome(webdataset.select(accepted), samples)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 30), size=st.integers(1, 9), partial=st.booleans(), collate=st.none() | st.just(sum))
def test_batched(n, size, partial, collate):
    ours, theirs = [list(make(size, collate, partial)(range(n))) for make in (batched, webdataset.batched)]
    assert ours == theirs


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 30), size=st.integers(1, 9))
def test_batched_with_the_default_collation(n, size):
    samples = [(np.full((2, 2), k), k, str(k)) for k in range(n)]
    ours, theirs = [list(make(size)(samples)) for make in (batched, webdataset.batched)]
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine[0], other[0])
        np.testing.assert_array_equal(mine[1], other[1])
        assert mine[2] == other[2]


@pytest.mark.parametrize("arguments", [(), (5,), (5, 2), (500, 100), (1, 100)])
def test_shuffle_takes_the_arguments_that_webdatasets_takes(arguments):
    for options in ({}, {"seed": 3}, {"rng": None, "handler": None}):
        for make in (shuffle, webdataset.shuffle):
            assert sorted(make(*arguments, **options)(iter(range(50)))) == list(range(50))


# webdataset leaves shards open.
leaves_open = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@leaves_open
@pytest.mark.parametrize("prefix", ["", "file:"])
def test_samples_of_local_shards_are_the_same_dicts(shards, prefix):
    urls = [prefix + url for url in webdataset.shardlists.expand_urls(shards)]
    theirs = list(webdataset.WebDataset(urls, shardshuffle=False))
    assert "__local_path__" in theirs[0]
    dataset = WebDataset(urls, shardshuffle=False)
    assert list(dataset) == theirs
    assert [dataset.stream().fetch(address) for address, _ in dataset.stream()] == theirs


@leaves_open
def test_samples_of_the_stages_that_open_shards_are_the_same_dicts(shards):
    def samples(package, *stages):
        return list(package.DataPipeline(package.SimpleShardList(shards), *stages))

    assert samples(mpwds, mpwds.tarfile_to_samples()) == samples(webdataset, webdataset.tarfile_to_samples())
    ours, theirs = [
        (package.url_opener, package.tar_file_expander, package.group_by_keys)
        for package in (mpwds, webdataset.tariterators)
    ]
    assert samples(mpwds, *ours) == samples(webdataset, *theirs)


@leaves_open
def test_samples_of_other_shards_are_the_same_dicts(shards):
    url = "pipe:cat " + shards.replace("{000..005}", "000")
    assert list(WebDataset(url)) == list(webdataset.WebDataset(url, shardshuffle=False))


SAME_DEFAULTS = [
    *("RandomMix", "ResampledShards", "RoundRobin", "WebDataset", "default_collation_fn", "detshuffle"),
    *("extract_keys", "getfirst", "info", "log_keys", "rename", "rename_keys", "rsample", "shuffle"),
    *("to_tuple", "xdecode"),
]


@pytest.mark.parametrize("name", SAME_DEFAULTS)
def test_arguments_that_are_left_out_are_webdatasets(name):
    """Other than functions and files, of which both have their own."""
    theirs = getattr(webdataset.filters, name, None) or getattr(webdataset, name)
    functions = [getattr(mpwds, name, None) or getattr(mpwds.filters, name), getattr(theirs, "f", theirs)]
    ours, theirs = [
        {
            argument: parameter.default
            for argument, parameter in inspect.signature(function).parameters.items()
            if isinstance(parameter.default, (float, int, str, type(None)))
        }
        for function in functions
    ]
    shared = ours.keys() & theirs.keys()
    assert shared
    assert {each: ours[each] for each in shared} == {each: theirs[each] for each in shared}


def test_batches_have_twenty_elements_by_default():
    batches = mpwds.DataPipeline(range(21)).listed()
    for dataset in (batches, batches.unlisted().batched()):
        assert [len(batch) for batch in dataset] == [20, 1]
