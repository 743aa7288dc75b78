"""The methods of datasets are the functions of their names."""

import inspect
import pydoc
import subprocess
import sys

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


@pytest.mark.parametrize("name", [name for name in STAGES if name != "shuffle"])
def test_a_method_takes_what_its_function_takes_and_has_its_documentation(name):
    method = getattr(mpwds.WebDataset, name)
    assert parameters(method)[1:] == parameters(function(name))
    assert method.__doc__ == function(name).__doc__
    assert (method.__name__, method.__qualname__) == (name, f"Fluent.{name}")


def test_help_lists_the_methods():
    shown = pydoc.plain(pydoc.render_doc(mpwds.WebDataset))
    signatures = "".join(shown.replace("|", "").split())  # Python 3.13 breaks long ones into lines
    assert "map(self,f:'Callable[[Any],Any]',handler:'Handler'=" in signatures
    assert "shuffle(self:'Self',size:'int'," in signatures


def test_a_subclass_may_override_a_method_and_call_it():
    class Doubled(DataPipeline):
        def map(self, f, **options):
            return super().map(lambda n: 2 * f(n), **options)

    assert list(Doubled([1, 2]).map(abs)) == [2, 4]


def test_wrong_arguments_are_an_error_of_the_function():
    with pytest.raises(TypeError, match=r"rsample\(\) has no argument 'q'"):
        DataPipeline([]).rsample(q=1)


def test_shuffle_names_its_buffer_size_and_needs_it():
    (_, (size, default, _), *others) = parameters(Fluent.shuffle)
    assert (size, default) == ("size", inspect.Parameter.empty)
    assert others == parameters(function("shuffle"))[1:]


def test_a_dataset_imports_no_stage_that_it_does_not_use():
    code = "import mpwds, sys; mpwds.DataPipeline([1]).map(abs); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert "mpwds.pipeline.stages.map" in loaded.split()
    assert "mpwds.pipeline.stages.batched" not in loaded.split()


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
