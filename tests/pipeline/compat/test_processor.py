"""Processor and ``.pipe``: stages from functions and their arguments."""

import pickle
from functools import partial

import cloudpickle
import pytest
import torch.utils.data

import mpwds
from mpwds import MultiLoader
from mpwds.compat.dataset import Processor, stage_of
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.stages.batched import Batched
from mpwds.pipeline.stages.decode import decode
from mpwds.pipeline.stages.map import Map, map
from mpwds.pipeline.stages.select import select
from mpwds.pipeline.stages.shuffle import Shuffle, shuffle


def repeated(elements, times, gap=None):
    for element in elements:
        for _ in range(times):
            yield element
        if gap is not None:
            yield gap


def test_a_function_that_makes_a_stage_is_called_with_the_arguments():
    assert list(Processor(map, str.upper)("abc")) == ["A", "B", "C"]
    assert list(Processor(mpwds.batch, 2, collation_fn=None)(range(3))) == [[0, 1], [2]]
    assert list(Processor(decode, "rgb8")([{"__key__": "a", "cls": b"7"}])) == [{"__key__": "a", "cls": 7}]


def test_a_generator_function_gets_the_elements_and_the_arguments():
    assert list(Processor(repeated, 2, gap="-")("ab")) == ["a", "a", "-", "b", "b", "-"]
    assert list(Processor(repeated, times=2)("ab")) == ["a", "a", "b", "b"]


@pytest.mark.parametrize("f", [Map(abs), abs, partial(repeated, times=1)])
def test_a_stage_or_function_without_arguments_stays_as_it_is(f):
    stage = stage_of(f)
    assert f in (stage, getattr(stage, "function", None))


def test_a_class_of_stages_is_called_with_the_arguments():
    assert stage_of(Shuffle, 10, seed=3) == Shuffle(10, seed=3)


def test_a_users_function_that_is_annotated_to_make_a_stage_is_called():
    def pairs(size: int = 2) -> Batched:
        return Batched(size, collation_fn=None)

    def either(size: int) -> "Batched | Shuffle":
        return Batched(size, collation_fn=None) if size > 1 else Shuffle(1)

    assert list(Processor(pairs)("abc")) == [["a", "b"], ["c"]]
    assert list(Processor(either, 3)("abc")) == [["a", "b", "c"]]


def test_a_pipelinefilter_and_a_class_of_pipeline_stages_make_stages():
    class Last(mpwds.PipelineStage):
        def __init__(self, count):
            self.count = count

        def run(self, source):
            return list(source)[-self.count :]

    assert list(Processor(mpwds.pipelinefilter(repeated), 2)("ab")) == ["a", "a", "b", "b"]
    assert list(Processor(Last, 2)("abc")) == list(Processor(Last(2))("abc")) == ["b", "c"]


def test_other_annotations_make_no_stage():
    def listed(elements) -> "list[unknown_name]":  # noqa: F821  # only a type checker could resolve it
        return [[element] for element in elements]

    def some(elements) -> list:
        return list(elements)[1:]

    assert list(Processor(listed)("ab")) == [["a"], ["b"]]
    assert list(Processor(some)("ab")) == ["b"]


def test_the_source_may_come_first():
    dataset = Processor(DataPipeline(range(6)), select, lambda n: n % 2)
    dataset = Processor(dataset, repeated, 2)
    assert list(dataset) == [1, 1, 3, 3, 5, 5]
    assert list(Processor([1, 2], map, str)) == ["1", "2"]


def test_the_result_is_a_dataset_with_methods_and_leaves_its_source_as_it_is():
    source = DataPipeline(range(4))
    dataset = Processor(map, str)(source)
    assert list(dataset.batched(3, collation_fn=None)) == [["0", "1", "2"], ["3"]]
    assert list(source) == [0, 1, 2, 3]
    assert isinstance(dataset, torch.utils.data.IterableDataset)


def test_a_processor_is_a_stage(continues):
    processor = Processor(shuffle, 10)
    assert sorted(DataPipeline(range(20), processor)) == list(range(20))
    continues(lambda: DataPipeline(range(20), processor, processor).stream(), 7)
    assert str(processor) == str(Shuffle(10))


def test_a_stage_keeps_its_address_and_a_generator_function_has_none(continues):
    continues(lambda: Processor(shuffle, 4)(range(9)).stream(), 5)
    first = Processor(repeated, 2)(range(3)).stream()
    seen = [next(first)[1] for _ in range(3)]
    second = Processor(repeated, 2)(range(3)).stream()
    with pytest.warns(UserWarning, match="repeated"):
        second.load_state_dict(first.state_dict())
    assert seen + [element for _, element in second] == [0, 0, 1, 1, 2, 2]


def test_its_datasets_work_in_loaders():
    def twice(elements, *gaps):
        for element in elements:
            yield from (element, *gaps, element)

    dataset = Processor(twice, 0)(Processor(map, lambda n: n + 1)(range(6)))
    with MultiLoader(dataset, workers=2, start_method="fork") as loader:
        assert sorted(int(n) for n in loader) == [0] * 6 + sorted([1, 2, 3, 4, 5, 6] * 2)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    assert sorted(int(n) for n in loader) == [0] * 6 + sorted([1, 2, 3, 4, 5, 6] * 2)


def test_it_is_pickled():
    assert list(pickle.loads(pickle.dumps(Processor(shuffle, 1)))(range(3))) == [0, 1, 2]
    assert list(cloudpickle.loads(cloudpickle.dumps(Processor(repeated, 2)))("a")) == ["a", "a"]


def test_its_text_names_function_and_arguments():
    assert str(Processor(repeated, 2, gap=None)) == "repeated(2, gap=None)"


def test_pipe_adds_what_processor_makes():
    dataset = DataPipeline(range(3)).pipe(map, lambda n: n + 1).pipe(repeated, times=2)
    assert list(dataset) == [1, 1, 2, 2, 3, 3]
    assert list(DataPipeline("ab").pipe(reversed_list)) == ["b", "a"]
    assert list(DataPipeline("ab").then(reversed_list)) == ["b", "a"]
    assert list(DataPipeline("ab").pipe(shuffle(1))) == ["a", "b"]


def reversed_list(elements):
    return list(elements)[::-1]


ARGUMENTS = {
    **dict.fromkeys(("info", "unbatched", "xdecode"), ()),
    **dict.fromkeys(("flatmap", "map", "map_tuple", "select"), (str,)),
    **dict.fromkeys(("batched", "detshuffle", "shuffle", "slice"), (2,)),
    **dict.fromkeys(("extract_keys", "to_tuple"), ("cls",)),
    "associate": ({},),
    "decode": ("rgb",),
    "rename_keys": (("cls", "class"),),
    "rsample": (0.5,),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_function_that_makes_a_stage_is_known_to_do_so(name):
    stage = stage_of(getattr(mpwds, name), *ARGUMENTS[name])
    assert isinstance(stage, Filter)
    assert stage.addressable
