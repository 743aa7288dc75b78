"""torch_collate: the batches of torch's default_collate and default_convert, delivered as what they are."""

import collections
import string

import numpy as np
import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds import DataLoader, nest, tenbin
from mpwds.loader.dataloader import torch_collate
from mpwds.loader.engine.local_worker import view_as_sent
from mpwds.loader.messages.out_of_band import AsTensor, kinds, put_together, take_apart
from mpwds.pipeline.stages.collation import Row, Stack
from tests.loader.dataloader.data_loader_datasets import Pair, plain

DTYPES = ("bool", "int8", "int64", "uint8", "float16", "float32", "float64", "complex64")


def delivered(batch):
    """A batch as it arrives: through a buffer."""
    structure, arrays = nest.flatten(take_apart(batch), allow_pickle=True)
    received = []
    for array, kind in zip(arrays, kinds(arrays), strict=True):
        buffer = bytearray(tenbin.array_nbytes(array))
        tenbin.write_array(buffer, 0, array)
        received.append(view_as_sent(buffer, 0, kind))
    return put_together(nest.unflatten(structure, received, allow_pickle=True))


def arrays(dtype, shape):
    return st.integers(0, 100).map(lambda number: np.full(shape, number, dtype))


leaves = st.one_of(
    st.tuples(st.sampled_from(DTYPES), st.sampled_from([(), (3,), (2, 3), (0, 2), (1, 2, 2)])).flatmap(
        lambda kind: st.one_of(st.just(arrays(*kind)), st.just(arrays(*kind).map(torch.from_numpy)))
    ),
    st.sampled_from([st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans()]),
    st.sampled_from([st.text(string.printable, max_size=3), st.binary(max_size=3)]),
    st.sampled_from(["float32", "int64"]).map(lambda dtype: st.integers(0, 9).map(np.dtype(dtype).type)),
)
samples = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: st.tuples(*parts)),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: st.tuples(*parts).map(list)),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(st.fixed_dictionaries),
        st.tuples(inner, inner).map(lambda parts: st.builds(Pair, *parts)),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(
            lambda parts: st.fixed_dictionaries(parts).map(collections.OrderedDict)
        ),
    ),
    max_leaves=5,
)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_batches_are_those_of_torch(data):
    sample = data.draw(samples)
    batch = data.draw(st.lists(sample, min_size=1, max_size=4))
    assert plain(delivered(torch_collate.collate(batch))) == plain(torch.utils.data.default_collate(batch))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_single_samples_are_converted_as_by_torch(data):
    sample = data.draw(data.draw(samples))
    assert plain(delivered(torch_collate.convert(sample))) == plain(torch.utils.data.default_convert(sample))


def test_columns_of_arrays_and_tensors_are_not_made():
    batch = torch_collate.collate([(np.zeros(3), torch.zeros(3), 1)] * 2)
    assert [type(column) for column in batch] == [AsTensor] * 3


@pytest.mark.parametrize(
    "batch",
    [
        [np.zeros(3), np.zeros(4)],
        [np.zeros(3), np.zeros((1, 3))],
        [np.zeros((2, 2)), np.zeros((4, 2))],
        [torch.zeros(3), torch.zeros((1, 3))],
        [np.array("a"), np.array("b")],
        [[1], [1, 2]],
        [{"a": 1}, {"b": 1}],
        [object()],
        [None, None],
        [1 << 70, 1],
    ],
    ids=lambda samples: str(samples).partition(" at 0x")[0],
)
def test_samples_that_do_not_fit_together_are_torchs_error(batch):
    def outcome(collate):
        try:
            return collate(batch)
        except Exception as error:
            return type(error), str(error)

    expected = outcome(torch.utils.data.default_collate)
    assert type(expected) is tuple
    assert outcome(torch_collate.collate) == expected


@pytest.mark.parametrize(
    "batch",
    [
        [1, 2.5],
        [1.5, 2],
        [True, 2],
        [np.zeros(2, np.float32), np.zeros(2, np.float64)],
        [np.zeros(2, np.int32), torch.zeros(2)],
        [torch.zeros(2), torch.zeros(2, dtype=torch.float64)],
        [torch.ones(2, dtype=torch.bfloat16)] * 2,
        [torch.ones(2, dtype=torch.complex64).conj()] * 2,
        [torch.ones(2, dtype=torch.complex64).conj().imag] * 2,
        [{"a": 1, "b": 2}, {"a": 3, "b": 4, "c": 5}],
        [range(2), range(2)],
        [collections.UserDict(a=1), collections.UserDict(a=2)],
    ],
    ids=lambda samples: str(samples).partition(" at 0x")[0],
)
def test_unusual_batches_are_those_of_torch(batch):
    assert plain(delivered(torch_collate.collate(batch))) == plain(torch.utils.data.default_collate(batch))


def test_rows_that_need_a_gradient_are_collated_as_by_torch():
    batch = [torch.ones(2, requires_grad=True)] * 2
    assert torch_collate.collate(batch).requires_grad
    with pytest.raises(RuntimeError, match="requires a gradient"):
        delivered(torch_collate.collate(batch))


def test_a_pipelines_batch_that_is_not_made_yet_arrives_as_a_tensor():
    rows = Stack([np.arange(3), np.arange(3)], np.dtype("int64"))
    assert delivered(torch_collate.convert({"x": rows}))["x"].tolist() == [[0, 1, 2]] * 2


class Sevens(Row):
    shape, dtype = (3,), np.dtype("uint8")

    def write_into(self, out):
        out[...] = 7


def test_a_pipelines_sample_that_is_not_made_yet_arrives_as_a_tensor():
    assert delivered(torch_collate.convert({"x": Sevens()}))["x"].tolist() == [7, 7, 7]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["strided", "jagged"])
@pytest.mark.parametrize("workers", [0, 1])
def test_nested_tensors_are_refused_in_torchs_words(kind, workers):
    rows = [torch.nested.nested_tensor([torch.zeros(2)], layout=getattr(torch, kind)) for _ in range(2)]
    loader = DataLoader(
        rows, batch_size=2, num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    with pytest.raises(RuntimeError, match="not currently supported by the default collate_fn"):
        next(iter(loader))
