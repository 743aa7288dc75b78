"""Batches of samples, stacked and padded."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
import webdataset.filters
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpwds.pipeline.stages.collation import Stack, collate_by, default_collation_fn, defer, padded
from tests.pipeline.conftest import plain, written

deferred_collation_fn = partial(collate_by, defer, ())


@pytest.mark.parametrize("values", [[1, 2], [1.5, 2], [True, False], [1j, 2], [np.float32(1), np.float32(2)]])
def test_numbers_become_an_array(values):
    column = default_collation_fn(values)
    assert column.dtype == np.array(values).dtype
    assert column.tolist() == values


def test_integers_are_never_rounded():
    assert default_collation_fn([2**63, 1]).dtype == np.uint64
    assert default_collation_fn([2**63, 1]).tolist() == [2**63, 1]
    assert default_collation_fn([2**63 + 1, -1]) == [2**63 + 1, -1]


@pytest.mark.parametrize(
    "values", [["a", "b"], [b"a", b"b"], [None, None], [1, None], [1, "a"], [1, [2]], [2**70, 1], [[], []]]
)
def test_anything_else_becomes_a_list(values):
    (column,) = default_collation_fn([(value,) for value in values])
    assert column == values
    assert type(column) is list


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


@given(rows=st.integers(1, 5), row=hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(max_side=4)))
def test_deferred_arrays_are_the_same_once_written(rows, row):
    np.testing.assert_array_equal(written(deferred_collation_fn([row.T] * rows)), np.stack([row.T] * rows))


def test_pictures_are_deferred_and_dates_are_not():
    assert isinstance(deferred_collation_fn([np.zeros((3, 4, 4), np.uint8)] * 2), Stack)
    assert isinstance(deferred_collation_fn([np.zeros(3, "M8[s]")] * 2), np.ndarray)


@pytest.mark.parametrize("collation_fn", [default_collation_fn, deferred_collation_fn])
@pytest.mark.parametrize(
    "values", [(np.zeros(3), np.zeros(4)), (np.zeros(3), np.zeros((1, 3))), (torch.zeros(3), torch.zeros(4))]
)
def test_arrays_of_different_shapes_are_an_error_that_says_what_to_do(collation_fn, values):
    message = r"shapes in field 'x': the first has \(3,\), that of sample 1 .*mpwds.padded()"
    with pytest.raises(ValueError, match=message):
        collation_fn([{"x": value} for value in values])


@pytest.mark.parametrize("other", [None, 1.5, [0, 0, 0]])
def test_arrays_among_other_values_are_an_error(other):
    with pytest.raises(ValueError, match="in field 1: the first is a ndarray, that of sample 1 of the batch"):
        default_collation_fn([(0, np.zeros(3)), (0, other)])


CONJUGATED = torch.tensor([1 + 2j, 3 - 4j]).conj()


ROWS = {
    "ints": [1, 2],
    "floats": [1.5, 2.5],
    "both": [1, 2.5],
    "bools": [True, False],
    "text": ["a", "b"],
    "bytes": [b"a", b"b"],
    "none": [None, None],
    "lists": [[1, 2], [3]],
    "dicts": [{"a": 1}, {"a": 2}],
    "arrays": [np.zeros((2, 3), np.uint8), np.ones((2, 3), np.uint8)],
    "arrays of no dimension": [np.array(1.5), np.array(2.5)],
    "tensors": [torch.zeros(2, 3), torch.ones(2, 3)],
    "bfloat16": [torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)],
}


@pytest.mark.parametrize("combine_scalars", [True, False])
@pytest.mark.parametrize("combine_tensors", [True, False])
@pytest.mark.parametrize("sample", [tuple, list, lambda fields: dict(enumerate(fields))])
def test_batches_are_of_the_types_of_webdatasets(sample, combine_tensors, combine_scalars):
    samples = [sample([values[row] for values in ROWS.values()]) for row in (0, 1)]
    theirs = webdataset.filters.default_collation_fn(samples, combine_tensors, combine_scalars)
    assert plain(default_collation_fn(samples, combine_tensors, combine_scalars)) == plain(theirs)


def test_arrays_of_different_shapes_stay_a_list_on_request():
    rows = [np.zeros(3), np.zeros(4)]
    assert type(default_collation_fn(rows, combine_tensors=False)) is list


@pytest.mark.parametrize(
    "row",
    [
        *(
            torch.arange(12).reshape(3, 4).to(dtype).T
            for dtype in (torch.uint8, torch.float16, torch.float64, torch.complex64, torch.bool)
        ),
        CONJUGATED,
        CONJUGATED.imag,  # stored negated
    ],
    ids=lambda row: f"{row.dtype} {tuple(row.shape)}",
)
def test_deferred_tensors_are_the_same_once_written(row):
    column = deferred_collation_fn([row, row])
    assert isinstance(column, Stack)
    assert torch.equal(torch.from_numpy(written(column)), torch.stack([row, row]))


@pytest.mark.parametrize(
    "batches",
    [
        [[np.full((2, 3), 1), np.full((2, 3), 2)], [np.full((2, 3), 3), np.full((2, 3), 4)]],
        [[np.zeros(3, "f4")] * 2, [np.ones(3, "f8")] * 2],
        [[torch.zeros(3)] * 2, [torch.ones(3)] * 2],
        [[torch.zeros(3, dtype=torch.int64)] * 2, [torch.ones(3)] * 2],
    ],
)
def test_deferred_batches_of_batches_are_the_same_once_written(batches):
    whole = written(deferred_collation_fn([deferred_collation_fn(rows) for rows in batches]))
    expected = default_collation_fn([default_collation_fn(rows) for rows in batches])
    assert np.asarray(whole).dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("row", [torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3, requires_grad=True)])
def test_tensors_that_numpy_cannot_hold_as_they_are_are_stacked_at_once(row):
    assert torch.equal(deferred_collation_fn([row, row]), torch.stack([row, row]))


@pytest.mark.parametrize("collation_fn", [default_collation_fn, deferred_collation_fn])
@pytest.mark.parametrize("dtypes", [("f4", "f8"), ("u1", "i2"), (">i4", "<i4"), ("?", "f4"), ("U1", "U3")])
def test_arrays_of_different_dtypes_become_one_that_holds_them_all(collation_fn, dtypes):
    rows = [np.ones(3, dtype) for dtype in dtypes]
    column = written(collation_fn(rows))
    assert column.dtype == np.stack(rows).dtype
    np.testing.assert_array_equal(column, np.stack(rows))


@pytest.mark.parametrize("collation_fn", [default_collation_fn, deferred_collation_fn])
def test_tensors_of_different_dtypes_become_one_that_holds_them_all(collation_fn):
    rows = [torch.ones(3, dtype=torch.float32), torch.ones(3, dtype=torch.float64)]
    assert torch.equal(collation_fn(rows), torch.stack(rows))


def test_the_keys_of_dicts_may_come_in_any_order():
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


@st.composite
def ragged(draw):
    """Arrays of one number of dimensions and any shapes, no element of which is 0."""
    dimensions = draw(st.integers(1, 3))
    shapes = draw(st.lists(st.tuples(*[st.integers(0, 4)] * dimensions), min_size=1, max_size=4))
    dtype = draw(st.sampled_from(["u1", "i8", "f4", "f8", "?", "c8"]))
    return [
        (np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape) + 0).astype(dtype) for shape in shapes
    ]


@given(rows=ragged(), make=st.sampled_from([np.asarray, torch.from_numpy]))
def test_each_row_stands_at_the_beginning_of_its_place_and_the_rest_is_padding(rows, make):
    batch = np.asarray(padded()([make(row) for row in rows]))
    assert batch.shape == (len(rows), *np.max([row.shape for row in rows], axis=0))
    for place, row in zip(batch, rows, strict=True):
        np.testing.assert_array_equal(place[tuple(slice(size) for size in row.shape)], row)
        assert np.count_nonzero(place) == np.count_nonzero(row)


@given(rows=ragged())
def test_deferred_batches_are_the_same_once_written(rows):
    stage = padded(lengths=True)
    column, lengths = stage.collate_by(defer, rows)
    np.testing.assert_array_equal(written(column), stage(rows)[0])
    np.testing.assert_array_equal(lengths, stage(rows)[1])


def test_everything_else_is_collated_as_by_default():
    samples = [{"__key__": "a", "n": 1, "x": np.zeros(2)}, {"__key__": "b", "n": 2, "x": np.zeros(2)}]
    ours, default = padded()(samples), default_collation_fn(samples)
    assert (ours["__key__"], ours["n"].tolist(), ours["x"].shape) == (["a", "b"], [1, 2], (2, 2))
    assert list(ours) == list(default)


def test_tensors_stay_tensors_and_keep_what_holds_them_all():
    batch = padded(-1)([torch.ones(2, dtype=torch.int32), torch.ones(1, dtype=torch.float32)])
    assert batch.dtype == torch.float32
    assert batch.tolist() == [[1, 1], [1, -1]]


def test_lengths_follow_in_fields_and_columns_of_their_own():
    rows = [np.arange(3), np.arange(1)]
    batch = padded(lengths=True)([{"x": row, "n": 1} for row in rows])
    assert list(batch) == ["x", "n", "x_lengths"]
    assert batch["x_lengths"].tolist() == [3, 1]
    assert batch["x_lengths"].dtype == np.int64
    _, n, lengths = padded(lengths=True)([(row, 1) for row in rows])
    assert (n.tolist(), lengths.tolist()) == ([1, 1], [3, 1])
    assert torch.equal(padded(lengths=True)([torch.zeros(3), torch.zeros(1)])[1], torch.tensor([3, 1]))


def test_lengths_are_there_whether_or_not_a_batch_needs_padding():
    _, lengths = padded(lengths=True)([np.zeros((2, 3)), np.zeros((2, 3))])
    assert lengths.tolist() == [[2, 3], [2, 3]]


def test_lengths_are_those_along_the_axes_that_may_differ():
    _, lengths = padded(lengths=True, axes=-1)([np.zeros((2, 3)), np.zeros((2, 1))])
    assert lengths.tolist() == [3, 1]


def test_a_field_in_the_way_of_the_lengths_is_an_error():
    with pytest.raises(ValueError, match="the lengths need the name 'x_lengths'"):
        padded(lengths=True)([{"x": np.zeros(1), "x_lengths": 1}])


def test_each_field_may_have_its_own_padding_and_the_others_none():
    samples = [{"tokens": np.arange(1, 1 + n), "labels": np.arange(1, 1 + n)} for n in (2, 1)]
    batch = padded({"tokens": 0, "labels": -100})(samples)
    assert (batch["tokens"].tolist(), batch["labels"].tolist()) == ([[1, 2], [1, 0]], [[1, 2], [1, -100]])
    with pytest.raises(ValueError, match="arrays of different shapes in field 'labels'"):
        padded({"tokens": 0})(samples)


@pytest.mark.parametrize("axes", [None, 0])
def test_lengths_are_rounded_up(axes):
    batch = padded(multiple_of=4, axes=axes)([np.zeros((5, 3)), np.zeros((2, 3))])
    assert batch.shape == (2, 8, 3)


def test_with_axes_given_all_batches_are_rounded_up():
    rows = [np.zeros((5, 3))] * 2
    assert padded(multiple_of=4)(rows).shape == (2, 5, 3)
    assert padded(multiple_of=4, axes=[0])(rows).shape == (2, 8, 3)
    assert padded(multiple_of=1)(rows).shape == (2, 5, 3)
    assert padded(multiple_of=4, axes=[0])([torch.ones(3)]).tolist() == [[1, 1, 1, 0]]


@pytest.mark.parametrize(
    ("collate", "samples", "message"),
    [
        (padded(), [np.zeros(2), np.zeros((2, 2))], "of 1 dimensions, that of sample 1 .* of 2 dimensions"),
        (
            padded(),
            [{"x": np.zeros(2)}, {"x": None}],
            "in field 'x' differ: .* sample 1 of the batch a NoneType",
        ),
        (padded(axes=0), [np.zeros((2, 2)), np.zeros((2, 3))], "differ along axis 1, .* axes=0: 2, 3"),
        (padded(axes=2), [np.zeros(2)], "no axis 2 in arrays of 1 dimensions"),
        (padded({"y": 0}), [{"x": np.zeros(2)}], "no field 'y'; the sample has x"),
        (padded({0: 0}), [np.zeros(2)], "no field 0; the sample has none"),
        (padded({0: 0}), [3], "no field 0; the sample has none"),
        (padded(-1), [np.zeros(2, "u1"), np.zeros(1, "u1")], "arrays of uint8 cannot hold the padding -1"),
        (padded(0.5), [np.zeros(2, "i4"), np.zeros(1, "i4")], "cannot hold the padding 0.5"),
        (padded(float("nan")), [np.zeros(2, "i4"), np.zeros(1, "i4")], "cannot hold the padding nan"),
        (
            padded(-1),
            [torch.zeros(2).byte(), torch.zeros(1).byte()],
            "torch.uint8 cannot hold the padding -1",
        ),
        (padded("x"), [torch.zeros(2), torch.zeros(1)], "cannot hold the padding 'x'"),
    ],
)
def test_what_cannot_be_padded_is_an_error(collate, samples, message):
    with pytest.raises(ValueError, match=message):
        collate(samples)


@pytest.mark.parametrize("value", [float("nan"), 0.1])
def test_paddings_of_floating_point_need_not_be_exact(value):
    batch = padded(value)([np.zeros(2, "f4"), np.zeros(1, "f4")])
    np.testing.assert_array_equal(batch[1, 1], np.float32(value))


def test_survives_a_pickle():
    assert pickle.loads(pickle.dumps(padded(1, axes=[0]))) == padded(1, axes=(0,))
