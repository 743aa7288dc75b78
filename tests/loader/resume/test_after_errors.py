"""The state after an error: no element that the program did not get is left out, and none comes twice."""

import os

import numpy as np
import pytest
import torch

from mpwds import DataLoader, DataPipeline, MultiLoader, WebLoader
from mpwds.errors import MpwdsError
from tests.loader.jobs import as_json, as_lists, continued

pytestmark = [
    pytest.mark.usefixtures("quick_workers"),
    pytest.mark.filterwarnings("ignore:.*running the first", "ignore:.*runs again from its start"),
]


class Switch:
    """A fault in all processes, while the file ``path`` exists: at the number ``at``, or at any."""

    def __init__(self, path):
        self.path, self.at = path, None

    def __call__(self, batch):
        if os.path.exists(self.path) and (self.at is None or self.at in np.ravel(np.asarray(batch))):
            raise OSError("the file server is away")
        return batch

    def fail(self, at=None):
        self.at = at
        open(self.path, "w").close()

    def mend(self):
        os.remove(self.path)


@pytest.fixture
def switch(tmp_path):
    return Switch(str(tmp_path / "away"))


def rows_of(dataset, workers, **options):
    return MultiLoader(dataset, workers=workers, output="numpy", **options)


def torch_loader(loader):
    return lambda switch, workers: loader(
        DataPipeline(range(120)).map(switch).batched(5), batch_size=None, num_workers=workers
    )


def multi_loader(stages, **options):
    return lambda switch, workers: stages(
        rows_of(DataPipeline(range(120)).map(switch).batched(5), workers, **options)
    )


LOADERS = {
    "MultiLoader": multi_loader(lambda loader: loader),
    "unbatched": multi_loader(lambda loader: loader.unbatched()),
    "shuffled": multi_loader(lambda loader: loader.unbatched().shuffle(30).batched(7)),
    "mapped": multi_loader(lambda loader: loader.unbatched().map(float).shuffle(30)),
    "rebatched": multi_loader(lambda loader: loader.rebatched(8, shuffle=30)),
    "repeated": multi_loader(lambda loader: loader.unbatched().repeat(2).batched(5)),
    "replayed": multi_loader(lambda loader: loader.compose(lambda source: source)),
    "even": multi_loader(lambda loader: loader.rebatched(8, shuffle=30), even="drop"),
    "inside": lambda switch, workers: DataLoader(LOADERS["rebatched"](switch, workers), batch_size=None),
    "DataLoader": torch_loader(DataLoader),
    "WebLoader": torch_loader(WebLoader),
    "WebLoader, unbatched": torch_loader(lambda *args, **kw: WebLoader(*args, **kw).unbatched()),
}


def check_that_nothing_is_lost(make, switch, error=OSError, match="the file server is away", times=1):
    """Loaders that fail, and then one with the last state, deliver together what comes without a failure."""
    whole, got, state = as_lists(make()), [], make().state_dict()
    switch.fail(at=57)
    for _ in range(times):
        loader = continued(make(), state)
        with pytest.raises(error, match=match):
            for element in loader:
                got += as_lists([element])
        state = as_json(loader.state_dict())
    switch.mend()
    loader = continued(make(), state)
    assert as_json(loader.state_dict()) == state
    assert got + as_lists(loader) == whole


@pytest.mark.parametrize("even", [None, "drop", "pad", "wrap"])
def test_an_epoch_that_failed_has_not_ended_if_another_element_is_asked_for(even, switch):
    dataset = DataPipeline(range(120)).map(switch).batched(5)
    switch.fail(at=57)
    elements = iter(loader := rows_of(dataset, 0, streams=4, even=even))
    with pytest.raises(OSError, match="the file server is away"):
        list(elements)
    state = loader.state_dict()
    assert list(elements) == []
    assert loader.state_dict() == state


@pytest.mark.filterwarnings("ignore:an epoch that was left early failed")  # where workers are ahead
@pytest.mark.parametrize(
    ("kind", "workers"),
    [*((kind, 0) for kind in LOADERS), *((kind, 2) for kind in ("rebatched", "even", "DataLoader"))],
)
def test_a_resume_that_fails_leaves_the_state_that_was_loaded(kind, workers, switch):
    def make():
        torch.manual_seed(1)
        return LOADERS[kind](switch, workers)

    whole = as_lists(make())
    elements = iter(loader := make())
    first = as_lists(next(elements) for _ in range(6))
    loaded = as_json(loader.state_dict())
    del elements, loader
    switch.fail()
    resumed = continued(make(), loaded)
    with pytest.raises((OSError, MpwdsError), match="the file server is away|were delivered before"):
        as_lists(resumed)
    state = as_json(resumed.state_dict())
    switch.mend()
    assert first + as_lists(continued(make(), state)) == whole


@pytest.mark.parametrize("kind", ["rebatched", "shuffled", "even", "WebLoader, unbatched"])
def test_the_next_attempt_goes_on_with_the_epoch_that_failed_to_begin(kind, switch):
    loader = LOADERS[kind](switch, 0)
    epochs = [as_lists(loader), as_lists(loader)]
    loader.set_epoch(0)
    elements = iter(loader)
    first = as_lists(next(elements) for _ in range(6))
    loader.load_state_dict(loader.state_dict())
    switch.fail()
    with pytest.raises(OSError, match="the file server is away"):
        iter(loader)
    switch.mend()
    assert first + as_lists(loader) == epochs[0]
    assert as_lists(loader) == epochs[1]


def test_workers_that_cannot_start_leave_the_epoch_to_the_next_attempt(monkeypatch):
    loader = MultiLoader(DataPipeline(range(40)).shuffle(40), workers=2, output="numpy")
    epochs = [as_lists(loader), as_lists(loader)]
    loader.close()
    loader.set_epoch(0)
    elements = iter(loader)
    first = as_lists(next(elements) for _ in range(9))
    loader.load_state_dict(loader.state_dict())
    loader.close()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pipe", lambda: (_ for _ in ()).throw(OSError(24, "Too many open files")))
        with pytest.raises(OSError, match="Too many open files"):
            iter(loader)
    assert first + as_lists(loader) == epochs[0]
    assert as_lists(loader) == epochs[1]


class Absent:
    """A source that cannot always be opened."""

    def __init__(self, switch):
        self.switch = switch

    def stream(self, context):
        self.switch([])
        return DataPipeline(range(9)).shuffle(9).stream(context)


@pytest.mark.parametrize("workers", [None, 0])
def test_an_epoch_in_process_counts_once_it_has_begun(workers, switch):
    dataset = DataPipeline(Absent(switch))
    loader = dataset if workers is None else MultiLoader(dataset, workers=workers, output="numpy")
    epochs = [as_lists(loader), as_lists(loader)]
    loader.set_epoch(0)
    switch.fail()
    with pytest.raises(OSError, match="the file server is away"):
        as_lists(iter(loader))
    switch.mend()
    assert as_lists(loader) == epochs[0]


def stages_that_check(kind, check):
    return {
        "map": lambda loader: loader.map(check),
        "map, shuffle": lambda loader: loader.unbatched().map(check).shuffle(20).batched(4),
        "shuffle, map": lambda loader: loader.unbatched().shuffle(20).map(check).batched(4),
        "collation": lambda loader: loader.unbatched().batched(4, lambda rows: check(np.array(rows))),
        "flatmap": lambda loader: loader.unbatched().flatmap(lambda row: [-row, check(row)]),
        "select": lambda loader: loader.unbatched().select(lambda row: check(row) is not None),
        "bucketed": lambda loader: loader.unbatched().bucketed(lambda row: float(check(row)), [40, 80], 6),
        "buckets": lambda loader: loader.unbatched().bucketed(float, [40, 80], 6, lambda rows: check(rows)),
        "rebatched": lambda loader: loader.rebatched(8, shuffle=20).map(check).shuffle(3),
        "generator": lambda loader: loader.unbatched().compose(lambda source: map(check, source)),
    }[kind]


STAGES = ["map", "map, shuffle", "shuffle, map", "collation", "flatmap", "select", "bucketed", "buckets"]


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        *((kind, 0) for kind in (*STAGES, "rebatched", "generator")),
        *((kind, 2) for kind in ("map, shuffle", "rebatched", "generator")),
    ],
)
def test_an_element_that_a_stage_in_the_trainer_fails_on_comes_again(kind, workers, switch):
    def make():
        return stages_that_check(kind, switch)(rows_of(DataPipeline(range(120)).batched(5), workers))

    check_that_nothing_is_lost(make, switch, times=1 if workers else 3)


def test_a_batch_that_rebatched_refuses_comes_again(switch):
    def make():
        dataset = DataPipeline(range(60)).batched(5).map(shape)
        return rows_of(dataset, 0).rebatched(4, shuffle=10)

    def shape(batch):
        return batch[:, None] if os.path.exists(switch.path) and 32 in batch else batch

    check_that_nothing_is_lost(make, switch, ValueError, "rebatched")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_delivers_what_an_iterable_dataset_failed_on(workers, switch):
    def make():
        return torch_loader(DataLoader)(switch, workers)

    check_that_nothing_is_lost(make, switch)
