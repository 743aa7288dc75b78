"""The form of a batch: what in it is a column, and what a batch of the same form is."""

import collections
import dataclasses

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from mpwds.pipeline.rebatch.batch_schema import build, columns_of, infer_schema, leaves

Pair = collections.namedtuple("Pair", "image label")


@dataclasses.dataclass
class Sample:
    image: np.ndarray
    names: list


def columns(batch):
    return columns_of(infer_schema(batch), batch)


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        (np.zeros((2, 3)), ["float64 [3]"]),
        (torch.zeros((2, 3), dtype=torch.bfloat16), ["bfloat16 [3]"]),
        ((np.zeros(2), ["a", "b"]), ["float64 []", "list of rows"]),
        ([np.zeros(2), ("a", "b")], ["float64 []", "tuple of rows"]),
        ({"x": np.zeros(2), "json": [{"n": 1}, {"n": 2}]}, ["float64 []", "list of rows"]),
        ({"x": {"y": (["a", "b", "c"], torch.zeros(3))}}, ["list of rows", "float32 []"]),
        ((["a", "b"], [[1, 2], []]), ["list of rows", "list of rows"]),
        (Pair(np.zeros((2, 3)), np.zeros(2)), ["float64 [3]", "float64 []"]),
        (Sample(np.zeros(2, "uint8"), ["a", "b"]), ["uint8 []", "list of rows"]),
        (
            (np.zeros(3), [np.zeros(4), "text", None], [None, np.zeros((3, 3)), None]),
            ["float64 []", "list of rows", "list of rows"],
        ),
        (([np.zeros((number, 4)) for number in range(3)], (7, 8, 9)), ["list of rows", "tuple of rows"]),
        (
            {"label": np.zeros(2), "views": [np.zeros((2, 3)), np.zeros((2, 3), "uint8")]},  # as many as rows
            ["float64 []", "float64 [3]", "uint8 [3]"],
        ),
    ],
)
def test_columns_are_found_in_any_nesting(batch, found):
    assert [str(leaf) for leaf in leaves(infer_schema(batch))] == found


@pytest.mark.parametrize(
    "batch",
    [
        collections.OrderedDict(b=[1, 2], a=np.zeros(2)),
        collections.defaultdict(list, a=[1, 2]),
        Pair([1, 2], ({"x": [3, 4]}, [5, 6])),
        [[1, 2], (3, 4)],
        {1: [5, 6], ("a", 2): np.zeros(2)},
    ],
)
def test_a_batch_is_built_again_with_its_types(batch):
    built = build(infer_schema(batch), iter(columns(batch)))
    assert type(built) is type(batch)
    assert repr(built) == repr(batch)
    assert getattr(built, "default_factory", None) is getattr(batch, "default_factory", None)


def test_a_dataclass_is_built_again():
    batch = Sample(np.zeros(2), ["a", "b"])
    built = build(infer_schema(batch), iter(["first", "second"]))
    assert (type(built), built.image, built.names) == (Sample, "first", "second")


def test_lists_of_columns_as_torch_collates_nested_tuples_are_known_by_the_number_of_rows():
    batch = default_collate([(np.zeros(4), (number, "name")) for number in range(3)])
    assert isinstance(batch[1], list)
    assert [str(leaf) for leaf in leaves(infer_schema(batch))] == ["float64 [4]", "int64 []", "tuple of rows"]


def test_lists_alone_are_columns_of_as_many_rows_as_they_are_long():
    samples = [(torch.zeros(3, 8, number + 8), {"boxes": torch.zeros(number, 4)}) for number in range(5)]
    form = infer_schema(tuple(zip(*samples, strict=True)))
    assert [str(leaf) for leaf in leaves(form)] == ["tuple of rows", "tuple of rows"]


EITHER = "may be columns, or have an item for each row: put columns into a dict"


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (([np.zeros(2), np.zeros(2)], np.zeros(2)), TypeError, EITHER),
        ({"views": [np.zeros((2, 3)), np.zeros((2, 3))], "label": np.zeros(2)}, TypeError, EITHER),
        ([[np.zeros(64), np.zeros(64)], [np.zeros(64), np.zeros(64)]], TypeError, EITHER),
        (7, TypeError, "batch is an int: a column is an array, a tensor or a list"),
        ("ab", TypeError, "batch is a str"),
        (["a", "b"], TypeError, r"batch\[0\] is a str"),
        ({"x": np.zeros(2), "epoch": 3}, TypeError, r"batch\['epoch'\] is an int"),
        ({"x": {"y": np.array(3.0)}}, TypeError, r"batch\['x'\]\['y'\] is a ndarray"),
        ((), TypeError, "the batch has no columns, it is a tuple"),
        (
            (torch.eye(3).to_sparse(),),
            TypeError,
            r"batch\[0\] is a sparse_coo tensor on cpu, expected a dense tensor",
        ),
        ((np.zeros(2), np.zeros(3)), ValueError, r"batch\[1\] has 3 rows, other columns have 2"),
        ({"x": np.zeros(2), "y": ["a"]}, ValueError, r"batch\['y'\] has 1 rows, other columns have 2"),
        ((["a", "b"], ["c"]), ValueError, r"batch\[1\] has 1 rows, other columns have 2"),
    ],
)
def test_what_is_no_batch_of_columns_is_an_error_that_says_why(batch, error, message):
    with pytest.raises(error, match=message):
        infer_schema(batch)


def test_the_columns_of_a_dict_come_in_the_order_of_the_first_batch():
    form = infer_schema({"a": [1, 2], "b": [3, 4]})
    assert columns_of(form, {"b": [5], "a": [6]}) == [[6], [5]]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            {"x": np.zeros((2, 4)), "k": ["a", "b"]},
            r"batch\['x'\] has rows of float64 \[4\], .* were float64 \[3\]",
        ),
        ({"x": np.zeros((2, 3), "f4"), "k": ["a", "b"]}, r"batch\['x'\] has rows of float32 \[3\]"),
        ({"x": torch.zeros(2, 3), "k": ["a", "b"]}, r"batch\['x'\] has rows of float32 \[3\]"),
        ({"x": [1, 2], "k": ["a", "b"]}, r"batch\['x'\] is a list, .* it was a column of float64 \[3\]"),
        ({"x": np.zeros((2, 3)), "k": ("a", "b")}, r"batch\['k'\] is a tuple, .* it was a list of rows"),
        ({"x": np.zeros((2, 3))}, r"batch has 'x', in batches before it had 'x', 'k'"),
        ({"x": np.zeros((2, 3)), "z": ["a", "b"]}, r"batch has 'x', 'z'"),
        ((np.zeros((2, 3)), ["a", "b"]), "batch is a tuple, in batches before it was a dict of columns"),
        ({"x": np.zeros((2, 3)), "k": ["a"]}, "differ in their number of rows: 2, 1"),
    ],
)
def test_a_batch_of_another_form_is_an_error_that_says_what_changed(batch, message):
    form = infer_schema({"x": np.zeros((2, 3)), "k": ["a", "b"]})
    with pytest.raises(ValueError, match=message):
        columns_of(form, batch)


def test_a_list_stays_what_it_was_taken_for():
    form = infer_schema((np.zeros(3), [np.zeros(3), np.zeros(3)]))
    assert len(columns_of(form, (np.zeros(2), [np.zeros(2), np.zeros(2)]))) == 3
