"""Stages behind a MultiLoader, which run in the trainer."""

import collections
import itertools
import os
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds import DataPipeline, MultiLoader, WebLoader
from mpwds.loader.multi_loader import LoaderPipeline
from tests.loader.faults.processes import runs

pytestmark = pytest.mark.usefixtures("quick_workers")


def rows():
    """A hundred samples; what makes them goes to the workers without this module and all that it imports."""

    def row(number):
        return {"image": np.full((5, 4), number, np.float32), "label": number, "__key__": f"{number:04}"}

    return DataPipeline(range(100)).map(row)


def assert_whole(batch):
    """The fields of each row belong together."""
    labels = batch["label"].tolist()
    assert batch["image"].shape == (len(labels), 5, 4)
    assert (batch["image"] == batch["label"].reshape(-1, 1, 1)).all()
    assert batch["__key__"] == [f"{label:04}" for label in labels]
    return labels


ROWS = rows()


@pytest.fixture(scope="module")
def loader():
    """One for all tests that need nothing special; its workers stay."""
    with MultiLoader(ROWS.batched(7), workers=2) as loader:
        list(loader)
        yield loader


@pytest.fixture(autouse=True)
def _nothing_left(loader, nothing_left):
    """The workers of the loader that is shared are there before the test."""


@settings(deadline=None, max_examples=15)
@given(size=st.integers(1, 40), shuffle=st.integers(0, 120), drop_last=st.booleans(), epoch=st.integers(0, 3))
def test_rebatched_gives_every_row_once(loader, size, shuffle, drop_last, epoch):
    loader.set_epoch(epoch)
    batches = list(loader.rebatched(size, shuffle, drop_last))
    labels = [label for batch in batches for label in assert_whole(batch)]
    whole, rest = divmod(100, size)
    expected = [size] * whole + [rest] * (rest > 0 and not drop_last)
    assert [len(batch["label"]) for batch in batches] == expected
    assert len(set(labels)) == len(labels) == sum(expected)


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_rebatched_gives_what_the_loader_gives(output):
    batches = list(MultiLoader(ROWS.batched(7), workers=0, output=output).rebatched(16, shuffle=50))
    kind = torch.Tensor if output == "torch" else np.ndarray
    assert {type(batch[field]) for batch in batches for field in ("image", "label")} == {kind}
    assert sorted(label for batch in batches for label in assert_whole(batch)) == list(range(100))


def test_every_method_named_after_a_stage_is_there(loader):
    pipeline = loader.map(lambda batch: batch["label"]).unbatched().map(int).select(lambda n: n % 2).slice(3)
    assert isinstance(pipeline, LoaderPipeline)
    assert pipeline.loader is loader
    assert len(list(pipeline)) == 3
    labels = loader.to_tuple("label").rebatched(100).map(lambda batch: batch[0].tolist())
    assert sorted(next(iter(labels))) == list(range(100))
    assert loader.compose(lambda source: iter([1])).with_epoch(3).repeat(2).loader is loader


def test_stages_run_here_and_the_dataset_in_workers():
    with MultiLoader(DataPipeline(range(4)).map(lambda _: os.getpid()), workers=2) as loader:
        makers, takers = zip(*loader.map(lambda pid: (int(pid), os.getpid())), strict=True)
        assert set(makers) == set(loader.worker_pids)
    assert set(takers) == {os.getpid()}


def orders(pipeline, epochs=1):
    return [[label for batch in pipeline for label in batch["label"].tolist()] for _ in range(epochs)]


@pytest.mark.parametrize(
    "add_stages",
    [
        lambda loader: loader.unbatched().shuffle(50).batched(8),
        lambda loader: loader.rebatched(8, shuffle=50),
    ],
)
def test_each_iteration_is_an_epoch_of_the_loader_with_an_order_of_its_own(loader, add_stages):
    loader.set_epoch(0)
    pipeline = add_stages(loader)
    first, second = orders(pipeline, 2)
    assert first != second
    pipeline.set_epoch(1)
    assert orders(pipeline) == [second]
    loader.set_epoch(0)
    assert orders(add_stages(loader)) == [first]


def test_the_dataset_has_the_seed_of_stages_behind_it_too():
    def order(seed):
        return orders(
            MultiLoader(DataPipeline(ROWS, seed=seed).batched(7), workers=0).rebatched(8, shuffle=90)
        )

    assert order(3) == order(3) != order(4)


def tells_epochs():
    class TellsEpochs:
        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            yield self.epoch

    return TellsEpochs()


def test_epochs_are_counted_by_the_loader_whoever_iterates():
    with MultiLoader(tells_epochs(), workers=1) as loader:
        epochs = loader.map(int)
        assert [*loader, *epochs, *loader.map(int), *epochs, *loader] == [0, 1, 2, 3, 4]
        epochs.set_epoch(7)
        assert [*epochs, *loader] == [7, 8]
        first, *others = epochs.compose().repeat(3)
        assert first == 9
        assert len({first, *others}) == 3
        assert [*epochs] == [10]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterable_inside_a_pipeline_is_told_the_epoch_too(workers):
    with MultiLoader(DataPipeline(tells_epochs()).map(int), workers=workers) as loader:
        assert [*loader, *loader] == [0, 1]
        loader.set_epoch(5)
        assert [*loader.map(int)] == [5]


def test_with_epoch_goes_on_with_further_epochs_of_the_workers(loader):
    pipeline = loader.rebatched(30).with_epoch(6)
    assert [len(batch["label"]) for batch in pipeline] == [30, 30, 30, 10, 30, 30]
    assert len(pipeline) == 6


@pytest.mark.parametrize(
    ("limits", "count"), [({"nepochs": 2}, 32), ({"nbatches": 20}, 20), ({"nepochs": 2, "nbatches": 20}, 20)]
)
def test_a_loader_repeats_its_epochs_up_to_a_number_of_batches(loader, limits, count):
    assert sum(1 for _ in itertools.islice(loader.repeat(**limits), 40)) == count


def test_a_new_iteration_ends_the_one_before_of_any_pipeline(loader):
    batches = iter(loader.rebatched(10))
    next(batches)
    next(iter(loader.map(dict)))
    with pytest.raises(RuntimeError, match="another iteration of this loader has begun"):
        collections.deque(batches, maxlen=0)


def test_close_ends_the_workers_and_iterating_starts_new_ones():
    pipeline = MultiLoader(ROWS.batched(7), workers=2).rebatched(10)
    list(pipeline)
    pids = pipeline.loader.worker_pids
    assert all(map(runs, pids))
    pipeline.close()
    assert not any(map(runs, pids))
    with pipeline:
        assert len(list(pipeline)) == 10
    assert pipeline.loader.worker_pids == []


def test_a_pipeline_without_a_name_delivers_everything_and_leaves_nothing():
    assert len(list(MultiLoader(ROWS.batched(7), workers=2).rebatched(10, shuffle=30))) == 10


def test_blocks_are_free_when_their_rows_are_in_the_pool():
    dataset = DataPipeline(range(30)).map(lambda number: np.full((2, 40_000), number))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with MultiLoader(dataset, workers=2, prefetch=1) as loader:
            kept = list(loader.rebatched(10, shuffle=40))
    assert sorted(number for batch in kept for number in batch[:, -1].tolist()) == [n // 2 for n in range(60)]


def test_rows_of_another_shape_are_an_error_that_tells_what_to_do():
    dataset = DataPipeline([np.zeros((4, 3)), np.zeros((4, 2))])
    with (
        MultiLoader(dataset, workers=1).rebatched(3) as loader,
        pytest.raises(
            ValueError, match=r"rows of float64 \[2\], in batches before they were float64 \[3\]"
        ) as caught,
    ):
        list(loader)
    assert caught.value.__notes__ == ["in rebatched(3), on element 1 that stream 0 delivered"]


def test_without_workers_everything_is_the_same():
    with MultiLoader(ROWS.batched(7), workers=1) as remote:
        local = MultiLoader(ROWS.batched(7), workers=0)
        assert orders(local.rebatched(8, shuffle=50), 2) == orders(remote.rebatched(8, shuffle=50), 2)


def test_a_copy_has_a_loader_of_its_own():
    pipeline = (
        MultiLoader(DataPipeline(range(50)).batched(7), workers=0).rebatched(8, shuffle=50).with_epoch(5)
    )
    copy = pickle.loads(pickle.dumps(pipeline))
    assert [batch.tolist() for batch in copy] == [batch.tolist() for batch in pipeline]
    assert copy.loader is not pipeline.loader
    next(iter(copy))
    assert copy.loader._epoch == pipeline.loader._epoch + 1


def test_a_pipeline_with_a_further_stage_has_a_position_of_its_own():
    numbers = MultiLoader(range(8), workers=0, output="numpy").map(int)
    assert list(itertools.islice(numbers, 3)) == [0, 1, 2]
    pairs = numbers.batched(2)
    assert pairs.state_dict()["delivered"] == 0
    assert len(list(pairs)) == 4
    numbers.load_state_dict(numbers.state_dict())
    assert list(numbers) == [3, 4, 5, 6, 7]


def test_it_prints_as_it_was_written():
    pipeline = MultiLoader(range(4), workers=2).batched(2).rebatched(3, shuffle=4).with_epoch(9)
    assert repr(pipeline) == (
        "MultiLoader(DataPipeline(range), workers=2)\n"
        "    .batched(2)\n    .rebatched(3, shuffle=4)\n    .with_epoch(9)"
    )


def test_a_stream_is_restored(loader):
    stream = loader.rebatched(8, shuffle=50).stream()
    seen = [next(stream)[1]["label"].tolist() for _ in range(4)]
    state = stream.state_dict()
    again = loader.rebatched(8, shuffle=50).stream()
    next(again)
    again.load_state_dict(state)
    left = [batch["label"].tolist() for _, batch in again]
    assert seen + left == [batch["label"].tolist() for _, batch in loader.rebatched(8, shuffle=50).stream()]


def test_torchs_dataloader_takes_it_for_an_iterable_dataset(loader):
    pipeline = loader.rebatched(25)
    assert isinstance(pipeline, torch.utils.data.IterableDataset)
    assert [len(batch["label"]) for batch in torch.utils.data.DataLoader(pipeline, batch_size=None)] == [
        25
    ] * 4


def test_an_epoch_of_stages_that_had_nothing_left_is_empty_with_a_warning():
    pipeline = MultiLoader(range(8), workers=0, output="numpy").batched(2)
    batches = iter(pipeline)
    assert len([next(batches) for _ in range(4)]) == 4
    pipeline.load_state_dict(pipeline.state_dict())
    with pytest.warns(UserWarning, match="had nothing left"):
        assert list(pipeline) == []


@pytest.mark.parametrize("kind", [MultiLoader, WebLoader])
def test_stages_after_a_loader_draw_other_random_numbers_on_each_rank(kind, monkeypatch):
    def drawn(rank):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        loader = kind(DataPipeline(range(8)), **{"workers" if kind is MultiLoader else "num_workers": 0})
        return list(loader.map(lambda _: random.random()))

    assert drawn(0) == drawn(0)
    assert set(drawn(0)).isdisjoint(drawn(1))
