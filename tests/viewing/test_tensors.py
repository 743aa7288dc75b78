import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mpwds.viewing.tensors import BINS, TensorStatistics, leaves


def statistics(*batches):
    """The statistics of the only tensor in these batches."""
    counted = TensorStatistics()
    for batch in batches:
        counted.add(batch)
    (tensor,) = counted.read()
    return tensor


shapes = arrays.array_shapes(max_side=6)
floats = st.floats(-1e4, 1e4, width=16) | st.sampled_from([np.nan, np.inf, -np.inf])
whole = arrays.arrays(st.sampled_from(["bool", "uint8", "int8", "int32"]), shapes)
some_arrays = whole | arrays.arrays(
    st.sampled_from(["float16", "float32", "float64"]), shapes, elements=floats
)


@given(st.lists(some_arrays, min_size=1, max_size=5))
@example([np.array([np.nan, 1, np.inf, 3, -np.inf, np.nan])])
@example([np.full(3, np.nan)])
def test_batches_together_have_the_statistics_of_all_their_values(batches):
    values = np.concatenate([batch.astype("float64").ravel() for batch in batches])
    finite = values[np.isfinite(values)]
    tensor = statistics(*batches)
    assert tensor.elements == values.size
    assert (tensor.nans, tensor.infinities) == (np.isnan(values).sum(), np.isinf(values).sum())
    assert sum(tensor.bins) == finite.size
    if finite.size:
        assert (tensor.low, tensor.high) == (finite.min(), finite.max())
        scale = np.abs(finite).max()
        assert tensor.mean == pytest.approx(finite.mean(), abs=1e-9 * scale)
        assert tensor.std == pytest.approx(finite.std(), abs=1e-6 * scale)
    else:
        assert (tensor.low, tensor.high, tensor.mean, tensor.std) == (None,) * 4


@given(st.lists(arrays.arrays("float64", 5, elements=st.floats(-1e6, 1e6)), min_size=1, max_size=8))
@example([np.full(5, -625001.0), np.full(5, 0.0625)])
def test_each_value_is_counted_in_the_bin_where_it_lies(batches):
    tensor = statistics(*batches)
    edges = tensor.first_edge + tensor.bin_width * np.arange(BINS + 1)
    values = np.concatenate(batches)
    for bin_, count in enumerate(tensor.bins):
        slack = tensor.bin_width * 1e-5  # the last bin takes what rounding puts just beyond it
        inside = (values >= edges[bin_] - slack) & (values <= edges[bin_ + 1] + slack)
        surely = (values > edges[bin_] + slack) & (values < edges[bin_ + 1] - slack)
        assert surely.sum() <= count <= inside.sum()


def test_classes_have_a_bin_each():
    assert statistics(np.array([1, *range(BINS)])).bins == (1, 2, *[1] * (BINS - 2))


def test_large_whole_numbers_are_exact():
    tensor = statistics(np.array([2**63 + 1, 5], "uint64"))
    assert (tensor.low, tensor.high) == (5, 2**63 + 1)


def test_bfloat16_of_torch_and_of_numpy_have_their_name():
    for array in (torch.tensor([1.0, 2.0]).bfloat16(), np.array([1, 2], ml_dtypes.bfloat16)):
        tensor = statistics(array)
        assert (tensor.dtype, tensor.mean) == ("bfloat16", 1.5)


def test_values_near_the_largest_float_do_no_harm():
    tensor = statistics(np.array([-1.7e308, 1.7e308]), np.array([1e-300]))
    assert sum(tensor.bins) == 3
    assert (tensor.low, tensor.high) == (-1.7e308, 1.7e308)


def test_sizes_that_differ_between_batches_are_stars():
    tensor = statistics(np.zeros((4, 3)), np.zeros((2, 3)))
    assert (tensor.shape, tensor.batches) == (("*", 3), 2)
    assert statistics(np.zeros((4, 3)), np.zeros(2)).shape == ("...",)


def test_a_path_is_what_one_writes_to_get_there():
    batch = {"image": np.zeros(2), "meta": [{"key": "a"}, (np.zeros(3), 7)], 5: None}
    found = leaves(batch)
    assert [leaf.path for leaf in found] == [
        '["image"]',
        '["meta"][0]["key"]',
        '["meta"][1][0]',
        '["meta"][1][1]',
        "[5]",
    ]
    for leaf in found:
        eval(f"batch{leaf.path}", {"batch": batch})


def test_a_list_of_one_kind_is_one_leaf_with_all_its_values():
    batch = ([np.zeros((2, 3)), np.ones((4, 3))], ["a", "b"], [1, 2, 3])
    assert [(leaf.path, leaf.shape) for leaf in leaves(batch)] == [
        ("[0]", (2, "*", 3)),
        ("[1]", (2,)),
        ("[2]", (3,)),
    ]
    counted = TensorStatistics()
    counted.add(batch)
    assert counted.read()[0].elements == 18


KINDS = {
    "texts": (["a", "ж"], "str", (2,), ("a", "ж")),
    "bytes": ([b"a", b"\xd0\xb6", b"\xff"], "bytes", (3,), ("a", "ж", "\ufffd")),
    "an array of texts": (np.array(["a", "b"]), "str", (2,), ("a", "b")),
    "an array of bytes": (np.array([b"a"]), "str", (1,), ("b'a'",)),
    "an array of objects": (np.array([None, 2], object), "object", (2,), ("None", "2")),
    "an array of times": (np.array(["2020-01-01"], "datetime64[D]"), "datetime64[D]", (1,), ("2020-01-01",)),
    "an array of records": (np.zeros(1, "u1,u1"), "[('f0', 'u1'), ('f1', 'u1')]", (1,), ("(0, 0)",)),
    "a text": ("a", "str", (), ("a",)),
    "another object": (None, "NoneType", (), ("None",)),
    "flags": ([True, False], "bool", (2,), ()),
    "numbers of several kinds": ([True, 2, 0.5], "float64", (3,), ()),
    "a number of NumPy": (np.float16(2), "float16", (), ()),
    "a sparse tensor": (torch.eye(4).to_sparse(), "float32", (), ("torch.sparse_coo tensor",)),
    "a conjugate tensor": (torch.ones(2, dtype=torch.complex64).conj(), "complex64", (2,), ()),
}


@pytest.mark.parametrize(("content", "dtype", "shape", "texts"), KINDS.values(), ids=KINDS)
def test_a_leaf_has_the_type_shape_and_texts_of_its_content(content, dtype, shape, texts):
    (leaf,) = leaves({"x": content})
    assert (leaf.path, leaf.dtype, leaf.shape, leaf.texts) == ('["x"]', dtype, shape, texts)
    assert statistics({"x": content}).texts == texts


def test_a_nested_tensor_has_the_type_and_layout_of_its_content():
    nested = torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)  # imports a third of torch
    (leaf,) = leaves({"x": nested})
    assert (leaf.path, leaf.dtype, leaf.shape) == ('["x"]', "float32", ())
    assert leaf.texts == statistics({"x": nested}).texts == ("torch.jagged tensor",)


def test_types_that_differ_between_batches_are_all_named():
    assert statistics(np.zeros(2, "uint8"), np.zeros(2), np.zeros(2, "uint8")).dtype == "uint8 or float64"


BEGINNINGS = {
    "0 for bytes, whatever comes first": ([np.array([3, 200], "uint8")], 0, 256 / BINS),
    "the least of a few bytes": ([np.array([200, 199 + BINS], "uint8")], 200, 1),
    "the least of whole numbers, two in a bin": ([np.array([200, 200 + BINS])], 200, 2),
    "the least of the first values": ([np.array([3.0, 3.0 + BINS])], 3, 1),
    "the same, where a later value is larger": ([np.array([0, 1]), np.array([2 * BINS - 1])], 0, 2),
    "lower, where a later value is less": ([np.array([0, 1]), np.array([-BINS])], -BINS, 2),
}


@pytest.mark.parametrize(("batches", "first_edge", "width"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_the_first_bin_begins_at(batches, first_edge, width):
    tensor = statistics(*batches)
    assert (tensor.first_edge, tensor.bin_width) == (first_edge, width)


def test_complex_values_count_by_magnitude():
    tensor = statistics(np.array([3 + 4j, -1]))
    assert (tensor.low, tensor.high, tensor.mean) == (1, 5, 3)


def test_statistics_are_plain_for_json():
    told = statistics(np.array([1.7e308, 1.7e308])).as_dict()
    assert (told["path"], told["dtype"], told["shape"], told["high"]) == ("", "float64", (2,), 1.7e308)
    assert told["mean"] is None  # their sum is beyond the largest float
