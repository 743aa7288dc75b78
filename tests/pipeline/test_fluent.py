"""The methods of datasets are the functions of their names."""

import contextlib
import inspect
import pydoc
import re
import subprocess
import sys
import warnings
from pathlib import Path

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
    assert inspect.signature(method).return_annotation == "Self"


def test_help_lists_the_methods():
    shown = pydoc.plain(pydoc.render_doc(mpwds.WebDataset))
    signatures = "".join(shown.replace("|", "").split())  # Python 3.13 breaks long ones into lines
    assert "map(self,f:'Callable[[Any],Any]',handler:'Handler'=" in signatures
    assert "shuffle(self:'Self',size:'" in signatures


def test_a_subclass_may_override_a_method_and_call_it():
    class Doubled(DataPipeline):
        def map(self, f, **options):
            return super().map(lambda n: 2 * f(n), **options)

    assert list(Doubled([1, 2]).map(abs)) == [2, 4]


def test_pipe_calls_a_class_of_the_users_own_with_its_arguments():
    class Every:
        def __init__(self, number):
            self.number = number

        def stream(self, source, context=None):
            for place, pair in enumerate(source):
                if place % self.number == 0:
                    yield pair

    assert list(DataPipeline(range(6)).pipe(Every, 3)) == [0, 3]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
        DataPipeline(range(6)).pipe(Every)


def test_wrong_arguments_are_an_error_of_the_function():
    with pytest.raises(TypeError, match=r"rsample\(\) has no argument 'q'"):
        DataPipeline([]).rsample(q=1)


def test_shuffle_names_its_buffer_size_and_takes_all_else_as_its_function_does():
    (_, (size, _, _), *others) = parameters(Fluent.shuffle)
    assert size == "size"
    assert others == parameters(function("shuffle"))[1:]


def test_a_dataset_imports_no_stage_that_it_does_not_use():
    code = "import mpwds, sys; mpwds.DataPipeline([1]).map(abs); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert "mpwds.pipeline.stages.map" in loaded.split()
    assert "mpwds.pipeline.stages.batched" not in loaded.split()


def test_all_of_webdatasets_methods_are_there():
    theirs = {name for name in vars(webdataset.compat.FluidInterface) if not name.startswith("_")}
    assert theirs <= set(STAGES)


@pytest.mark.parametrize("size", [0, -1])
def test_shuffling_with_no_buffer_is_not_shuffling(size):
    assert list(DataPipeline(range(50)).shuffle(size)) == list(range(50))


DATASET = DataPipeline(range(4))


def loader():
    return mpwds.MultiLoader(DATASET, workers=1)


DROPPED = {  # a statement, and the stage that it drops
    "DATASET.shuffle(10)": "shuffle(10)",
    "DATASET.map(abs).batched(2, partial=False)": "batched(2, partial=False)",
    "with suppress(ValueError): DATASET.compose(mpwds.batched(2))": "batched(2)",
    "mpwds.Dataset('x.tar').decode('rgb')": "decode('rgb')",
    "loader().unbatched()": "unbatched()",
    "loader().with_epoch(9)": "with_epoch(9)",
    "loader().repeat(2)": "repeat(2)",
    "loader().with_length(7, silent=True)": "with_length(7)",
}


@pytest.mark.parametrize("line", DROPPED)
def test_a_stage_that_a_statement_drops_is_a_warning_at_its_line(line, tmp_path):
    (tmp_path / "program.py").write_text(f"def drop():\n    {line}\n")
    names = {"suppress": contextlib.suppress, "mpwds": mpwds, "DATASET": DATASET, "loader": loader}
    exec(compile((tmp_path / "program.py").read_text(), tmp_path / "program.py", "exec"), names)
    expected = f"^{re.escape(DROPPED[line])} has no effect: .* Write dataset = "
    with pytest.warns(UserWarning, match=expected) as caught:
        names["drop"]()
    (warning,) = caught
    assert (Path(warning.filename), warning.lineno) == (tmp_path / "program.py", 2)


def test_a_stage_that_is_kept_shown_tested_or_passed_on_is_no_warning(capsys):
    def shuffled(dataset):
        return dataset.shuffle(10)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unused = DATASET.shuffle(10)
        [DATASET.shuffle(10) for _ in range(2)]
        if DATASET.shuffle(10):
            shuffled(DATASET)
        str(DATASET.shuffle(10))
        exec(compile("DATASET.shuffle(10)", "<stdin>", "single"))
        DataPipeline(range(4)).with_epoch(3)
        mpwds.MultiLoader(DATASET, workers=1).unbatched().with_epoch(3)
        mpwds.Dataset("x.tar", shuffle=10, decoder="rgb")
        mpwds.WebDataset({"datasets": [{"shards": "x.tar", "shuffle": 4, "weight": 1}]})
    assert repr(unused) == capsys.readouterr().out.strip()
