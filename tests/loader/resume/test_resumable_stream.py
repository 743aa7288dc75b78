"""Stages behind a loader go on where they were, with what they held."""

import json
import pickle
import random
import warnings

import numpy as np
import pytest

from mpwds import DataPipeline, MultiLoader
from mpwds.loader.worker import elements as iterating
from mpwds.pipeline.context import ALONE
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.stream import WrappedStream, fetch_held
from tests.loader.jobs import as_json, as_lists, continued
from tests.warned import files_of

pytestmark = pytest.mark.usefixtures("quick_workers")

ROWS = DataPipeline(range(120)).shuffle(20).map(lambda number: number + np.random.random())

PIPELINES = {
    "nothing": lambda loader: loader.compose(),
    "unbatched": lambda loader: loader.unbatched(),
    "unbatched, shuffled": lambda loader: loader.unbatched().shuffle(40),
    "shuffled and batched": lambda loader: loader.unbatched().shuffle(40).map(np.sqrt).batched(7),
    "unbatched, shuffled and batched": lambda loader: loader.unbatched().shuffle(40).batched(7),
    "the same, the rest dropped": lambda loader: loader.unbatched().shuffle(50, 10).batched(9, partial=False),
    "the same, repeated": lambda loader: loader.unbatched().shuffle(30).batched(8).repeat(2),
    "batched twice": lambda loader: loader.unbatched().shuffle(30).batched(4).shuffle(3).batched(2),
    "bucketed": lambda loader: loader.unbatched().bucketed(float, [30, 60, 90], 6),
    "augmented": lambda loader: loader.map(lambda batch: batch + np.random.random()),
    "threads": lambda loader: loader.map(np.sqrt, threads=3),
    "rebatched": lambda loader: loader.rebatched(8, shuffle=50),
    "rebatched in order": lambda loader: loader.rebatched(8),
    "rebatched, the rest dropped": lambda loader: loader.rebatched(9, shuffle=50, initial=10, drop_last=True),
    "with_epoch": lambda loader: loader.rebatched(8, shuffle=30).with_epoch(40),
    "repeated": lambda loader: loader.unbatched().shuffle(15).repeat(2),
    "sliced": lambda loader: loader.unbatched().shuffle(15).slice(10, 90, 2),
    "of no use": lambda loader: loader.select(lambda batch: False),
}


@pytest.fixture(scope="module", params=[0, 3])
def loader(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iterating, "STATE_EVERY_S", 0)
        patch.setattr(iterating, "STATE_SHARE", float("inf"))
        dataset = ROWS.batched(5)
        with MultiLoader(dataset, request.param, output="numpy", start_method="fork") as loader:
            list(loader)
            yield loader


@pytest.fixture(autouse=True)
def _nothing_left(loader, nothing_left):
    """The workers of the loader that is shared are there before the test."""


def rows(elements):
    return sorted(np.concatenate([np.ravel(element) for element in elements]).tolist()) if elements else []


def first_and_rest(make, loader, count):
    loader.set_epoch(0)
    pipeline = make(loader)
    elements = iter(pipeline)
    first = as_lists(elements, count)
    state = as_json(pipeline.state_dict())
    del elements
    other = continued(make(loader), state)
    assert as_json(other.state_dict()) == state
    return first, as_lists(other), as_lists(other)


@pytest.mark.parametrize("stages", PIPELINES)
def test_what_is_left_is_delivered_exactly_without_a_warning(loader, stages):
    make = PIPELINES[stages]
    loader.set_epoch(0)
    whole, following = as_lists(make(loader)), as_lists(make(loader))
    counts = {0, len(whole) // 2, len(whole)}
    if not loader.workers:  # as is quick
        counts |= {1, max(0, len(whole) - 1), random.Random(stages).randrange(len(whole) + 1)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the epoch that load_state_dict continued had nothing left")
        for count in sorted(count for count in counts if count <= len(whole)):
            first, rest, behind = first_and_rest(make, loader, count)
            assert first + rest == whole
            assert behind == following


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages", ["shuffled and batched", "unbatched, shuffled and batched", "rebatched", "batched twice"]
)
def test_out_of_order_each_row_comes_once(stages):
    make = PIPELINES[stages]
    with MultiLoader(ROWS.batched(5), 3, output="numpy", start_method="fork", in_order=False) as loader:
        whole = rows(as_lists(make(loader)))
        for count in (1, 6, 11):
            first, rest, _ = first_and_rest(make, loader, count)
            assert rows(first + rest) == whole


def test_the_state_is_there_after_the_loop_was_left(loader):
    pipeline = loader.rebatched(8, shuffle=50)
    loader.set_epoch(0)
    whole = as_lists(pipeline)
    loader.set_epoch(0)
    for number, _ in enumerate(pipeline):
        if number == 4:
            break
    pipeline.load_state_dict(pipeline.state_dict())
    assert as_lists(pipeline) == whole[5:]


GENERATOR = {
    "generator": (
        lambda loader: loader.unbatched().compose(lambda source: (2 * row for row in source)),
        "compose",
    ),
    "held": (
        lambda loader: loader.rebatched(8, shuffle=30).shuffle(3),
        r"rebatched\(8, shuffle=30\) does not keep",
    ),
}


@pytest.mark.parametrize("stages", GENERATOR)
def test_stages_that_cannot_are_run_again_and_one_warning_says_why(loader, stages):
    make, why = GENERATOR[stages]
    loader.set_epoch(0)
    whole = as_lists(make(loader))
    with pytest.warns(
        UserWarning, match=rf"running the first 6 elements of the epoch again \({why}"
    ) as caught:
        first, rest, _ = first_and_rest(make, loader, 6)
    assert first + rest == whole
    assert len(files_of(caught)) == 1


OWN_ADDRESSES = [[0, 0], [0, 1]]
"""Of elements that a stage has from elsewhere: they look like a worker and a number."""


class Pairs(Filter):
    """A user's stage: each element together with the one before."""

    def __init__(self, key="held"):
        self.key = key

    def __str__(self):
        return "pairs"

    def stream(self, source, context=ALONE):
        return _Paired(source, self.key)


class _Paired(WrappedStream):
    def __init__(self, source, key):
        super().__init__(source)
        self.key = key
        self.before = []

    def __next__(self):
        item = next(self._source)
        self.before, before = [item], self.before
        return item[0], np.stack([element for _, element in [*(before or [item]), item]])

    def state_dict(self):
        addresses = [address for address, _ in self.before]
        return {**super().state_dict(), self.key: [addresses, OWN_ADDRESSES]}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.before = fetch_held(self._source, state[self.key][0])


def test_a_stage_of_the_users_that_names_what_it_holds_is_continued_exactly(loader):
    def make(loader):
        return loader.compose(Pairs())

    loader.set_epoch(0)
    whole = as_lists(make(loader))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, rest, _ = first_and_rest(make, loader, 7)
    assert first + rest == whole


def test_one_that_does_not_is_run_again_and_one_warning_says_why(loader):
    def make(loader):
        return loader.compose(Pairs("kept"))

    loader.set_epoch(0)
    whole = as_lists(make(loader))
    with pytest.warns(
        UserWarning, match="a stage holds element .*, and its state does not name it"
    ) as caught:
        first, rest, _ = first_and_rest(make, loader, 7)
    assert first + rest == whole
    assert len(files_of(caught)) == 1


def test_addresses_of_a_stages_own_make_no_batch_again(loader):
    pipeline = loader.compose(Pairs())
    loader.set_epoch(0)
    as_lists(pipeline, 7)
    assert len(pipeline.state_dict()["stages"]["source"]["loaded"]["held"]) == 1


def test_stages_of_any_order_that_must_be_run_again_are_an_error(loader):
    pipeline = loader.unbatched().map(np.sum, threads=2, in_order=False).compose(lambda source: source)
    next(iter(pipeline))
    pipeline.load_state_dict(pipeline.state_dict())
    with pytest.raises(ValueError, match="with in_order=False elements come in another order"):
        iter(pipeline)


@pytest.mark.parametrize("workers", [1, 2])
def test_out_of_order_stages_that_must_be_run_again_are_an_error_for_several_workers(workers):
    with MultiLoader(ROWS.batched(5), workers, in_order=False, start_method="fork") as loader:
        pipeline = loader.compose(lambda source: source)
        next(iter(pipeline))
        pipeline.load_state_dict(pipeline.state_dict())
        if workers == 1:
            with pytest.warns(UserWarning, match="running the first 1 elements"):
                assert len(list(pipeline)) == 23
        else:
            with pytest.raises(ValueError, match="with in_order=False elements come in another order"):
                iter(pipeline)


def test_other_stages_are_refused(loader):
    state = loader.rebatched(8).state_dict()
    with pytest.raises(
        ValueError, match=r"stages of the loader changed .*was rebatched\(8\), is rebatched\(9\)"
    ):
        loader.rebatched(9).load_state_dict(state)
    with pytest.raises(ValueError, match="state of a LoaderPipeline, loaded into a MultiLoader"):
        loader.load_state_dict(state)


def test_set_epoch_to_another_begins_that_one_and_says_so(loader):
    pipeline = loader.rebatched(8)
    pipeline.set_epoch(0)
    next(iter(pipeline))
    pipeline.load_state_dict(pipeline.state_dict())
    pipeline.set_epoch(4)
    with pytest.warns(UserWarning, match="epoch 4 begins, which drops the rest of epoch 0"):
        assert len(list(pipeline)) == 15


@pytest.mark.parametrize("stages", ["unbatched", "rebatched", "bucketed"])
def test_what_comes_before_the_rows_that_are_held_is_not_made_again(states_everywhere, stages):
    made = []

    def make():
        samples = DataPipeline(range(600)).map(lambda number: made.append(number) or number)
        return PIPELINES[stages](MultiLoader(samples.batched(5), workers=0, output="numpy"))

    pipeline = make()
    whole = len(list(pipeline))
    pipeline.set_epoch(0)
    as_lists(pipeline, 9 * whole // 10)
    state = as_json(pipeline.state_dict())
    made.clear()
    assert len(list(continued(make(), state))) == whole - 9 * whole // 10
    assert len(made) < 300


def test_a_copy_begins_anew():
    pipeline = MultiLoader(DataPipeline(range(20)).batched(5), workers=0).rebatched(8)
    for _ in pipeline:
        break
    copy = pickle.loads(pickle.dumps(pipeline))
    assert copy.state_dict()["delivered"] == 0


def test_the_state_names_what_is_held_and_holds_no_data():
    large = DataPipeline(range(60)).map(lambda number: np.full(1000, number)).batched(5)
    pipeline = MultiLoader(large, workers=0, output="numpy").rebatched(8, shuffle=40)
    for _ in pipeline:
        break
    assert len(json.dumps(pipeline.state_dict())) < 2000
