"""The methods of datasets are the functions of their names."""

import inspect

import pytest
import webdataset
import webdataset.compat

import mpwds
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.fluent import Fluent

METHODS = sorted(name for base in Fluent.__mro__ for name in vars(base) if not name.startswith("_"))
STAGES = [name for name in METHODS if name not in ("compose", "pipe", "then")]


def function(name):
    return getattr(mpwds, name)


def parameters(callable):
    return [(name, each.default, each.kind) for name, each in inspect.signature(callable).parameters.items()]


@pytest.mark.parametrize("name", [name for name in STAGES if name not in ("shuffle", "slice")])
def test_a_method_takes_what_its_function_takes(name):
    assert parameters(getattr(Fluent, name))[1:] == parameters(function(name))


def test_shuffle_names_its_buffer_size_and_needs_it():
    (_, (size, default, _), *others) = parameters(Fluent.shuffle)
    assert (size, default) == ("size", inspect.Parameter.empty)
    assert others == parameters(function("shuffle"))[1:]


def test_all_of_webdatasets_methods_are_there():
    theirs = {name for name in vars(webdataset.compat.FluidInterface) if not name.startswith("_")}
    assert theirs <= set(STAGES)


def test_a_method_leaves_the_dataset_as_it_is():
    dataset = DataPipeline(range(3))
    longer = dataset.map(str)
    assert (list(dataset), list(longer)) == ([0, 1, 2], ["0", "1", "2"])


@pytest.mark.parametrize("size", [0, -1])
def test_shuffling_with_no_buffer_is_not_shuffling(size):
    assert list(DataPipeline(range(50)).shuffle(size)) == list(range(50))
