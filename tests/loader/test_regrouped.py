"""Regrouped: what unbatched, shuffle and batched do, by whole batches."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds import DataPipeline, MultiLoader, WebLoader
from mpwds.errors import SharedMemoryError
from mpwds.pipeline.handlers import ignore_and_continue
from mpwds.pipeline.rebatch.rebatched import Regrouped, regrouped
from mpwds.pipeline.stages.batched import Batched
from mpwds.pipeline.stages.collation import padded
from mpwds.pipeline.stages.map import Map
from mpwds.pipeline.stages.shuffle import Shuffle
from mpwds.pipeline.stages.unbatched import Unbatched
from mpwds.pipeline.stream import Source
from mpwds.sharedmem import segment
from tests.loader.dataloader.data_loader_datasets import plain
from tests.loader.jobs import as_json, continued

pytestmark = pytest.mark.usefixtures("quick_workers")

COLUMNS = {
    "array": lambda numbers: np.array(numbers, np.float32)[:, None] * np.ones(3, np.float32),
    "numbers": lambda numbers: np.array(numbers, np.int16),
    "bools": lambda numbers: np.array(numbers) % 2 == 0,
    "tensor": lambda numbers: torch.tensor(numbers, dtype=torch.float64)[:, None, None] * torch.ones(2, 2),
    "labels": lambda numbers: torch.tensor(numbers),
    "text": lambda numbers: [str(number) for number in numbers],
    "list": list,
    "dates": lambda numbers: np.array(numbers, "M8[s]"),
    "bfloat16": lambda numbers: torch.tensor(numbers, dtype=torch.bfloat16)[:, None],
}
KINDS = {
    "tuple": tuple,
    "list": list,
    "dict": lambda columns: {f"field{number}": column for number, column in enumerate(columns)},
    "bare": lambda columns: columns[0],
}


def rows_of(batches):
    return sorted(str(plain(row)) for _, row in Unbatched().stream(Source(batches)))


def shape_of(batch):
    """What is the same of all batches of a size."""
    columns = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple) else [batch]
    return type(batch), [(type(column), getattr(column, "dtype", None), len(column)) for column in columns]


@settings(max_examples=150, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3),
    kind=st.sampled_from(sorted(KINDS)),
    sizes=st.lists(st.integers(1, 6), max_size=8),
    other=st.integers(0, 9),
    size=st.integers(2, 20),
    batchsize=st.integers(1, 7),
    partial=st.booleans(),
)
def test_its_batches_are_those_of_the_stages_but_for_the_order(
    names, kind, sizes, other, size, batchsize, partial
):
    def batch(number, rows):
        columns = [COLUMNS[name](range(number, number + rows)) for name in names]
        if number // 10 == other and isinstance(columns[0], np.ndarray):
            columns[0] = columns[0].astype("float64") if columns[0].dtype.kind != "M" else columns[0]
        return KINDS[kind](columns)

    batches = [batch(10 * number, rows) for number, rows in enumerate(sizes)]
    if kind == "bare" and isinstance(COLUMNS[names[0]]([1]), list):
        return  # a list of rows is no batch
    stages = [Unbatched(), Shuffle(size), Batched(batchsize, partial=partial)]
    (stage,) = regrouped(stages)
    try:
        theirs = DataPipeline(batches, *stages)
        theirs = list(theirs)
    except (ValueError, TypeError) as error:
        with pytest.raises(type(error)):
            list(stage.stream(Source(batches)))
        return
    ours = [each for _, each in stage.stream(Source(batches))]
    assert len(ours) == len(theirs)
    if partial:
        values = [rows_of(each) for each in (ours, theirs)]
        if other >= len(sizes):
            assert values[0] == values[1]
        assert len(values[0]) == sum(sizes)
    if other >= len(sizes):
        assert list(map(shape_of, ours)) == list(map(shape_of, theirs))


def test_rows_are_mixed_over_the_whole_buffer():
    batches = [np.arange(start, start + 10) for start in range(0, 1000, 10)]
    (stage,) = regrouped([Unbatched(), Shuffle(200, 200), Batched(10)])
    first = np.concatenate([each for _, each in stage.stream(Source(batches))][:10])
    assert first.max() > 150
    assert (np.diff(first) < 0).any()


@pytest.mark.parametrize(
    "stages",
    [
        [Unbatched(), Batched(4)],
        [Unbatched(), Shuffle(1), Batched(4)],
        [Unbatched(), Shuffle(9), Batched(4, collation_fn=None)],
        [Unbatched(), Shuffle(9), Batched(4, collation_fn=padded())],
        [Unbatched(ignore_and_continue), Shuffle(9), Batched(4)],
        [Unbatched(), Shuffle(9), Batched(4, handler=ignore_and_continue)],
        [Unbatched(), Map(abs), Shuffle(9), Batched(4)],
        [Unbatched(), Shuffle(9), Batched(4), Map(abs)],
        [Shuffle(9), Batched(4)],
        [],
    ],
    ids=lambda stages: ".".join(map(str, stages)),
)
def test_other_stages_stay_as_they_are(stages):
    assert regrouped(stages) == stages


def test_what_stands_before_stays():
    before = Map(abs)
    first, second = regrouped([before, Unbatched(), Shuffle(9), Batched(4)])
    assert first is before
    assert isinstance(second, Regrouped)


MUCH, LITTLE = 1 << 40, 4_000_000
"""Bytes of free memory. The pool of the loaders below takes 2.4 MB, more than half of the lesser."""


def floats_in_batches():
    dataset = DataPipeline(range(100)).map(lambda number: np.full(1000, number, "float32")).batched(10)
    return MultiLoader(dataset, workers=0, output="numpy").unbatched().shuffle(600).batched(7)


def web_loader():
    dataset = DataPipeline(range(100)).map(lambda number: torch.full((1000,), float(number))).batched(10)
    return WebLoader(dataset, batch_size=None).unbatched().shuffle(600).batched(7)


@pytest.mark.parametrize("make", [floats_in_batches, web_loader])
def test_the_order_is_the_same_with_much_and_with_little_free_memory(make, monkeypatch):
    orders = []
    for memory in (MUCH, LITTLE):
        monkeypatch.setattr(segment, "groups_have_left", lambda memory=memory: memory)
        orders.append(numbers_of(make()))
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(100))


@pytest.mark.parametrize(("before", "after"), [(MUCH, LITTLE), (LITTLE, MUCH)])
@pytest.mark.parametrize("make", [floats_in_batches, web_loader])
def test_an_epoch_is_continued_exactly_where_there_is_other_free_memory(make, before, after, monkeypatch):
    monkeypatch.setattr(segment, "groups_have_left", lambda: before)
    pipeline = make()
    batches = iter(pipeline)
    first = numbers_of(next(batches) for _ in range(5))
    state = as_json(pipeline.state_dict())
    rest = numbers_of(batches)
    monkeypatch.setattr(segment, "groups_have_left", lambda: after)
    other = continued(make(), state)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the stages after a WebLoader resume by running")
        assert numbers_of(other) == rest
    assert sorted(first + rest) == list(range(100))


def test_rows_that_do_not_fit_into_memory_are_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(segment, "groups_have_left", lambda: 1_000_000)
    with pytest.raises(
        SharedMemoryError, match=r"a pool of 600 rows, 2.4 MB, 1.0 MB are left: shuffle fewer rows here"
    ):
        list(floats_in_batches())


def changing(number):
    return np.full(4, number, "float32" if number < 60 else "float64")


def numbers_of(batches):
    return [int(row[0]) for batch in batches for row in batch]


@pytest.mark.parametrize("delivered", [1, 6, 8, 12, 14])
def test_an_epoch_with_batches_of_another_kind_is_continued_exactly(delivered):
    with MultiLoader(DataPipeline(range(100)).map(changing).batched(10), workers=0) as loader:
        pipeline = loader.unbatched().shuffle(20).batched(7)
        whole = numbers_of(pipeline)
        assert sorted(whole) == list(range(100))
        loader.set_epoch(0)
        batches = iter(pipeline)
        first = [next(batches) for _ in range(delivered)]
        state = as_json(pipeline.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pipeline.load_state_dict(state)
            assert numbers_of(first) + numbers_of(pipeline) == whole


@pytest.mark.parametrize(
    "sample",
    [
        lambda number: (np.full(3, number), str(number)),
        lambda number: {"number": number, "nested": {"square": np.full(2, number**2)}},
    ],
    ids=["columns that are pooled", "columns that are not"],
)
def test_rows_come_in_the_order_of_rebatched_whatever_they_are(sample):
    def loader():
        dataset = DataPipeline(range(100)).map(sample).batched(8)
        return MultiLoader(dataset, workers=0, output="numpy", seed=1)

    ours = list(loader().unbatched().shuffle(30, initial=10).batched(7, partial=False))
    theirs = list(loader().rebatched(7, shuffle=30, initial=10, drop_last=True))
    assert len(ours) == 14
    assert list(map(plain, ours)) == list(map(plain, theirs))


def test_an_error_of_collation_names_the_stage_and_the_rows():
    batches = [{"a": [1, 2]}, {"a": [3, 4]}, {"b": [5, 6]}]
    loader = MultiLoader(batches, workers=0, output="numpy").unbatched().shuffle(2, 2).batched(5)
    with pytest.raises((ValueError, KeyError)) as caught:
        list(loader)
    text = "".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "in batched(5)" in text
    assert "row 0 of " in text


def test_behind_loaders_the_memory_of_the_workers_is_free_as_soon_as_rows_are_in_the_buffer():
    dataset = DataPipeline(range(400)).map(lambda number: np.full((100, 100), number, "float32")).batched(8)
    with MultiLoader(dataset, workers=2) as loader, warnings.catch_warnings():
        warnings.filterwarnings("error", "more than .* batches of one worker are kept")
        for epoch in range(2):
            rows = [int(row[0, 0]) for batch in loader.unbatched().shuffle(150).batched(16) for row in batch]
            assert sorted(rows) == list(range(400)), epoch
