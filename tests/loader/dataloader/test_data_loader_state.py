"""The state of a DataLoader and of a WebLoader: the rest of an epoch, in the same order."""

import contextlib
import itertools
import random
import time

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from mpwds import DataPipeline, MultiLoader, WebLoader
from mpwds.errors import MpwdsError
from mpwds.loader.dataloader.data_loader import DataLoader
from mpwds.loader.dataloader.state import TaskProgress
from tests.loader.jobs import as_json, as_lists, continued
from tests.warned import files_of

pytestmark = pytest.mark.usefixtures("one_fork_server")


class Stream(IterableDataset):
    """An iterable dataset that divides itself, and draws random numbers."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for number in range(first, 40, step):
            yield number + (random.random() + float(torch.rand(()))) / 4 if info else number


class Failing(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 5:
            raise KeyError("bad sample")
        return index


def seeded():
    return torch.Generator().manual_seed(3)


MAP_STYLE = {
    "in order": lambda **options: DataLoader(range(50), batch_size=4, **options),
    "shuffled": lambda **options: DataLoader(range(50), batch_size=4, shuffle=True, **options),
    "with a generator": lambda **options: DataLoader(
        range(50), 4, shuffle=True, generator=seeded(), **options
    ),
    "with replacement": lambda **options: DataLoader(
        range(50),
        4,
        sampler=torch.utils.data.RandomSampler(range(50), True, 90, generator=seeded()),
        **options,
    ),
    "single samples": lambda **options: DataLoader(range(20), None, shuffle=True, **options),
    "the rest dropped": lambda **options: DataLoader(range(50), 4, shuffle=True, drop_last=True, **options),
    "a batch sampler": lambda **options: DataLoader(
        range(50), batch_sampler=[[n, n + 1] for n in range(0, 50, 2)], **options
    ),
}
WORKERS = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


def first_and_state(loader, count):
    batches = iter(loader)
    return as_lists(batches, count), as_json(loader.state_dict())


@pytest.mark.filterwarnings("ignore:.*had nothing left")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, WORKERS[0]) for kind in MAP_STYLE),
        *((kind, WORKERS[1]) for kind in ("shuffled", "with a generator", "single samples")),
        ("with a generator", WORKERS[2]),
    ],
    ids=str,
)
def test_the_rest_of_a_map_style_dataset_comes_in_the_same_order(kind, options):
    make = MAP_STYLE[kind]
    torch.manual_seed(7)
    whole = as_lists(make(**options))
    for count in (len(whole) // 2, len(whole)) if options["num_workers"] else (0, 1, 9, len(whole)):
        torch.manual_seed(7)
        first, state = first_and_state(make(**options), count)
        torch.manual_seed(8)
        other = continued(make(**options), state)
        assert as_json(other.state_dict()) == state
        assert first + as_lists(other) == whole


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_it_is_the_rest_for_another_number_of_workers():
    whole = as_lists(MAP_STYLE["with a generator"]())
    first, state = first_and_state(MAP_STYLE["with a generator"](num_workers=2), 5)
    assert first + as_lists(continued(MAP_STYLE["with a generator"](num_workers=3), state)) == whole


def permuted(**options):
    return RandomSampler(range(50), **options)


DRAWN = {
    "the loader's generator": MAP_STYLE["with a generator"],
    "a sampler's generator": lambda: DataLoader(range(50), 4, sampler=permuted(generator=seeded())),
    "a batch sampler's": lambda: DataLoader(
        range(50), batch_sampler=BatchSampler(permuted(generator=seeded()), 4, False)
    ),
    "weights": lambda: DataLoader(
        range(50), 4, sampler=WeightedRandomSampler(range(50), 50, generator=seeded())
    ),
    "torch's, beside the loader's": lambda: DataLoader(range(50), 4, sampler=permuted(), generator=seeded()),
    "torch's alone": lambda: DataLoader(range(50), 4, sampler=SubsetRandomSampler(range(40))),
}


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("count", [3, None])
def test_in_later_epochs_too_whatever_generator_draws_the_order(kind, count):
    torch.manual_seed(7)
    loader = DRAWN[kind]()
    epochs = [as_lists(loader) for _ in range(3)]
    torch.manual_seed(7)
    loader = DRAWN[kind]()
    as_lists(loader)
    first, state = first_and_state(loader, count)
    torch.manual_seed(8)
    other = continued(DRAWN[kind](), state)
    if count is None:
        assert as_lists(other) == epochs[2]
    else:
        assert first + as_lists(other) == epochs[1]
        assert kind.startswith("torch's") or as_lists(other) == epochs[2]


class Reshuffled(torch.utils.data.Sampler):
    """Its order and its position are its state. At its end, it draws another order."""

    def __init__(self):
        self.random, self.order, self.position = random.Random(0), [], 0

    def __iter__(self):
        if self.position >= len(self.order):
            self.order, self.position = self.random.sample(range(20), 20), 0
        while self.position < len(self.order):
            self.position += 1
            yield self.order[self.position - 1]

    def __len__(self):
        return 20

    def state_dict(self):
        return {"random": self.random.getstate(), "order": self.order, "position": self.position}

    def load_state_dict(self, state):
        version, words, gauss = state["random"]
        self.random.setstate((version, tuple(words), gauss))
        self.order, self.position = list(state["order"]), state["position"]


class Counted(torch.utils.data.Sampler):
    """As torchdata's ``StatefulDistributedSampler``: its state is a number of indices, at its end of all."""

    def __init__(self):
        self.given, self.next_given, self.epoch = 0, None, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.given, self.next_given = self.next_given or 0, None
        for index in random.Random(self.epoch).sample(range(20), 20)[self.given :]:
            self.given += 1
            yield index

    def __len__(self):
        return 20

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.next_given = state["given"]


@pytest.mark.parametrize("sampler", [Reshuffled, Counted])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_epoch_of_a_sampler_with_a_state_is_whole_and_comes_in_its_order(sampler, workers):
    def make():
        return DataLoader(range(20), 3, sampler=sampler(), num_workers=workers)

    loader, epochs, states = make(), [], []
    for epoch in range(3):
        states.append(as_json(loader.state_dict()))
        loader.set_epoch(epoch)
        epochs.append(as_lists(loader))
    for epoch, state in enumerate(states):
        other = continued(make(), state)
        other.set_epoch(epoch)
        assert as_lists(other) == epochs[epoch]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_of_workers_that_were_kept_goes_on_in_the_same_order(workers):
    make = MAP_STYLE["with a generator"]
    loader = make(**WORKERS[2])
    epochs = [as_lists(loader) for _ in range(3)]
    loader = make(**WORKERS[2])
    as_lists(loader)
    before = loader.state_dict()
    first, state = first_and_state(loader, 6)
    for begun, rest in ((before, epochs[1]), (state, epochs[1][6:])):
        assert as_lists(continued(make(num_workers=workers, persistent_workers=workers > 0), begun)) == rest
    assert first + rest == epochs[1]


@pytest.mark.parametrize("options", WORKERS[:2], ids=str)
def test_torchs_own_generator_is_left_as_it_is(options):
    loader = MAP_STYLE["shuffled"](**options)
    _, state = first_and_state(loader, 3)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    loader.load_state_dict(state)
    as_lists(loader)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("options", WORKERS[:2], ids=str)
def test_behind_the_last_batch_nothing_is_left_and_a_warning_says_so(options):
    loader = MAP_STYLE["in order"](**options)
    _, state = first_and_state(loader, 13)
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="had nothing left, so this iteration is empty"):
        assert as_lists(loader) == []


def test_samples_that_were_delivered_are_not_fetched_again():
    fetched = []

    class Fetched(torch.utils.data.Dataset):  # without a length
        def __getitem__(self, index):
            fetched.append(index)
            return index

    loader = DataLoader(Fetched(), batch_size=2, sampler=range(10))
    _, state = first_and_state(loader, 3)
    fetched.clear()
    loader.load_state_dict(state)
    assert as_lists(loader) == [[6, 7], [8, 9]]
    assert fetched == [6, 7, 8, 9]


def test_out_of_order_each_sample_comes_once():
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            if index % 8 == 0:
                time.sleep(0.02)
            return index

    def make():
        return DataLoader(Slow(), batch_size=2, num_workers=2, prefetch_factor=3, in_order=False)

    for count in (1, 4, 9):
        first, state = first_and_state(make(), count)
        assert sorted(itertools.chain(*first, *as_lists(continued(make(), state)))) == list(range(24))


@pytest.mark.parametrize("options", WORKERS[:2], ids=str)
def test_a_sample_that_failed_is_not_tried_again(options):
    loader = DataLoader(Failing(), batch_size=1, **options)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    with pytest.raises(KeyError):
        next(batches)
    loader.load_state_dict(loader.state_dict())
    assert as_lists(loader) == [[number] for number in range(6, 12)]


@pytest.mark.parametrize("in_order", [True, False])
def test_an_iterable_dataset_runs_again_with_the_same_random_numbers(in_order):
    def make():
        return DataLoader(Stream(), batch_size=3, num_workers=2, in_order=in_order)

    torch.manual_seed(5)
    whole = as_lists(make())
    for count in (1, 6, len(whole) - 1):
        torch.manual_seed(5)
        first, state = first_and_state(make(), count)
        torch.manual_seed(6)
        loader = continued(make(), state)
        with pytest.warns(
            UserWarning, match=rf"runs again from its start, and the {count} batches"
        ) as caught:
            got = first + [batch.tolist() for batch in loader]  # here, for the warning's line
        assert (got if in_order else sorted(got)) == (whole if in_order else sorted(whole))
        assert files_of(caught) == [__file__]


def test_a_pipeline_whose_elements_come_in_any_order_does_not_run_again():
    loader = DataLoader(
        DataPipeline(range(40)).map(float, threads=2, in_order=False).batched(4), batch_size=None
    )
    _, state = first_and_state(loader, 5)
    loader.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(ValueError, match="its elements come in any order .* Use num_workers=1"):
            iter(loader)
    assert len(as_lists(loader.dataset)) == 10


@pytest.mark.filterwarnings("ignore:the iterable dataset .* runs again")
@pytest.mark.parametrize("options", WORKERS[:2], ids=str)
def test_a_pipeline_goes_on_in_the_same_epoch(options):
    def make():
        return DataLoader(DataPipeline(range(40)).shuffle(40).batched(4), batch_size=None, **options)

    loader = make()
    epochs = [as_lists(loader) for _ in range(3)]
    loader = make()
    as_lists(loader)
    _, state = first_and_state(loader, 3)
    other = continued(make(), state)
    assert [as_lists(other), as_lists(other)] == [epochs[1][3:], epochs[2]]


class Pairs(DistributedSampler):
    """A batch sampler that counts epochs."""

    def __iter__(self):
        return iter(BatchSampler(super().__iter__(), 2, drop_last=False))


@pytest.mark.parametrize(
    ("kind", "wrapped"),
    [
        (DistributedSampler, lambda sampler: {"batch_size": 2, "sampler": sampler}),
        (DistributedSampler, lambda sampler: {"batch_sampler": BatchSampler(sampler, 2, drop_last=False)}),
        (Pairs, lambda sampler: {"batch_sampler": sampler}),
    ],
    ids=["sampler", "in a batch sampler", "batch sampler"],
)
def test_a_sampler_that_counts_epochs_is_told_which_one_it_was(kind, wrapped):
    def make():
        sampler = kind(range(40), num_replicas=2, rank=1, seed=4)
        return DataLoader(range(40), **wrapped(sampler)), sampler

    loader, sampler = make()
    sampler.set_epoch(3)
    whole = as_lists(loader)
    _, state = first_and_state(loader, 4)
    other, sampler = make()
    other.load_state_dict(state)
    assert sampler.epoch == 3
    assert as_lists(other) == whole[4:]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "this is no loader's state, which has a version"),
        (DataLoader(range(9), batch_size=2).state_dict(), r"samples of the loader changed .*it was 9, is 8"),
        (
            DataLoader(range(8), batch_size=4).state_dict(),
            r"batch_size of the loader changed .*it was 4, is 2",
        ),
        (
            DataLoader(range(8), batch_size=2, shuffle=True).state_dict(),
            r"sampler of the loader changed .*it was 'RandomSampler', is 'SequentialSampler'",
        ),
        (
            DataLoader(range(8), 2, sampler=DistributedSampler(range(8), 2, 0)).state_dict(),
            "sampler of the loader changed",
        ),
        (
            {**DataLoader(range(8), batch_size=2).state_dict(), "generators": ["?"]},
            r"generators=\['.'\], expected base64",
        ),
        (
            DataLoader(range(8), 2, sampler=SequentialSampler(range(8)), generator=seeded()).state_dict(),
            "generators=2, expected the states of 1 torch.Generators",
        ),
        (
            {**DataLoader(range(8), batch_size=2).state_dict(), "below": None},
            "below=None, expected a whole number",
        ),
    ],
)
def test_the_state_of_another_loader_is_refused(state, message):
    with pytest.raises(ValueError, match=message):
        DataLoader(range(8), batch_size=2).load_state_dict(state)


class Batches(torch.utils.data.BatchSampler):
    """A batch sampler that divides its batches among processes, as Accelerate's does."""

    def __init__(self, num_processes):
        super().__init__(range(100), 5, drop_last=False)
        self.num_processes = num_processes


@pytest.mark.parametrize(("name", "other"), [("num_replicas", 4), ("seed", 5), ("num_processes", 3)])
def test_the_state_of_another_division_among_ranks_is_refused(name, other):
    def make(num_processes=2, **changed):
        if name == "num_processes":
            return DataLoader(range(100), batch_sampler=Batches(num_processes))
        sampler = DistributedSampler(range(100), **{"num_replicas": 2, "rank": 0, "seed": 1, **changed})
        return DataLoader(range(100), batch_size=5, sampler=sampler)

    _, state = first_and_state(make(), 5)
    make(rank=1).load_state_dict(state)
    with pytest.raises(ValueError, match=f"{name} of the sampler of the loader changed .*, is {other}"):
        make(**{name: other}).load_state_dict(state)


@pytest.mark.parametrize(("name", "in_order"), [("WORLD_SIZE", True), ("RANK", False)])
def test_the_state_of_another_process_group_and_of_another_rank_that_has_no_order_is_refused(
    name, in_order, at_rank, monkeypatch
):
    at_rank(0, 2)
    loader = DataLoader(range(9), in_order=in_order)
    state = loader.state_dict()
    monkeypatch.setenv(name, "1")
    with pytest.raises(ValueError, match=f"{name.lower()} of the loader changed"):
        loader.load_state_dict(state)


class Interrupted(IterableDataset):
    """Numbers below ``count``. Each run fails before some of them, as often as ``faults`` names them."""

    def __init__(self, *faults):
        self.faults, self.count = faults, 10

    def __iter__(self):
        return Interruptions(list(self.faults), iter(range(self.count)))


class Interruptions:
    def __init__(self, faults, numbers):
        self.faults, self.numbers, self.made = faults, numbers, 0

    def __next__(self):
        if self.made in self.faults:
            self.faults.remove(self.made)
            raise OSError(f"before {self.made}")
        self.made += 1
        return next(self.numbers)


@pytest.mark.filterwarnings("ignore:the iterable dataset .* runs again")
@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterable_dataset_that_failed_between_two_batches_runs_again_to_where_it_was(workers):
    def resumed(*faults, count=10):
        dataset, got = Interrupted(*faults), []
        batches = iter(loader := DataLoader(dataset, batch_size=None, num_workers=workers))
        while len(got) < 7:
            with contextlib.suppress(OSError):
                got.append(next(batches))
        dataset.count = count
        loader.load_state_dict(loader.state_dict())
        return as_lists(loader)

    assert resumed(3, 5) == [7, 8, 9]
    with pytest.raises(OSError, match="before 3"):
        resumed(3, 3)
    with pytest.raises(MpwdsError, match="made 4 batches, 7 were delivered before") as caught:
        resumed(4, count=4)
    assert "before 4" in str(caught.value.__cause__)


@pytest.mark.parametrize("workers", [0, 2])
def test_stages_behind_a_web_loader_are_run_again(workers):
    def make():
        loader = WebLoader(range(30), batch_size=4, shuffle=True, generator=seeded(), num_workers=workers)
        return (
            loader.unbatched().shuffle(10).map(lambda number: float(number) + np.random.random()).batched(3)
        )

    loader = make()
    whole, following = as_lists(loader), as_lists(loader)
    first, state = first_and_state(make(), 4)
    loader = continued(make(), state)
    assert as_json(loader.state_dict()) == state
    with pytest.warns(UserWarning, match="running the first 4 elements of the epoch again"):
        assert first + as_lists(loader) == whole
    assert as_lists(loader) == following


def test_other_stages_of_a_web_loader_are_refused():
    state = WebLoader(range(4)).unbatched().state_dict()
    with pytest.raises(
        ValueError, match=r"stages of the loader changed .*it was \['unbatched\(\)'\], is \[\]"
    ):
        WebLoader(range(4)).load_state_dict(state)


def test_answers_that_come_out_of_order_are_counted():
    completed = TaskProgress(2)
    for task in (3, 0, 2, 5):
        completed.complete(task, worker=task % 2)
    assert (completed.below, completed.above, completed.delivered) == (1, {2, 3, 5}, 4)
    completed.complete(1)
    assert (completed.below, completed.above) == (4, {5})
    assert [task for task, _ in completed.left(range(7))] == [4, 6]


def loader_of_a_loader(kind, workers, batch_size=None):
    loader = MultiLoader(DataPipeline(range(60)).shuffle(20).batched(3), workers=workers)
    behind = {
        "as it is": lambda: loader,
        "rebatched": lambda: loader.rebatched(4, shuffle=10),
        "repeated": lambda: loader.unbatched().repeat(2).batched(5),
        "an epoch of 33": lambda: loader.unbatched().with_epoch(33),
    }
    return DataLoader(behind[kind](), batch_size=batch_size)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("kind", "workers", "batch_size"),
    [
        ("as it is", 2, None),
        ("rebatched", 2, None),
        ("repeated", 0, None),
        ("an epoch of 33", 0, None),
        ("an epoch of 33", 0, 4),
    ],
)
def test_a_loader_inside_goes_on_by_itself(kind, workers, batch_size):
    loader = loader_of_a_loader(kind, workers, batch_size)
    epochs = [as_lists(loader) for _ in range(3)]
    for count in (0, 1, len(epochs[1]) - 1):
        loader.dataset.set_epoch(1)
        first, state = first_and_state(loader, count)
        other = continued(loader_of_a_loader(kind, workers, batch_size), state)
        assert as_json(other.state_dict()) == state
        assert first + as_lists(other) == epochs[1]
        assert as_lists(other) == epochs[2]


def test_behind_an_incomplete_last_batch_of_a_loader_it_is_the_next_epoch():
    loader = loader_of_a_loader("an epoch of 33", 0, 4)
    epochs = [as_lists(loader) for _ in range(2)]
    loader.dataset.set_epoch(0)
    _, state = first_and_state(loader, 9)
    assert state["yielded"] == 0
    loader.load_state_dict(state)
    assert as_lists(loader) == epochs[1]


@pytest.mark.parametrize("stages", [lambda loader: loader, lambda loader: loader.unbatched().batched(5)])
@pytest.mark.filterwarnings("ignore:the stages after a WebLoader")
def test_a_web_loader_of_a_loader_goes_on_in_the_same_epoch(stages):
    def make():
        return stages(WebLoader(loader_of_a_loader("rebatched", 0).dataset, batch_size=None))

    loader = make()
    epochs = [as_lists(loader) for _ in range(3)]
    loader = make()
    as_lists(loader)
    first, state = first_and_state(loader, 3)
    other = continued(make(), state)
    assert first + as_lists(other) == epochs[1]
    assert as_lists(other) == epochs[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_program_may_draw_between_the_start_of_an_epoch_and_its_first_batch(workers):
    torch.manual_seed(0)
    first, other = (DataLoader(range(8), shuffle=True, num_workers=workers) for _ in range(2))
    pairs = zip(first, other, strict=True)
    seen = [int(next(pairs)[0]) for _ in range(3)]
    resumed = continued(DataLoader(range(8), shuffle=True), as_json(first.state_dict()))
    batches = iter(resumed)
    seen += [int(next(batches)) for _ in range(2)]
    again = continued(DataLoader(range(8), shuffle=True), resumed.state_dict())
    assert sorted(seen + [int(number) for number in again]) == list(range(8))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_is_that_of_the_iteration_that_delivered_last(workers):
    loader = DataLoader(range(8), shuffle=True, num_workers=workers)
    batches = iter(loader)
    seen = [int(next(batches)) for _ in range(2)]
    next(iter(loader))  # a look at a batch
    seen.append(int(next(batches)))
    state = loader.state_dict()
    resumed = continued(DataLoader(range(8), shuffle=True), state)
    assert sorted(seen + [int(number) for number in resumed]) == list(range(8))


def test_kept_workers_stay_as_many_as_they_were():
    loader = DataLoader(range(8), num_workers=2, persistent_workers=True)
    for workers in (2, 4, 1):
        loader.num_workers = workers
        assert [int(number) for number in loader] == list(range(8))
    loader.close()
