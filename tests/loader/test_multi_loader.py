"""MultiLoader: every element of any dataset, once, in a known order, as views of shared memory."""

import dataclasses
import gc
import itertools
import os
import pickle
import random
import time
import warnings

import numpy as np
import psutil
import pytest
import torch
import torch.utils.data

import mpwds
from tests.loader.dataloader.data_loader_datasets import Pair
from tests.loader.faults.processes import wait_until_idle

pytestmark = pytest.mark.usefixtures("quick_workers")


def pipeline(shards, **options):
    return mpwds.WebDataset(shards, **options).decode().to_tuple("npy", "cls").batched(4)


def labels(loader):
    return [label for _, batch in loader for label in batch.tolist()]


def numbers(count, nbytes=8):
    """A dataset: ``count`` arrays of ``nbytes`` bytes that hold their number, dealt to the workers."""

    def generate():
        for number in range(int(os.environ["WORKER"]), count, int(os.environ["NUM_WORKERS"])):
            yield np.full(nbytes // 8, number, np.int64)

    return generate


def first_values(loader):
    return [int(array[0]) for array in loader]


class Numbers(torch.utils.data.IterableDataset):
    """A dataset written for torch's DataLoader."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for number in range(info.id, 10, info.num_workers):
            yield torch.tensor([number])


class Squares(torch.utils.data.Dataset):
    """A map-style dataset."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return np.array([index * index])


@dataclasses.dataclass
class Boxes:
    corners: np.ndarray
    name: str


def test_delivers_each_sample_once_in_every_epoch_and_shuffles_them_differently(shards):
    dataset = pipeline(shards, shardshuffle=True, seed=3)
    with mpwds.MultiLoader(dataset, workers=2) as loader:
        epochs = [labels(loader) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(40))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_delivers_tensors_that_are_writable_and_collated(shards):
    with mpwds.MultiLoader(pipeline(shards), workers=1) as loader:
        images, classes = next(iter(loader))
    assert (images.dtype, images.shape, classes.tolist()) == (torch.float32, (4, 4, 3), [0, 1, 2, 3])
    images += 1
    assert images[3, 0, 0] == 4


@pytest.mark.parametrize("nbytes", [8, 100_000])
def test_order_depends_on_the_number_of_workers_alone(nbytes):
    for _ in range(2):
        with mpwds.MultiLoader(numbers(20, nbytes), workers=3) as loader:
            assert first_values(loader) == list(range(20))


def test_out_of_order_a_slow_worker_holds_nobody_back(tmp_path):
    others_are_done = tmp_path / "others are done"

    def generate():
        worker = int(os.environ["WORKER"])
        while worker == 0 and not others_are_done.exists():
            time.sleep(0.01)
        for number in range(10):
            yield np.array([worker, number])

    order = []
    with mpwds.MultiLoader(generate, workers=2, in_order=False, output="numpy", timeout=600) as loader:
        for array in loader:
            order.append(tuple(array.tolist()))
            if order[-1] == (1, 9):
                others_are_done.touch()
    assert order == [(worker, number) for worker in (1, 0) for number in range(10)]


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_without_workers_gives_what_one_worker_gives(shards, output):
    dataset = (
        mpwds.WebDataset(shards, shardshuffle=True, seed=1)
        .shuffle(20)
        .decode()
        .map(lambda sample: {**sample, "noise": np.random.random(3), "name": object.__name__})
        .batched(3)
    )
    epochs = []
    for workers in (0, 1):
        with mpwds.MultiLoader(dataset, workers=workers, output=output) as loader:
            epochs.append([batch for _ in range(2) for batch in loader])
    assert len(epochs[0]) == len(epochs[1]) == 28
    for local, remote in zip(*epochs, strict=True):
        assert list(local) == list(remote)
        for field, value in local.items():
            assert type(value) is type(remote[field])
            if hasattr(value, "tolist"):
                assert (value.dtype, value.tolist()) == (remote[field].dtype, remote[field].tolist())
            else:
                assert value == remote[field]


def test_without_workers_a_foreign_dataset_draws_the_random_numbers_of_one_worker_and_not_the_users():
    class Dataset:
        def __iter__(self):
            self.order = np.random.permutation(5).tolist()
            return self.elements()

        def elements(self):
            for number in self.order:
                yield number, random.random(), float(np.random.random()), float(torch.rand(1))

    dataset = Dataset()
    with mpwds.MultiLoader(dataset, workers=1, seed=4) as loader:
        remote = [list(loader) for _ in range(2)]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.random(), float(torch.rand(1))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    loader = mpwds.MultiLoader(dataset, workers=0, seed=4)
    assert [list(loader) for _ in range(2)] == remote
    assert (random.random(), np.random.random(), float(torch.rand(1))) == expected


def test_without_workers_arrays_are_the_users_to_write_to():
    array = np.arange(3)
    array.flags.writeable = False
    (got,) = mpwds.MultiLoader([array], workers=0, output="numpy")
    got += 1
    assert (got.tolist(), array.tolist()) == ([1, 2, 3], [0, 1, 2])


def test_workers_draw_different_random_numbers_and_the_same_in_every_run():
    def generate():
        seed = torch.utils.data.get_worker_info().seed
        yield seed, torch.rand(1).item(), np.random.random(), random.random()

    runs = []
    for _ in range(2):
        with mpwds.MultiLoader(generate, workers=2) as loader:
            runs.append([batch for _ in range(2) for batch in loader])
    assert runs[0] == runs[1]
    assert [len(set(drawn)) for drawn in zip(*runs[0], strict=True)] == [4] * 4


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Numbers(), list(range(10))),
        (lambda: Squares(), [number * number for number in range(10)]),
        (lambda: ["a", "b", "c"], ["a", "b", "c"]),
    ],
    ids=["torch's iterable", "map-style", "list"],
)
def test_takes_datasets_of_every_kind(make, expected):
    with mpwds.MultiLoader(make(), workers=3, output="numpy") as loader:
        assert list(loader) == expected


def test_takes_a_webdataset_pipeline(shards):
    webdataset = pytest.importorskip("webdataset")
    dataset = webdataset.WebDataset(shards, shardshuffle=False).decode().to_tuple("npy", "cls").batched(4)
    with mpwds.MultiLoader(dataset, workers=2) as loader:
        assert sorted(labels(loader)) == list(range(40))
        assert sorted(labels(loader)) == list(range(40))


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_every_start_method_delivers_the_same(shards, start_method):
    dataset = pipeline(shards, shardshuffle=True, seed=2)
    with mpwds.MultiLoader(dataset, workers=2, start_method=start_method) as loader:
        assert sorted(labels(loader)) == list(range(40))
        again = labels(loader)
    loader = mpwds.MultiLoader(dataset, workers=2)
    loader.set_epoch(1)
    assert labels(loader) == again
    loader.close()


def test_nested_batches_arrive_with_their_types():
    batch = {
        "pair": Pair(np.arange(3), [torch.ones(2, dtype=torch.bfloat16), None]),
        "boxes": Boxes(np.zeros((2, 4), np.uint8), "car"),
        "names": ["a", "b"],
        "scalars": (1, 2.5, True, b"raw", 1 << 80, 3j),
        "other": {1, 2},
    }
    with mpwds.MultiLoader([batch], workers=1) as loader:
        (got,) = loader
    assert isinstance(got["pair"], Pair)
    assert torch.equal(got["pair"].left, torch.arange(3))
    assert torch.equal(got["pair"].right[0], batch["pair"].right[0])
    assert (type(got["boxes"]), got["boxes"].name, got["boxes"].corners.shape) == (Boxes, "car", (2, 4))
    assert [got[key] for key in ("names", "scalars", "other")] == [
        batch[key] for key in ("names", "scalars", "other")
    ]


def test_arrays_of_all_sizes_arrive_whole_and_aligned():
    sizes = [0, 1, 100, 4095, 40_000, 5, 1_000_000, 3, 2_500_000, 0]
    arrays = [(np.arange(size, dtype=np.uint8), np.arange(size, dtype=np.float64)) for size in sizes]
    with mpwds.MultiLoader(arrays, workers=2, output="numpy") as loader:
        for (left, right), (expected_left, expected_right) in zip(loader, arrays, strict=True):
            assert np.array_equal(left, expected_left)
            assert np.array_equal(right, expected_right)
            if right.nbytes > 100_000:
                assert left.ctypes.data % 64 == right.ctypes.data % 64 == 0


def test_a_batch_is_not_touched_while_a_part_of_it_is_held():
    with mpwds.MultiLoader(numbers(50, 80_000), workers=1) as loader:
        part = None
        for number, array in enumerate(loader):
            if number == 3:
                part = array[5:7]
        del array
        gc.collect()
        assert part.tolist() == [3, 3]


def test_a_consumer_that_keeps_every_batch_gets_them_all_and_one_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with mpwds.MultiLoader(numbers(60, 200_000), workers=2) as loader:
            kept = list(loader)
            again = list(loader)
    assert [int(array[-1]) for array in kept] == [int(array[-1]) for array in again] == list(range(60))
    assert [str(warning.message)[:45] for warning in caught] == [
        "more than 3 batches of one worker are kept, s"
    ]
    assert caught[0].filename == __file__


def test_arrays_are_not_pickled(monkeypatch):
    batch = {"image": np.zeros(100_000), "label": np.zeros(3), "key": ["a"], "pair": (1, None)}
    with mpwds.MultiLoader([batch], workers=1) as loader:
        iterator = iter(loader)
        monkeypatch.setattr(pickle, "loads", None)
        assert next(iterator)["image"].shape == (100_000,)


def test_a_consumer_that_keeps_single_samples_gets_no_warning(recwarn):
    samples = [{"__key__": str(n), "image": np.full((100, 100, 3), n, np.uint16)} for n in range(20)]
    with mpwds.MultiLoader(samples, workers=1) as loader:
        assert [int(sample["image"][9, 9, 2]) for sample in list(loader)] == list(range(20))
    assert not list(recwarn)


def test_batches_outlive_their_loader():
    with mpwds.MultiLoader(numbers(4, 100_000), workers=2) as loader:
        kept = list(loader)
    del loader
    gc.collect()
    assert [int(array.sum()) for array in kept] == [0, 12_500, 25_000, 37_500]


@pytest.mark.parametrize("nbytes", [8, 200_000])
def test_a_stalled_consumer_makes_workers_wait_and_memory_stay(nbytes):
    def memory(loader):
        return sum(psutil.Process(pid).memory_full_info().uss for pid in loader.worker_pids)

    with mpwds.MultiLoader(numbers(10_000_000, nbytes), workers=2) as loader:
        iterator = iter(loader)
        for _ in range(100):
            next(iterator)
        for pid in loader.worker_pids:
            wait_until_idle(pid)
        before = memory(loader)
        time.sleep(0.5)
        assert memory(loader) - before < 1_000_000


def test_workers_stay_between_epochs_unless_told_otherwise():
    for persistent in (True, False):
        with mpwds.MultiLoader(numbers(4), workers=2, persistent=persistent) as loader:
            pids = []
            for _ in range(2):
                iterator = iter(loader)
                next(iterator)
                pids.append(loader.worker_pids)
                list(iterator)
            assert (pids[0] == pids[1]) is persistent
            assert bool(loader.worker_pids) is persistent


@pytest.mark.parametrize("nbytes", [8, 100_000])
def test_an_epoch_left_early_does_not_show_in_the_next(nbytes):
    with mpwds.MultiLoader(numbers(500, nbytes), workers=2) as loader:
        for stop in (0, 1, 7):
            received = first_values(itertools.islice(loader, stop + 1))
            assert received == list(range(stop + 1))
        assert first_values(loader) == list(range(500))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_without_a_name_delivers_everything(workers):
    received = []
    for number in mpwds.MultiLoader([1, 2, 3], workers=workers):
        received.append(number)
        gc.collect()
    assert received == [1, 2, 3]


def test_a_dataset_may_close_its_own_loader():
    def generate():
        yield 1
        loader.close()
        yield 2

    loader = mpwds.MultiLoader(generate, workers=0)
    iterator = iter(loader)
    assert next(iterator) == 1
    next(iterator)
    with pytest.raises(RuntimeError, match="the loader was closed"):
        next(iterator)


def test_without_persistence_workers_end_with_an_epoch_left_early():
    with mpwds.MultiLoader(numbers(1000), workers=2, persistent=False) as loader:
        for _ in loader:
            break
        assert loader.worker_pids == []


def test_an_iteration_that_failed_is_over_and_does_not_disturb_the_next():
    with mpwds.MultiLoader(numbers(100_000), workers=2, persistent=False) as loader:
        failed = iter(loader)
        next(failed)
        psutil.Process(loader.worker_pids[0]).kill()
        with pytest.raises(mpwds.WorkerDied):
            list(failed)
        running = iter(loader)
        first = next(running)
        assert list(failed) == []
        assert first_values([first, *itertools.islice(running, 9)]) == list(range(10))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_new_iteration_ends_the_one_before(workers):
    with mpwds.MultiLoader(range(10), workers=workers) as loader:
        first = iter(loader)
        next(first)
        assert list(loader) == list(range(10))
        with pytest.raises(RuntimeError, match="another iteration of this loader has begun"):
            next(first)
        next(second := iter(loader))
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(RuntimeError, match="a state was loaded"):
            next(second)


def test_an_exhausted_iteration_stays_exhausted():
    with mpwds.MultiLoader(numbers(1), workers=1) as loader:
        iterator = iter(loader)
        assert len(list(iterator)) == 1
        assert list(iterator) == []


def test_an_empty_dataset_and_idle_workers_end_at_once():
    with mpwds.MultiLoader([], workers=2) as loader:
        assert list(loader) == []
    with mpwds.MultiLoader([1], workers=3) as loader:
        assert list(loader) == [1]


def test_a_closed_loader_ends_its_iterations_and_starts_anew_when_iterated():
    loader = mpwds.MultiLoader(numbers(10), workers=1)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    with pytest.raises(RuntimeError, match="the loader was closed"):
        next(iterator)
    assert first_values(loader) == list(range(10))
    loader.close()


def test_a_dataset_may_be_its_own_iterator():
    class Dataset:
        def __iter__(self):
            self.number = 0
            return self

        def __next__(self):
            self.number += 1
            if self.number > 3:
                raise StopIteration
            return self.number

    with mpwds.MultiLoader(Dataset(), workers=1) as loader:
        assert [*loader, *loader] == [1, 2, 3, 1, 2, 3]


def test_a_copy_is_a_loader_with_the_same_options():
    with mpwds.MultiLoader([1, 2], workers=1, prefetch=5, output="numpy", even="wrap") as loader:
        list(loader)
        twin = pickle.loads(pickle.dumps(loader))
        assert pickle.loads(pickle.dumps(loader.batched(2))).loader.even == "wrap"
    assert (twin.workers, twin.prefetch, twin.output, twin.even) == (1, 5, "numpy", "wrap")
    assert twin.worker_pids == []
    assert list(twin) == [1, 2]
    twin.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers must be at least 0, got -1"),
        ({"workers": 1.5}, "workers must be an integer, got 1.5"),
        ({"prefetch": 0}, "prefetch must be at least 1, got 0"),
        ({"prefetch": 5000}, "prefetch must be at most 254, got 5000"),
        ({"start_method": "thread"}, "start_method must be .* 'spawn', 'fork', 'forkserver', got 'thread'"),
        ({"output": "tf"}, "output must be one of 'torch', 'numpy', 'jax', got 'tf'"),
        ({"timeout": 0}, "timeout must be above 0 seconds or None, got 0"),
        ({"timeout": "3"}, "timeout must be above 0 seconds or None, got '3'"),
        ({"timeout": True}, "timeout must be above 0 seconds or None, got True"),
        ({"workers": True}, "workers must be an integer, got True"),
        ({"seed": "x"}, "seed must be an integer, got 'x'"),
        ({"in_order": "no"}, "in_order must be True or False, got 'no'"),
        ({"persistent": None}, "persistent must be True or False, got None"),
        ({"pin_memory": "cuda"}, "pin_memory must be True or False, got 'cuda'"),
        ({"progress": 2}, "progress must be True or False, got 2"),
        ({"pin_memory": True, "output": "numpy"}, "pin_memory is for tensors, and output is 'numpy'"),
        ({"even": "stretch"}, "even must be one of 'drop', 'pad', 'wrap', got 'stretch'"),
        ({"on_worker_death": "ignore"}, "on_worker_death must be one of 'raise', 'restart', got 'ignore'"),
    ],
)
def test_an_argument_out_of_range_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        mpwds.MultiLoader([], **options)


def test_numbers_may_be_numpys():
    switches = {"in_order": np.False_, "persistent": 1}
    loader = mpwds.MultiLoader(
        [1, 2, 3], workers=np.int64(1), prefetch=np.uint8(2), seed=np.int32(7), output="numpy", **switches
    )
    assert loader.in_order is False
    loader.set_epoch(np.int64(3))
    with loader:
        assert list(loader) == [1, 2, 3]
    assert (loader.stats().epoch, pickle.loads(pickle.dumps(loader)).prefetch) == (3, 2)
    with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
        loader.set_epoch(-1)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (3, "a loader's dataset must be an iterable, a map-style .*, got 3$"),
        ("x-{0..3}.tar", r"write mpwds\.WebDataset\('x-\{0\.\.3\}\.tar'\)"),
        ((number for number in range(3)), "a generator can be iterated only once, by one process"),
    ],
    ids=["number", "text", "generator"],
)
def test_what_cannot_be_iterated_by_several_processes_is_an_error(dataset, message):
    with pytest.raises(TypeError, match=message):
        mpwds.MultiLoader(dataset)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_function_that_returns_no_iterator_is_named_with_what_it_returned(workers):
    def forgetful():
        map(str, range(3))

    expected = "is a function, .*forgetful, which must return an iterator .*, but it returned None"
    with mpwds.MultiLoader(forgetful, workers=workers) as loader, pytest.raises(TypeError, match=expected):
        list(loader)


@pytest.mark.parametrize("make", [mpwds.MultiLoader, mpwds.DataLoader, torch.utils.data.DataLoader])
def test_workers_do_not_each_deliver_all_of_a_loader(make):
    loader = make(list(range(4)))
    with pytest.raises(TypeError, match="is a loader, and each worker would deliver all of it"):
        mpwds.MultiLoader(loader, workers=2)


def test_a_map_style_class_in_place_of_its_object_is_an_error():
    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index**2

    expected = "must return an iterator .*, but it returned <.*Squares object"
    with mpwds.MultiLoader(Squares, workers=0) as loader, pytest.raises(TypeError, match=expected):
        next(iter(loader))


def test_a_class_of_a_function_keeps_what_the_program_has_assigned_since():
    class Box:
        opened = 0

    def boxes():
        yield Box()
        yield Box()

    with mpwds.MultiLoader(boxes, workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        Box.opened = 5
        assert next(iterator).opened == 5


def test_workers_start_again_if_the_rank_has_changed(monkeypatch):
    with mpwds.MultiLoader(mpwds.DataPipeline(range(8)), workers=2) as loader:
        assert sorted(loader) == list(range(8))
        monkeypatch.setenv("WORLD_SIZE", "2")
        got = []
        for rank in range(2):
            monkeypatch.setenv("RANK", str(rank))
            got.append(sorted(loader))
    assert len(got[0]) == len(got[1]) == 4
    assert sorted(got[0] + got[1]) == list(range(8))
