"""RowsInPlace: large rows are copied as they come, and the batch is the same."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.collation.collate import Stack, default_collation_fn, deferred_collation_fn
from mpwds.pipeline.collation.rows_in_place import LEAST_ROW_NBYTES, RowsInPlace

SHAPE = (LEAST_ROW_NBYTES // 16, 16)


class Heap:
    """Finds room on the heap."""

    def __init__(self):
        self.rooms = []

    def find(self, forms):
        self.rooms.append(HeapRoom(forms))
        return self.rooms[-1]


class HeapRoom:
    def __init__(self, forms):
        self.columns = [np.zeros(shape, dtype) for shape, dtype in forms]
        self.given_up = False

    def give_up(self):
        self.given_up = True


def put_all(rows, samples):
    put = rows.begin(samples[0], len(samples))
    return samples if put is None else [put(number, sample) for number, sample in enumerate(samples)]


def made(batch):
    """The batch, its columns written out as they would be sent, in a form that can be compared."""
    if isinstance(batch, Stack):
        out = np.empty(batch.shape, batch.dtype)
        batch.write_into(out)
        return made(out)
    if isinstance(batch, (np.ndarray, torch.Tensor)):
        return str(batch.dtype).removeprefix("torch."), batch.tolist()
    if isinstance(batch, dict):
        return {key: made(value) for key, value in batch.items()}
    return [made(value) for value in batch] if isinstance(batch, (tuple, list)) else batch


def collated(collate, samples):
    try:
        return made(collate(samples))
    except (ValueError, TypeError) as error:
        return str(error)


def image(dtype="uint8", value=1, shape=SHAPE):
    return np.full(shape, value, dtype)


ROWS = st.one_of(
    st.builds(
        image,
        st.sampled_from(["uint8", "float32", ">f4", "M8[s]"]),
        st.integers(0, 9),
        st.sampled_from([SHAPE, SHAPE[::-1], (3,)]),
    ),
    st.builds(lambda value: torch.full(SHAPE, value), st.sampled_from([1, 1.5])),
    st.integers(0, 9),
    st.just("text"),
)


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["tuple", "list", "dict", "bare"]),
    samples=st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=4),
    alike=st.booleans(),
)
def test_a_batch_is_what_it_would_be_otherwise_and_so_is_its_error(kind, samples, alike):
    if alike:
        samples = [samples[0]] * len(samples)
    form = {"tuple": tuple, "list": list, "dict": lambda row: dict(zip("xy", row, strict=True))}
    samples = [form[kind](row) if kind in form else row[0] for row in samples]
    in_place = put_all(RowsInPlace(Heap().find), samples)
    ours, theirs = collated(deferred_collation_fn, in_place), collated(default_collation_fn, samples)
    assert ours == theirs


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_rows_lie_in_their_column_before_the_batch_is_made(make):
    heap = Heap()
    put_all(RowsInPlace(heap.find), [(make(image(value=value)), value) for value in range(5)])
    (column,) = heap.rooms[0].columns
    assert column.shape == (5, *SHAPE)
    assert column[:, 0, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_a_stack_of_rows_that_lie_there_already_copies_only_those_that_do_not(make):
    heap = Heap()
    samples = put_all(RowsInPlace(heap.find), [make(image(value=value)) for value in range(3)])
    samples[1] = make(image(value=9))
    (column,) = heap.rooms[0].columns
    deferred_collation_fn(samples).write_into(column)
    assert column[:, 0, 0].tolist() == [0, 9, 2]


def test_the_users_sample_stays_as_it_is():
    mine = {"x": image(), "y": 1}
    before = mine["x"]
    put_all(RowsInPlace(Heap().find), [mine, mine])
    assert mine["x"] is before


@pytest.mark.parametrize(
    "row",
    [
        image(shape=(3, 4)),
        image("M8[s]"),
        np.ma.masked_array(image()),
        torch.ones(SHAPE, requires_grad=True),
        torch.ones(SHAPE, dtype=torch.bfloat16),
        torch.eye(200).to_sparse(),
        "text",
    ],
    ids=["small", "dates", "masked", "with gradient", "bfloat16", "sparse", "text"],
)
def test_no_room_is_looked_for_where_rows_are_none_to_be_copied_at_once(row):
    heap = Heap()
    assert RowsInPlace(heap.find).begin((row, 1), 4) is None
    assert heap.rooms == []


def test_where_there_is_no_room_nothing_is_put():
    assert RowsInPlace(lambda forms: None).begin(image(), 4) is None


def test_the_room_of_a_batch_that_came_to_nothing_is_used_for_the_next():
    heap = Heap()
    rows = RowsInPlace(heap.find)
    put_all(rows, [image()] * 3)
    put_all(rows, [image()] * 3)
    assert len(heap.rooms) == 1


def test_room_is_given_up_for_room_of_another_form_and_at_the_end():
    heap = Heap()
    rows = RowsInPlace(heap.find)
    put_all(rows, [image()] * 3)
    put_all(rows, [image("float32")] * 3)
    assert [room.given_up for room in heap.rooms] == [True, False]
    rows.end()
    assert [room.given_up for room in heap.rooms] == [True, True]
