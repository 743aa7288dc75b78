import pickle
import sys
import types

import cloudpickle
import pytest
import webdataset.filters

from mpwds.pipeline.coercion import PipelineStage, pipelinefilter
from mpwds.pipeline.dataset import DataPipeline


def numbered(source, first, step=1):
    """Numbers its elements."""
    for element in source:
        yield first, element
        first += step


every = pipelinefilter(numbered)


def test_yields_what_webdatasets_yields():
    theirs = webdataset.filters.pipelinefilter(numbered)
    assert list(every(5, step=2)("abc")) == list(theirs(5, step=2)("abc")) == [(5, "a"), (7, "b"), (9, "c")]


def test_its_stages_go_into_pipelines():
    expected = [(5, "a"), (6, "b")]
    assert list(DataPipeline("ab", every(5))) == expected
    assert list(DataPipeline("ab").compose(every(5))) == expected


def test_keeps_the_functions_name_and_documentation():
    assert (every.__name__, every.__doc__) == ("numbered", "Numbers its elements.")


def test_prints_the_call():
    assert str(every(5, step=2)) == "numbered(5, step=2)"
    assert "numbered(5)" in repr(DataPipeline("ab", every(5)))


def test_a_local_one_is_pickled_by_value():
    @pipelinefilter
    def twice(source):
        for element in source:
            yield from (element, element)

    copy = cloudpickle.loads(cloudpickle.dumps(twice()))
    assert list(copy("ab")) == ["a", "a", "b", "b"]


def test_one_of_a_module_is_pickled_by_its_name_as_functions_are(monkeypatch):
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


def test_classes_with_a_method_run_are_stages():
    class Reversed(PipelineStage):
        def run(self, source):
            return reversed(list(source))

    assert list(DataPipeline("abc", Reversed())) == ["c", "b", "a"]
    assert list(DataPipeline("abc").compose(Reversed())) == ["c", "b", "a"]


def test_a_class_without_a_method_run_says_so():
    class Nothing(PipelineStage):
        pass

    with pytest.raises(
        NotImplementedError, match=r"Nothing is a pipeline stage without a method run\(source\)"
    ):
        list(DataPipeline("abc", Nothing()))
