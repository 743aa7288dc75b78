import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpwds.pipeline.collate import Stack, default_collation_fn, deferred_collation_fn


@pytest.mark.parametrize("values", [[1, 2], [1.5, 2], [True, False], [1j, 2], [np.float32(1), np.float32(2)]])
def test_numbers_become_an_array(values):
    column = default_collation_fn(values)
    assert column.dtype == np.array(values).dtype
    assert column.tolist() == values


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        [b"a", b"b"],
        [None, None],
        [1, None],
        [1, "a"],
        [1, [2]],
        [2**70, 1],
        [[], []],
    ],
)
def test_anything_else_becomes_a_list(values):
    (column,) = default_collation_fn([(value,) for value in values])
    assert column == values
    assert type(column) is list


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5),
    row=hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_side=4)),
    reverse=st.booleans(),
)
def test_arrays_are_stacked_as_numpy_stacks_them(rows, row, reverse):
    samples = [row.T if reverse else row] * rows
    column = default_collation_fn(samples)
    assert column.dtype == np.stack(samples).dtype
    np.testing.assert_array_equal(column, np.stack(samples))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5),
    row=hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(max_side=4)),
)
def test_deferred_arrays_are_the_same_once_written(rows, row):
    column = deferred_collation_fn([row.T] * rows)
    if isinstance(column, Stack):
        assert column.dtype.isnative
        out = np.empty(column.shape, column.dtype)
        column.write_into(out)
        column = out
    np.testing.assert_array_equal(column, np.stack([row.T] * rows))


def test_pictures_are_deferred_and_dates_are_not():
    assert isinstance(deferred_collation_fn([np.zeros((3, 4, 4), np.uint8)] * 2), Stack)
    assert isinstance(deferred_collation_fn([np.zeros(3, "M8[s]")] * 2), np.ndarray)


def test_arrays_of_different_shapes_stay_a_list():
    for other in (np.zeros(4), np.zeros((1, 3)), None):
        column = default_collation_fn([np.zeros(3), other])
        assert type(column) is list


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float64, torch.bool])
def test_tensors_are_stacked_to_a_tensor(dtype):
    rows = [torch.arange(12).reshape(3, 4).to(dtype).T for _ in range(2)]
    assert torch.equal(default_collation_fn(rows), torch.stack(rows))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float64, torch.complex64, torch.bool])
def test_deferred_tensors_are_the_same_once_written(dtype):
    rows = [torch.arange(12).reshape(3, 4).to(dtype).T for _ in range(2)]
    column = deferred_collation_fn(rows)
    out = np.empty(column.shape, column.dtype)
    column.write_into(out)
    assert torch.equal(torch.from_numpy(out), torch.stack(rows))


@pytest.mark.parametrize(
    "row",
    [
        torch.zeros(3, dtype=torch.bfloat16),
        torch.zeros(3, requires_grad=True),
        torch.zeros(3, dtype=torch.cfloat).conj(),
    ],
)
def test_tensors_that_numpy_cannot_hold_as_they_are_are_stacked_at_once(row):
    assert torch.equal(deferred_collation_fn([row, row]), torch.stack([row, row]))


@pytest.mark.parametrize("collation_fn", [default_collation_fn, deferred_collation_fn])
@pytest.mark.parametrize("dtypes", [("f4", "f8"), ("u1", "i2"), (">i4", "<i4"), ("?", "f4"), ("U1", "U3")])
def test_arrays_of_different_dtypes_become_one_that_holds_them_all(collation_fn, dtypes):
    rows = [np.ones(3, dtype) for dtype in dtypes]
    column = collation_fn(rows)
    if isinstance(column, Stack):
        out = np.empty(column.shape, column.dtype)
        column.write_into(out)
        column = out
    assert column.dtype == np.stack(rows).dtype
    np.testing.assert_array_equal(column, np.stack(rows))


@pytest.mark.parametrize("collation_fn", [default_collation_fn, deferred_collation_fn])
def test_tensors_of_different_dtypes_become_one_that_holds_them_all(collation_fn):
    rows = [torch.ones(3, dtype=torch.float32), torch.ones(3, dtype=torch.float64)]
    assert torch.equal(collation_fn(rows), torch.stack(rows))


def test_tensors_of_different_shapes_stay_a_list():
    assert type(default_collation_fn([torch.zeros(3), torch.zeros(4)])) is list


def test_tuples_become_a_tuple_and_dicts_a_dict_of_columns():
    images, keys = default_collation_fn([[np.zeros(3), "a"], [np.ones(3), "b"]])
    assert images.shape == (2, 3)
    assert keys == ["a", "b"]
    batch = default_collation_fn([{"__key__": "a", "x": 1}, {"x": 2, "__key__": "b"}])
    assert batch["__key__"] == ["a", "b"]
    assert batch["x"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([(1, 2), (1,)], "different fields: the first has 2, sample 1 of the batch 1"),
        ([{"a": 1}, {"b": 1}], "different keys: the first has a, sample 1 of the batch b"),
        ([(1,), {"a": 1}], "different types: the first is a tuple, sample 1 of the batch a dict"),
        ([], "no samples"),
    ],
)
def test_samples_that_make_no_batch_are_an_error(samples, message):
    with pytest.raises(ValueError, match=message):
        default_collation_fn(samples)
