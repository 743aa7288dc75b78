"""device=: batches on a device, copied beside what it computes, in the same order, nothing lost."""

import collections
import dataclasses
import itertools
import threading

import numpy as np
import pytest
import torch

import mpwds
from mpwds.loader.engine.epoch import NOT_YET
from mpwds.loader.output import DeviceIterator
from mpwds.pipeline.dataset import DataPipeline
from tests.fake_cuda import FakeAccess, loader_on, numbers
from tests.loader.dataloader.data_loader_datasets import Pair


@dataclasses.dataclass(frozen=True)
class Boxes:
    corners: torch.Tensor
    name: str


class Arrivals:
    """An iterator some of whose elements are here at once: the others only if they are waited for."""

    def __init__(self, elements, here=0):
        self.elements = collections.deque(elements)
        self.here = here
        self.closed = False

    def __iter__(self):
        return self

    def __next__(self):
        if self.closed:
            raise RuntimeError("the loader was closed")
        if not self.elements:
            raise StopIteration
        element = self.elements.popleft()
        if isinstance(element, Exception):
            raise element
        self.here = max(0, self.here - 1)
        return element

    def next_now(self):
        return next(self) if self.here else NOT_YET


def on_device(cuda, source, ahead=2):
    stream = cuda.copy_stream("cuda")
    return DeviceIterator(source, stream, ahead), stream


@pytest.mark.parametrize("nbytes", [8, 80_000])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_arrives_in_order_whenever_its_copy_runs(cuda, workers, nbytes):
    cuda.works = "when awaited"
    with loader_on(cuda, numbers(30, nbytes), workers, device="cuda") as loader:
        batches = [list(loader) for _ in range(2)]
    cuda.run()
    assert [[set(batch.tolist()) for batch in epoch] for epoch in batches] == [
        [{number} for number in range(30)]
    ] * 2


def test_copies_are_begun_for_what_is_here_and_no_further_than_asked_for(cuda):
    source = Arrivals([torch.tensor(number) for number in range(10)], here=7)
    iterator, stream = on_device(cuda, source, ahead=2)
    next(iterator)
    assert (stream.begun, iterator.ahead) == (3, 2)
    next(iterator)
    assert (stream.begun, iterator.ahead) == (4, 2)


def test_a_batch_that_is_here_does_not_wait_for_the_next(cuda):
    source = Arrivals([torch.tensor(number) for number in range(3)], here=1)
    iterator, stream = on_device(cuda, source)
    next(iterator)
    assert (stream.begun, len(source.elements)) == (1, 2)


def test_tensors_are_handed_over_when_their_batch_is_delivered_and_not_before(cuda):
    source = Arrivals([(torch.tensor(1), torch.tensor(2)), (torch.tensor(3),)], here=2)
    iterator, stream = on_device(cuda, source)
    first, second = next(iterator)
    assert stream.handed_over == [first.data_ptr(), second.data_ptr()]
    assert (first.tolist(), second.tolist()) == (-1, -1)
    cuda.run()
    assert (first.tolist(), second.tolist()) == (1, 2)


def test_an_error_comes_in_its_place_and_the_iteration_can_go_on_behind_it(cuda):
    elements = [torch.tensor(0), torch.tensor(1), ValueError("bad"), torch.tensor(2)]
    iterator, _ = on_device(cuda, Arrivals(elements, here=4), ahead=3)
    got = [next(iterator), next(iterator)]
    with pytest.raises(ValueError, match="bad"):
        next(iterator)
    got += list(iterator)
    cuda.run()
    assert [batch.tolist() for batch in got] == [0, 1, 2]
    assert next(iterator, "the end") == next(iterator, "the end") == "the end"


def test_what_is_copied_ahead_is_not_delivered_by_a_loader_that_is_closed(cuda):
    source = Arrivals([torch.tensor(number) for number in range(10)], here=10)
    iterator, _ = on_device(cuda, source)
    next(iterator)
    source.closed = True
    with pytest.raises(RuntimeError, match="the loader was closed"):
        next(iterator)
    assert iterator.ahead == 0


def test_two_threads_at_once_are_an_error(cuda):
    entered, leave = threading.Event(), threading.Event()

    class Slow(Arrivals):
        def __next__(self):
            entered.set()
            leave.wait()
            return torch.tensor(1)

    iterator, _ = on_device(cuda, Slow([]))
    thread = threading.Thread(target=next, args=(iterator,))
    thread.start()
    entered.wait()
    with pytest.raises(RuntimeError, match="another thread is in the middle of next"):
        next(iterator)
    leave.set()
    thread.join()


def test_what_is_no_tensor_stays_as_it_is(cuda):
    batch = {
        "pair": Pair(np.arange(20_000), ["a", None, (1, b"raw")]),
        "boxes": Boxes(torch.ones(3, 4), "car"),
        "other": {1, 2},
    }
    with loader_on(cuda, [batch], device=torch.device("cuda", 0)) as loader:
        (got,) = loader
    cuda.run()
    assert (type(got["pair"]), got["pair"].right, got["other"]) == (Pair, ["a", None, (1, b"raw")], {1, 2})
    assert (type(got["boxes"]), got["boxes"].name, got["boxes"].corners.sum().item()) == (Boxes, "car", 12)
    assert got["pair"].left.tolist() == list(range(20_000))
    assert (cuda.copies.device, cuda.copies.begun) == ("cuda:0", 2)


@pytest.mark.parametrize("behind", [lambda loader: loader, lambda loader: loader.map(lambda batch: batch)])
def test_blocks_are_let_go_of_behind_their_copies_and_not_behind_what_the_device_computes(cuda, behind):
    with loader_on(cuda, numbers(10), device="cuda") as loader:
        list(behind(loader))
        for _ in zip(behind(loader), range(3), strict=False):
            pass
        assert set(cuda.fences) == {"copies"}


def test_a_block_goes_back_when_its_copy_has_run_however_long_the_batch_is_kept(cuda):
    with loader_on(cuda, numbers(20), device="cuda", prefetch=1) as loader:
        batches = list(loader)
    cuda.run()
    assert [int(batch[0]) for batch in batches] == list(range(20))
    assert "pinned" not in cuda.events  # no batch was copied because too many of them are kept


def test_an_epoch_left_early_gives_its_blocks_back_and_the_next_one_is_whole(cuda):
    cuda.works = "when awaited"
    with loader_on(cuda, numbers(20), device="cuda") as loader:
        for _ in range(4):
            assert len(list(itertools.islice(loader, 2))) == 2
        batches = list(loader)
    cuda.run()
    assert [int(batch[0]) for batch in batches] == list(range(20))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_were_copied_ahead_come_again_when_their_epoch_is_continued(cuda, workers):
    with loader_on(cuda, numbers(10), workers, device="cuda") as loader:
        batches = list(itertools.islice(loader, 3))
        loader.load_state_dict(loader.state_dict())
        batches += loader
        assert loader.state_dict()["epoch"] == 1
    cuda.run()
    assert [int(batch[0]) for batch in batches] == list(range(10))


def test_an_error_of_the_dataset_comes_behind_the_batches_before_it(cuda):
    def generate():
        yield from numbers(4)
        raise ValueError("bad sample")

    got = []
    with loader_on(cuda, generate, device="cuda") as loader, pytest.raises(ValueError, match="bad sample"):
        for batch in loader:
            got.append(batch)
    cuda.run()
    assert [int(batch[-1]) for batch in got] == [0, 1, 2, 3]


def test_behind_stages_it_is_what_the_last_one_yields_that_goes_to_the_device(cuda):
    samples = DataPipeline(range(40)).batched(5)
    seen = []
    with loader_on(cuda, samples, device="cuda") as loader:
        staged = loader.map(lambda batch: seen.append(batch.tolist()) or batch * 2).rebatched(8, shuffle=20)
        batches = list(staged)
    cuda.run()
    assert (len(seen), [len(batch) for batch in batches]) == (8, [8] * 5)
    assert sorted(number for batch in batches for number in batch.tolist()) == list(range(0, 80, 2))
    assert cuda.copies.begun == 5


def test_batches_that_pass_through_a_stage_are_whole_when_their_copy_runs_late(cuda):
    cuda.works = "when awaited"
    with loader_on(cuda, numbers(30), device="cuda") as loader:
        batches = list(loader.map(lambda batch: batch[1:]))
    cuda.run()
    assert [set(batch.tolist()) for batch in batches] == [{number} for number in range(30)]


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")], ids=["cpu", "cpu:0", "a device"])
def test_the_cpu_is_no_device(device):
    with mpwds.MultiLoader(numbers(2), workers=0, device=device) as loader:
        assert [int(batch[0]) for batch in loader] == [0, 1]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"device": "gpu"},
            ValueError,
            "device must be 'cpu', 'cuda', .* got 'gpu'; for other devices put .map",
        ),
        ({"device": 0}, ValueError, "got 0"),
        ({"device": torch.device("meta")}, ValueError, "got device.type='meta'."),
        ({"device": "cuda:2"}, RuntimeError, "device='cuda:2' does not exist: torch finds 2 CUDA devices"),
        ({"device": "cuda", "output": "numpy"}, ValueError, "for tensors, and output is 'numpy'"),
    ],
)
def test_a_device_that_cannot_be_is_an_error_at_once(cuda, options, error, message):
    class Loader(mpwds.MultiLoader):
        _cuda = FakeAccess(cuda, devices=2)

    with pytest.raises(error, match=message):
        Loader([], **options)


def test_no_device_at_all_is_an_error_at_once():
    with pytest.raises(RuntimeError, match="device='cuda' does not exist: torch finds no CUDA device"):
        loader_on(None, [], device="cuda")


@pytest.mark.parametrize("even", ["drop", "pad", "wrap"])
@pytest.mark.parametrize("workers", [0, 2])
def test_rounds_of_streams_are_copied_ahead_in_their_order(cuda, workers, even):
    """Their lengths are unknown, so batches are taken ahead to find the epoch's end."""
    cuda.works = "when awaited"
    dataset = DataPipeline(numbers(31, 8)).select(lambda batch: True)
    with loader_on(cuda, dataset, 0, streams=4, even=even) as here:
        whole = [batch.tolist() for batch in here]
    with loader_on(cuda, dataset, workers, streams=4, even=even, device="cuda") as loader:
        batches = iter(loader)
        begun = [next(batches), next(batches)]
        if not workers:  # to drop, a whole round was taken before the first batch was delivered
            assert cuda.copies.begun == (4 if even == "drop" else 2)
        begun += itertools.islice(batches, 7)
        loader.load_state_dict(loader.state_dict())
        begun += loader
    cuda.run()
    assert [batch.tolist() for batch in begun] == whole
