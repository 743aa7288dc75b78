"""DataLoader: the same program gives the same with torch's class and with ours."""

import collections
import copy
import itertools
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
import torch.utils.data

from mpwds.loader.dataloader.data_loader import DataLoader
from tests.loader.dataloader.data_loader_datasets import (
    Bulk,
    Counting,
    Draws,
    Numbers,
    Pair,
    Point,
    Squares,
    plain,
)

workers = pytest.mark.parametrize("num_workers", [0, 2])
pytestmark = [
    pytest.mark.usefixtures("one_fork_server"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


def same(program):
    """What ``program(class)`` returns for both classes, which must be the same."""
    expected, got = program(torch.utils.data.DataLoader), program(DataLoader)
    assert plain(got) == plain(expected)
    return got


def batches(dataset, **options):
    """A program: all batches, and what the program draws after that."""

    def program(loader_class):
        torch.manual_seed(3)
        got = list(loader_class(dataset, **options))
        return got, torch.rand(1)

    return program


def calls_torchs(samples):
    return torch.utils.data.default_collate([sample["tensor"] for sample in samples])


@workers
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 7},
        {"batch_size": 7, "drop_last": True},
        {"batch_size": 8, "shuffle": True},
        {"batch_size": None},
        {"batch_size": None, "shuffle": True},
        {"sampler": range(10, 2, -1), "batch_size": 3},
        {"batch_sampler": [[0], [3, 4, 5], (7, 8)]},
        {"batch_size": 5, "collate_fn": list},
        {"batch_size": 4, "collate_fn": calls_torchs},
    ],
    ids=lambda options: str(options).partition(" at 0x")[0],
)
def test_map_style_datasets_give_the_same_batches(num_workers, options):
    got, _ = same(batches(Squares(), num_workers=num_workers, **options))
    assert got


@workers
def test_a_generator_gives_the_same_order_and_seeds(num_workers):
    def program(loader_class):
        generator = torch.Generator().manual_seed(5)
        loader = loader_class(Draws(), 4, shuffle=True, num_workers=num_workers, generator=generator)
        torch.manual_seed(7), random.seed(7), np.random.seed(7)
        return [list(loader) for _ in range(2)], generator.get_state(), torch.rand(1), random.random()

    (first, second), *_ = same(program)
    assert plain(first) != plain(second)


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_draw_the_same_random_numbers_in_each_epoch(persistent):
    def program(loader_class):
        torch.manual_seed(1)
        loader = loader_class(Draws(), 4, num_workers=2, persistent_workers=persistent)
        return [list(loader) for _ in range(2)], torch.rand(1)

    (first, second), _ = same(program)
    assert plain(first) != plain(second)


class EagerSampler(torch.utils.data.Sampler):
    """Draws when it is asked for an iterator, not when that is iterated."""

    def __iter__(self):
        return iter(torch.randperm(10).tolist())

    def __len__(self):
        return 10


@pytest.mark.parametrize(
    "options", [{"sampler": EagerSampler()}, {"sampler": EagerSampler(), "batch_size": None}]
)
def test_a_sampler_draws_at_the_same_moments(options):
    same(batches(Numbers(), num_workers=2, **options))


def test_the_sampler_is_asked_no_earlier_than_by_torch():
    class Asked(torch.utils.data.Sampler):
        def __init__(self):
            self.asked = 0

        def __iter__(self):
            for index in itertools.count():
                self.asked += 1
                yield index % 50

    def program(loader_class):
        sampler = Asked()
        iterator = iter(loader_class(Numbers(), sampler=sampler, num_workers=2, prefetch_factor=3))
        return [(sampler.asked, next(iterator).item()) for _ in range(5)]

    assert same(program)[0] == (6, 0)


@workers
def test_datasets_fetch_batches_at_once_where_they_can(num_workers):
    got, _ = same(batches(Bulk(), batch_size=6, num_workers=num_workers))
    assert got[0][1].tolist() == [6] * 6


@workers
@pytest.mark.parametrize(
    "options", [{"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}]
)
def test_iterable_datasets_give_the_same_batches(num_workers, options):
    same(batches(Counting(7, 9), num_workers=num_workers, **options))


def test_persistent_workers_iterate_an_iterable_dataset_anew_in_each_epoch():
    def program(loader_class):
        loader = loader_class(Counting(5, 5), 2, num_workers=2, persistent_workers=True)
        iterators = [iter(loader) for _ in range(2)]
        return iterators[0] is iterators[1], list(iterators[0]), list(loader)

    assert same(program)[0] is True


@workers
def test_datapipes_are_iterated_by_torchs_own_workers(num_workers):
    pipe = pytest.importorskip("torch.utils.data.datapipes.iter")

    def program(loader_class):
        torch.manual_seed(2)
        dataset = pipe.IterableWrapper(range(20)).shuffle().sharding_filter()
        return list(loader_class(dataset, 3, shuffle=True, num_workers=num_workers)), torch.rand(1)

    same(program)
    with pytest.raises(TypeError, match="a DataLoader of DataPipes has no state"):
        DataLoader(pipe.IterableWrapper(range(20)), num_workers=num_workers).state_dict()


def test_an_iterable_dataset_that_is_longer_than_it_said_is_warned_of():
    def program(loader_class):
        loader = loader_class(Counting(3, 3, announced=4), None, num_workers=2)
        assert len(loader) == 4
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = list(loader)
        told = [str(warning.message) for warning in caught if "was reported to be 4" in str(warning.message)]
        return sorted(got), [
            (f"but {n} samples" in text, "For multiprocessing" in text)
            for n, text in zip((5, 6), told, strict=True)
        ]

    assert same(program)[1] == [(True, True)] * 2


def test_persistent_workers_may_be_a_number_as_for_torch():
    loader = DataLoader(Squares(), 7, num_workers=2, persistent_workers=2)
    assert len(list(loader)) == len(torch.utils.data.DataLoader(Squares(), 7))


def test_attributes_are_torchs():
    generator = torch.Generator()
    loader = DataLoader(Squares(), 3, True, num_workers=2, generator=generator, in_order=False, timeout=2.5)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor, loader.timeout) == (3, 2, 2, 2.5)
    assert (loader.pin_memory, loader.drop_last, loader.persistent_workers, loader.in_order) == (False,) * 4
    assert type(loader.sampler) is torch.utils.data.RandomSampler
    assert type(loader.batch_sampler) is torch.utils.data.BatchSampler
    assert loader.collate_fn is torch.utils.data.default_collate
    assert loader.generator is generator


def test_a_copy_or_a_pickle_of_a_loader_is_a_loader_without_workers():
    loader = DataLoader(Numbers(4), 2, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert [batch.tolist() for batch in other] == [[0, 1], [2, 3]]
        other.close()
    assert [batch.tolist() for batch in iterator] == [[0, 1], [2, 3]]
    loader.close()


class OfItsOwn:
    """A batch of a class that nobody knows."""

    def __init__(self, samples):
        self.tensor = torch.stack([sample["tensor"] for sample in samples])
        self.array = np.stack([sample["array"] for sample in samples])
        self.names = [sample["name"] for sample in samples]


def of_all_kinds(samples):
    """A collate function whose batch has what people put into batches."""
    array = np.stack([sample["array"] for sample in samples])
    return {
        "numpy": array,
        "torch": torch.from_numpy(array),
        "leaf": torch.ones(2, requires_grad=True),
        "half": torch.ones(3).to(torch.bfloat16),
        "scalar": np.float32(1.5),
        "none": None,
        "big": 1 << 70,
        "text": ["a", ("b", b"c")],
        "point": Point(3),
        "pair": Pair(torch.zeros(0), {1, 2}),
        "ordered": collections.OrderedDict(a=torch.ones(1)),
        "user": collections.UserDict(x=torch.full((3, 4), 2), y=array),
        "own": OfItsOwn(samples),
        "objects": np.array(["a", None], dtype=object),
        "slice": torch.arange(10)[2:6:2],
    }


@pytest.mark.parametrize("width", [3, 20_000], ids=["small", "large"])
def test_a_collate_function_may_return_anything(width):
    def program(loader_class):
        return list(loader_class(Squares(4, width), 2, num_workers=1, collate_fn=of_all_kinds))

    same(program)


def test_arrays_are_writable_and_their_holders_own():
    loader = DataLoader(Squares(8, 20_000), 2, num_workers=1)
    kept = []
    for batch in loader:
        batch["array"] += 1000
        kept.append(batch)
    assert [batch["array"][:, 0, 0].tolist() for batch in kept] == [
        [1000 + i, 1001 + i] for i in range(0, 8, 2)
    ]


def test_large_batches_of_indices_reach_the_workers():
    sampler = torch.utils.data.RandomSampler(Numbers(150_000), generator=torch.Generator().manual_seed(0))
    loader = DataLoader(Numbers(150_000), 50_000, sampler=sampler, num_workers=2, prefetch_factor=400)
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(150_000))


class AnyIndex(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return repr(index)


def test_indices_may_be_anything():
    indices = ["a", (1, 2), None, np.int64(5), np.arange(2), {"key": 6}]
    same(batches(AnyIndex(), sampler=indices, batch_size=None, num_workers=2))
    loader = DataLoader(AnyIndex(), sampler=[torch.tensor([3, 4])], batch_size=None, num_workers=1)
    assert list(loader) == ["tensor([3, 4])"]


@pytest.mark.parametrize("pin_memory_device", ["", "cuda"])
def test_pinning_without_an_accelerator_warns_as_torch_does(pin_memory_device):
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")

    def program(loader_class):
        loader = loader_class(Numbers(2), num_workers=1, pin_memory=True, pin_memory_device=pin_memory_device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = list(loader)
        return got, [str(warning.message)[:60] for warning in caught if "pin" in str(warning.message)]

    same(program)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_a_subclass_may_override_what_makes_iterators(options):
    def told(loader_class):
        class Logged(loader_class):
            def _get_iterator(self):
                begun.append(len(epochs))
                return super()._get_iterator()

        begun, epochs = [], []
        torch.manual_seed(1)
        loader = Logged(range(6), 2, shuffle=True, **options)
        for _ in range(2):
            epochs.append([batch.tolist() for batch in loader])
        return begun, epochs

    assert told(DataLoader) == told(torch.utils.data.DataLoader)


class Endless:
    """Repeats a sampler."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


@workers
def test_a_subclass_may_keep_one_endless_iterator_and_make_it_anew(num_workers):
    def epochs(loader_class):
        class Infinite(loader_class):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
                self.iterator = super().__iter__()

            def __len__(self):
                return len(self.batch_sampler.sampler)

            def __iter__(self):
                return (next(self.iterator) for _ in range(len(self)))

        torch.manual_seed(1)
        loader = Infinite(Numbers(5), 2, shuffle=True, num_workers=num_workers)
        before = [batch.tolist() for _ in range(2) for batch in loader]
        loader.iterator = loader._get_iterator()
        return before, [batch.tolist() for batch in loader]

    assert epochs(DataLoader) == epochs(torch.utils.data.DataLoader)
