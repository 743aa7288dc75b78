"""Datasets, iterators and samplers with a state of their own continue from it."""

import copy
import os
import random
import signal
import warnings
from itertools import chain

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from mpwds import DataLoader, MultiLoader
from tests.loader.jobs import as_json, as_lists, continued

pytestmark = pytest.mark.usefixtures("quick_workers", "states_everywhere")

MADE = []


def own_part(count):
    info = get_worker_info()
    return range(count)[info.id :: info.num_workers] if info else range(count)


class Counting(IterableDataset):
    """A dataset that knows how far it is, and draws from a generator of its own."""

    def __init__(self, count=40):
        self.count, self.at, self.dice, self.state = count, 0, random.Random(5), {}

    def __iter__(self):
        part = own_part(self.count)
        while self.at < len(part):
            MADE.append(part[self.at])
            self.at += 1
            yield part[self.at - 1] + self.dice.random()
        self.at = 0

    def state_dict(self):
        self.state.update({"at": self.at, "dice": self.dice.getstate()})
        return self.state  # the same each time

    def load_state_dict(self, state):
        self.at = state["at"]
        version, words, gauss = state["dice"]
        self.dice.setstate((version, tuple(words), gauss))


class Iterated(IterableDataset):
    """A dataset whose iterators know how far they are."""

    def __iter__(self):
        return Numbers(own_part(40))


class Numbers:
    def __init__(self, part):
        self.part, self.at = part, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.part):
            raise StopIteration
        MADE.append(self.part[self.at])
        self.at += 1
        return self.part[self.at - 1]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


LOADERS = {
    "MultiLoader": lambda dataset, workers: MultiLoader(
        dataset, workers=workers, output="numpy", start_method="fork"
    ),
    "DataLoader": lambda dataset, workers: DataLoader(
        dataset,
        batch_size=3,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    ),
    "persistent": lambda dataset, workers: DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        persistent_workers=workers > 0,
    ),
}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("dataset", [Counting, Iterated])
@pytest.mark.parametrize("kind", LOADERS)
def test_the_rest_of_the_epoch_comes_without_what_was_delivered(kind, dataset, workers):
    make = LOADERS[kind]
    torch.manual_seed(3)
    whole = as_lists(make(dataset(), workers))
    for count in (4, len(whole) - 1) if workers else (0, 1, 4, len(whole) // 2, len(whole) - 1):
        torch.manual_seed(3)
        loader = make(dataset(), workers)
        first = as_lists(loader, count)
        saved = loader.state_dict()
        state = as_json(saved)
        if not workers:
            as_lists(loader, 1), loader.state_dict()  # which do not change what was saved
            assert as_json(saved) == state
        other = make(dataset(), workers)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "This DataLoader will create")
            other.load_state_dict(state)
            assert as_json(other.state_dict()) == state
            MADE.clear()
            assert first + as_lists(other) == whole
        assert workers or not count or len(MADE) <= 40 - count


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", LOADERS)
def test_states_follow_each_other(kind, workers):
    def make():
        return LOADERS[kind](Counting(24), workers)

    whole, got, state = as_lists(make()), [], make().state_dict()
    while len(got) < len(whole):
        loader = continued(make(), state)
        got += as_lists(loader, min(max(3, len(whole) // 4), len(whole) - len(got)))
        state = loader.state_dict()
    assert got == whole


class Sharing(IterableDataset):
    """A dataset whose state is a part of it, and not a copy."""

    def __init__(self, count):
        self.count, self.state = count, {"at": 0}

    def __iter__(self):
        part = own_part(self.count)
        while self.state["at"] < len(part):
            self.state["at"] += 1
            yield part[self.state["at"] - 1]
        self.state["at"] = 0

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Counting, Sharing])
def test_an_epoch_that_is_left_early_leaves_the_dataset_as_it_was(dataset, workers):
    count = 200 * workers + 20  # more than workers prepare ahead
    with LOADERS["MultiLoader"](dataset(count), workers) as loader:
        whole = as_lists(loader)
    with LOADERS["MultiLoader"](dataset(count), workers) as loader:
        as_lists(loader, 7)
        assert as_lists(loader) == whole


class StatefulInside:
    """Has a state only while it is iterated."""

    def __iter__(self):
        self.elements = iter(range(3))
        return self.elements

    def state_dict(self):
        return {"left": list(copy.copy(self.elements))}

    def load_state_dict(self, state):
        raise AssertionError(state)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_may_lack_a_state_until_it_is_iterated(workers):
    loader = MultiLoader(StatefulInside(), workers, output="numpy", start_method="fork")
    assert list(loader) == [0, 1, 2]


class SamplerStatefulInside(StatefulInside, torch.utils.data.Sampler):
    pass


def test_a_sampler_may_lack_a_state_until_it_is_iterated():
    loader = DataLoader(range(5), sampler=SamplerStatefulInside())
    elements = iter(loader)
    assert next(elements) == 0
    loader.load_state_dict(loader.state_dict())
    assert as_lists(loader) == [[1], [2]]


class Deadly(Counting):
    """It kills its worker in the midst of the epoch, once."""

    def __init__(self, count, marker):
        super().__init__(count)
        self.marker = marker

    def __iter__(self):
        for number in super().__iter__():
            if self.at == 60 and not self.marker.exists():
                self.marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield number


def test_a_dataset_whose_worker_died_continues_from_its_state(tmp_path):
    with LOADERS["MultiLoader"](Counting(200), 2) as loader:
        whole = as_lists(loader)
    deadly = Deadly(200, tmp_path / "killed")
    loader = MultiLoader(deadly, 2, output="numpy", start_method="fork", on_worker_death="restart")
    with loader, pytest.warns(RuntimeWarning, match="A new process"):
        assert as_lists(loader) == whole


class Noise(torch.utils.data.Dataset):
    """Map-style: its samples come from a generator of its own, which is its state."""

    def __init__(self):
        self.dice = random.Random(5)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index + self.dice.random()

    def state_dict(self):
        return {"at": 0, "dice": self.dice.getstate()}

    load_state_dict = Counting.load_state_dict


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 3}, {"num_workers": 2, "persistent_workers": True, "batch_size": None}],
    ids=str,
)
def test_a_map_style_dataset_continues_from_its_state_in_each_worker(options):
    def make():
        return DataLoader(Noise(), shuffle=True, generator=torch.Generator().manual_seed(3), **options)

    whole = as_lists(make())
    for count in (0, 1, 9):
        loader = make()
        first = as_lists(loader, count)
        assert first + as_lists(continued(make(), as_json(loader.state_dict()))) == whole


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_state_of_workers_datasets_is_refused_by_another_number_of_workers():
    state = DataLoader(Noise(), num_workers=2).state_dict()
    with pytest.raises(ValueError, match="it was 2, is 3"):
        DataLoader(Noise(), num_workers=3).load_state_dict(state)


class Torchs(Numbers):
    """An iterator that draws from torch's own generator, whose state is a part of its own."""

    def __next__(self):
        return super().__next__() + torch.rand(()).item()

    def state_dict(self):
        return {"at": self.at, "generator": torch.get_rng_state().tolist()}

    def load_state_dict(self, state):
        self.at = state["at"]
        torch.set_rng_state(torch.tensor(state["generator"], dtype=torch.uint8))


class IteratedByTorchs(Iterated):
    def __iter__(self):
        return Torchs(own_part(40))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("count", [0, 5])
def test_an_iterator_may_restore_torchs_generator(workers, count):
    loader = DataLoader(IteratedByTorchs(), num_workers=workers)
    elements = iter(loader)
    as_lists(elements, count)
    state, rest = loader.state_dict(), as_lists(elements)
    other = continued(DataLoader(IteratedByTorchs(), num_workers=workers, snapshot_every_n_steps=5), state)
    assert as_lists(other) == rest


class Shuffled:
    """A sampler that knows how far it is in the order of an epoch, and draws from a generator of its own."""

    def __init__(self, batches=False, seed=7):
        self.batches, self.order, self.at, self.dice = batches, [], 0, random.Random(seed)
        self.state = {}

    def __len__(self):
        return 21 if self.batches else 41

    def __iter__(self):
        if not self.order:
            order = self.dice.sample(range(41), 41)
            self.order = [order[at : at + 2] for at in range(0, 41, 2)] if self.batches else order
        while self.at < len(self.order):
            self.at += 1
            yield self.order[self.at - 1]
        self.order, self.at = [], 0

    def state_dict(self):
        self.state.update({"order": self.order, "at": self.at, "dice": self.dice.getstate()})
        return self.state  # the same each time

    def load_state_dict(self, state):
        self.order, self.at = list(state["order"]), state["at"]
        version, words, gauss = state["dice"]
        self.dice.setstate((version, tuple(words), gauss))


@pytest.mark.parametrize(
    ("options", "batches"),
    [({}, False), ({}, True), ({"num_workers": 2}, False), ({"num_workers": 2, "in_order": False}, False)],
    ids=str,
)
def test_a_sampler_continues_from_its_state(options, batches):
    def make(**options):
        order = {"batch_sampler": Shuffled(True)} if batches else {"sampler": Shuffled(), "batch_size": 2}
        return DataLoader(range(41), **order, **options)

    loader = make()  # without workers, which change nothing about the order
    epochs = [as_lists(loader) for _ in range(3)]
    for count in (6, 21) if options else (0, 1, 6, 20, 21):
        loader = make(**options)
        as_lists(loader)
        first = as_lists(loader, count)
        state = as_json(loader.state_dict())
        assert options or state["samplers"][0] >= min(count, 20)  # no index before it is drawn again
        other = continued(make(**options), state)
        assert as_json(other.state_dict()) == state
        elements = iter(other)
        assert as_json(other.state_dict()) == state
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing is left
            got, following = first + as_lists(elements), as_lists(other)
        if options.get("in_order", True):
            assert got == epochs[1]
        assert sorted(chain(*got)) == list(range(41))
        assert sorted(chain(*following)) == list(range(41))
        assert following == epochs[2] or not options.get("in_order", True)
