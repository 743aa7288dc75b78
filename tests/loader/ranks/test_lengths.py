"""The length of a loader: known where stages neither drop nor add elements, explained where it is not."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpwds
from mpwds import DataPipeline, MultiLoader, WebDataset
from mpwds.loader.resume.progress import EpochProgress
from mpwds.loader.worker.elements import WorkerIterator
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from tests.loader.jobs import as_json
from tests.warned import files_of

pytestmark = pytest.mark.usefixtures("quick_workers")


def numbers():
    return DataPipeline(range(23))


KNOWN = [
    (range(23), lambda loader: loader.batched(5)),
    (np.arange(23), lambda loader: loader),
    (numbers().shuffle(10), lambda loader: loader.shuffle(7)),
    (numbers().batched(5), lambda loader: loader),
    (numbers().batched(5, partial=False), lambda loader: loader.unbatched()),
    (numbers().batched(5, collation_fn=mpwds.padded()), lambda loader: loader.unbatched().batched(4)),
    (numbers().batched(5), lambda loader: loader.rebatched(4)),
    (numbers().batched(5), lambda loader: loader.rebatched(4, shuffle=9, drop_last=True)),
    (numbers().batched(5), lambda loader: loader.rebatched(4).rebatched(3, drop_last=True).unbatched()),
    (numbers().batched(5, partial=False), lambda loader: loader.rebatched(4).detshuffle(5)),
    (numbers().slice(3, 20, 2), lambda loader: loader.batched(3, partial=False)),
    (numbers(), lambda loader: loader.slice(2, 100, 3)),
    (numbers().slice(100, None), lambda loader: loader),
    (DataPipeline(numbers().repeat(2)).batched(5), lambda loader: loader.rebatched(6)),
    (numbers().with_epoch(30), lambda loader: loader),
    (numbers().repeat(3, 40), lambda loader: loader),
    (DataPipeline(range(1)).with_epoch(30), lambda loader: loader),
    (numbers().batched(5), lambda loader: loader.rebatched(4).repeat(3)),
    (numbers().batched(5), lambda loader: loader.rebatched(4).repeat(3, 10)),
    (numbers().batched(5), lambda loader: loader.rebatched(4).with_epoch(17)),
    (numbers().map(abs), lambda loader: loader.with_epoch(17)),
    (DataPipeline([(n, n) for n in range(23)]).map_tuple(abs).batched(4), lambda loader: loader),
    (DataPipeline([{"a": n} for n in range(23)]).map_dict(a=abs).to_tuple("a"), lambda loader: loader),
    (mpwds.MockDataset(np.zeros(3), 7).batched(2), lambda loader: loader.rebatched(3)),
    (lambda: iter(range(5)), lambda loader: loader.map(abs).with_epoch(17)),
]


@pytest.mark.filterwarnings("ignore:there are fewer shards than workers")
@pytest.mark.parametrize("workers", [0, 2, 5])
@pytest.mark.parametrize("case", range(len(KNOWN)))
def test_len_is_the_number_of_elements_that_come(case, workers, monkeypatch):
    dataset, add_stages = KNOWN[case]
    if workers:  # what several workers deliver, without starting them
        monkeypatch.setattr(MultiLoader, "_iterate_workers", _InTurn.of)
    loader = add_stages(MultiLoader(dataset, workers=workers, output="numpy"))
    assert len(loader) == len(list(loader))


class _InTurn:
    """What several workers deliver, one after the other, without starting them."""

    place = (0, 0)

    def __init__(self, loader, epoch):
        self.progress = EpochProgress.at_start(epoch, loader.workers)
        self._elements = _of_all_workers(loader, epoch)

    @staticmethod
    def of(loader, epoch, progress=None, **options):
        return _InTurn(loader, epoch)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._elements)


def _of_all_workers(loader, epoch):
    for worker in range(loader.workers):
        yield from WorkerIterator(
            loader.dataset, replace(Context.current(epoch), worker=worker, workers=loader.workers)
        )


STAGES = st.one_of(
    st.builds(lambda n: ("shuffle", n), st.integers(1, 9)),
    st.builds(lambda n, partial: ("batched", n, None, partial), st.integers(1, 5), st.booleans()),
    st.builds(lambda start, n, step: ("slice", start, start + n, step), *[st.integers(1, 9)] * 3),
    st.just(("info", None, 0)),
)


def with_stages(pipeline, stages):
    for name, *arguments in stages:
        pipeline = getattr(pipeline, name)(*arguments)
    return pipeline


@settings(deadline=None, max_examples=100)
@given(
    size=st.integers(0, 40),
    in_workers=st.lists(STAGES, max_size=3),
    here=st.lists(STAGES, max_size=3),
    repeats=st.none() | st.tuples(st.integers(1, 3), st.integers(-1, 30).filter(bool)),
    workers=st.integers(1, 4),
    world_size=st.integers(1, 3),
    even=st.sampled_from([None, "drop", "pad", "wrap"]),
)
def test_len_is_what_comes_on_all_ranks_whatever_the_stages(
    size, in_workers, here, repeats, workers, world_size, even
):
    dataset = with_stages(DataPipeline(range(size)), in_workers)
    delivered, lengths = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiLoader, "_iterate_workers", _InTurn.of)
        patch.setenv("WORLD_SIZE", str(world_size))
        for rank in range(world_size):
            patch.setenv("RANK", str(rank))
            loader = with_stages(MultiLoader(dataset, workers=workers).compose(), here)
            if repeats is not None:
                loader = loader.repeat(*repeats)
            delivered.append(sum(1 for _ in loader))
            loader.loader.even = even
            lengths.append(len(loader))
    if even is None:
        assert lengths == delivered
    else:
        assert lengths == [min(delivered) if even == "drop" else max(delivered)] * world_size


def test_len_is_that_of_the_next_epoch_and_depends_on_the_seed(tmp_path, at_rank):
    sizes = {"a": 1, "b": 10, "c": 100}
    for name, size in sizes.items():
        with mpwds.TarWriter(f"{tmp_path}/{name}.tar") as writer:
            for number in range(size):
                writer.write({"__key__": f"{name}{number}", "cls": number})
    shards = [{"url": f"{name}.tar", "nsamples": size} for name, size in sizes.items()]
    (tmp_path / "data.json").write_text(json.dumps({"wids_version": 1, "shardlist": shards}))
    at_rank(0, 3)
    lengths = []
    for seed in (None, 7):
        dataset = WebDataset(f"{tmp_path}/data.json", shardshuffle=True, seed=1)
        with MultiLoader(dataset.to_tuple("cls"), workers=0, seed=seed) as loader:
            for _ in range(6):
                lengths.append((len(loader), len(loader.batched(2)), len(list(loader))))
    assert len({length for length, _, _ in lengths}) == 3
    assert [(length, -(-length // 2), length) for length, _, _ in lengths] == lengths


def test_a_length_that_was_set_counts():
    assert len(MultiLoader(numbers().with_length(7, silent=True), workers=2)) == 7
    loader = MultiLoader(numbers().map(abs), workers=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        longer = [loader.with_length(9), loader.with_length(9, silent=True)]
    assert [len(each) for each in longer] == [9, 9]
    assert len(longer[0].batched(3)) == 9
    assert files_of(caught) == [__file__]


def test_a_dataset_that_divides_itself_has_the_length_that_it_says():
    class Dataset:
        def __iter__(self):
            return iter("abc")

        def __len__(self):
            return 3

    assert len(MultiLoader(Dataset(), workers=2)) == 3


@pytest.mark.parametrize(
    ("dataset", "add_stages", "reason"),
    [
        (lambda: iter("abc"), lambda loader: loader, "a function has none"),
        (mpwds.WebDataset("x-{0..3}.tar"), lambda loader: loader, "does not tell how many elements it has"),
        (numbers().map(abs), lambda loader: loader, r"map\(abs\) may drop or add elements"),
        (numbers(), lambda loader: loader.select(bool), r"select\(bool\) may drop"),
        (numbers().with_epoch(-1), lambda loader: loader, r"repeat\(\) has no end"),
        (numbers(), lambda loader: loader.repeat(), r"repeat\(\) has no end"),
        (
            numbers(),
            lambda loader: loader.unbatched(),
            r"unbatched\(\) gets batches whose number of rows is not known",
        ),
        (numbers().batched(5, list), lambda loader: loader.rebatched(2), r"rebatched\(2\) gets batches"),
        (
            numbers().batched(5),
            lambda loader: loader.unbatched(handler=mpwds.warn_and_continue),
            r"unbatched\(handler=warn_and_continue\) may drop",
        ),
    ],
)
def test_a_length_that_cannot_be_known_is_an_error_that_says_why(dataset, add_stages, reason):
    loader = add_stages(MultiLoader(dataset, workers=2))
    with pytest.raises(TypeError, match=f"not known: .*{reason}.*with_length"):
        len(loader)
    assert loader


def test_a_list_can_be_made_of_a_loader_whose_length_is_not_known():
    assert [int(element) for element in list(MultiLoader(lambda: iter([1, 2]), workers=0))] == [1, 2]


class Copies(Filter):
    """A user's stage: each element twice, or as often as it is told."""

    def __init__(self, times=2):
        self.times = times

    def __str__(self):
        return f"copies({self.times})"

    def stream(self, source, context=ALONE):
        return mpwds.flatmap(lambda element: [element] * self.times).stream(source, context)

    def count_of(self, incoming):
        return incoming.times(self.times)

    def samples_in(self, element):
        return 3


class BareCopies:
    """The same, without a base class of ours."""

    addressable = True
    times = 2
    __str__, stream, count_of, samples_in = Copies.__str__, Copies.stream, Copies.count_of, Copies.samples_in


@pytest.mark.parametrize("stage", [Copies(), BareCopies()])
@pytest.mark.parametrize("behind", [False, True])
def test_a_stage_of_the_users_that_answers_has_a_length_statistics_and_exact_resume(stage, behind):
    def loader():
        dataset = DataPipeline(range(6)).shuffle(3)
        if behind:
            return MultiLoader(dataset, workers=0).compose(stage).batched(5)
        return MultiLoader(dataset.compose(stage), workers=0).batched(5)

    whole = [batch.tolist() for batch in loader()]
    assert len(loader()) == len(whole) == 3
    first = loader()
    assert next(iter(first)).tolist() == whole[0]
    other = loader()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load_state_dict(as_json(first.state_dict()))
        assert [batch.tolist() for batch in other] == whole[1:]
    if not behind:
        stats = first.stats()
        assert stats.samples == 3 * stats.batches
        assert "copies(2)" in [each.name for each in stats.stages]
