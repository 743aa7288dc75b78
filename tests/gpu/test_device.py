"""Pinned memory and delivery to a device, on a real one."""

import gc
import itertools
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
import torch.utils.data

import mpwds
from mpwds.pipeline.dataset import DataPipeline
from mpwds.sharedmem import cuda as pinning
from mpwds.sharedmem.cuda import PinningRefused, Runtime

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(300),
]

LONG = 2_000_000_000
"""Cycles: about a second of work for a device."""


def numbers(count, nbytes=8_000_000):
    """A dataset: ``count`` batches whose elements are all their number."""

    def generate():
        for number in range(count):
            yield np.full(nbytes // 8, number, np.int64)

    return generate


def contents(batches):
    """The one value of each batch; a batch of several gives all of them."""
    return [batch.unique().tolist() for batch in batches]


def expected(count):
    return [[number] for number in range(count)]


@pytest.mark.parametrize("nbytes", [800, 8_000_000])
def test_batches_are_pinned_those_that_are_hoarded_too(nbytes):
    with mpwds.MultiLoader(numbers(8, nbytes), workers=1, pin_memory=True) as loader:
        if nbytes > 1_000_000:
            with pytest.warns(RuntimeWarning, match="batches of one worker are kept"):
                batches = list(loader)
        else:
            batches = list(loader)
    assert all(batch.is_pinned() and batch[3:].is_pinned() for batch in batches)
    assert contents(batches) == expected(8)


def test_memory_is_unregistered_when_loader_and_batches_are_gone():
    with mpwds.MultiLoader(numbers(3), workers=1, pin_memory=True) as loader:
        batch = next(iter(loader))
    assert batch.is_pinned()
    address = batch.data_ptr()
    del batch
    torch.cuda.synchronize()
    gc.collect()
    pinning._unpin_late()
    assert not pinning._still_read
    assert not any(
        mapping._address <= address < mapping._address + len(mapping) for mapping in pinning._pinned
    )


def test_a_copy_that_runs_late_finds_the_batch_as_it_was():
    on_device = []
    with mpwds.MultiLoader(numbers(30), workers=1, prefetch=1, pin_memory=True) as loader:
        for number, batch in enumerate(loader):
            if number % 10 == 0:
                torch.cuda._sleep(LONG)
            on_device.append(batch.to("cuda", non_blocking=True))
            del batch
    assert contents(on_device) == expected(30)


def test_a_copy_on_another_stream_is_waited_for_where_the_batch_is_dropped_there():
    stream = torch.cuda.Stream()
    on_device = []
    with mpwds.MultiLoader(numbers(20), workers=1, prefetch=1, pin_memory=True) as loader:
        for number, batch in enumerate(loader):
            with torch.cuda.stream(stream):
                if number % 10 == 0:
                    torch.cuda._sleep(LONG)
                on_device.append(batch.to("cuda", non_blocking=True))
                del batch
    torch.cuda.synchronize()
    assert contents(on_device) == expected(20)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("in_order", [True, False])
def test_batches_arrive_on_the_device_each_once(workers, in_order):
    samples = DataPipeline(range(60)).map(lambda number: np.full(100_000, number)).batched(1)
    with mpwds.MultiLoader(samples, workers, device="cuda", in_order=in_order) as loader:
        for _ in range(2):
            batches = list(loader)
            assert {batch.device.type for batch in batches} == {"cuda"}
            values = [value for (value,) in contents(batches)]
            assert sorted(values) == list(range(60))


def test_order_is_that_of_the_loader_without_a_device():
    with mpwds.MultiLoader(numbers(20, 80_000), workers=3) as loader:
        plain = contents(loader)
    with mpwds.MultiLoader(numbers(20, 80_000), workers=3, device="cuda") as loader:
        assert contents(loader) == plain


def test_memory_of_a_dropped_batch_is_not_given_to_the_next_copy_while_it_is_computed_with():
    sums = []
    with mpwds.MultiLoader(numbers(40), workers=2, device="cuda") as loader:
        for number, batch in enumerate(loader):
            if number % 10 == 0:
                torch.cuda._sleep(LONG)
            sums.append(batch.sum())
            del batch
    assert [int(total) // 1_000_000 for total in sums] == [number // 2 for number in range(80)]


def test_a_consumer_may_use_a_stream_of_its_own():
    stream = torch.cuda.Stream()
    sums = []
    with mpwds.MultiLoader(numbers(10), workers=1, device="cuda") as loader, torch.cuda.stream(stream):
        for batch in loader:
            sums.append(batch.sum())
            del batch
    stream.synchronize()
    assert [int(total) // 1_000_000 for total in sums] == list(range(10))


def test_the_next_batch_is_copied_while_the_device_computes():
    with mpwds.MultiLoader(numbers(1000), workers=1, device="cuda") as loader:
        iterator = iter(loader)
        next(iterator)
        torch.cuda._sleep(10 * LONG)
        while iterator.ahead == 0:  # the next one may not have been here yet
            next(iterator)
        iterator._sent[0].mark.synchronize()
        assert not torch.cuda.current_stream().query()
        torch.cuda.synchronize()


def test_an_epoch_left_early_loses_nothing_of_the_next():
    with mpwds.MultiLoader(numbers(12), workers=1, device="cuda") as loader:
        for _ in range(5):
            assert contents(itertools.islice(loader, 2)) == expected(2)
        assert contents(loader) == expected(12)


def test_rebatched_batches_go_to_the_device():
    samples = DataPipeline(range(1000)).map(lambda number: torch.full((50,), number)).batched(30)
    with mpwds.MultiLoader(samples, workers=2, device="cuda").rebatched(64, shuffle=200) as loader:
        rows = torch.cat(list(loader))
    assert rows.device.type == "cuda"
    assert sorted(rows[:, 0].tolist()) == list(range(1000))
    assert bool((rows == rows[:, :1]).all())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_batches_arrive_on_the_device_that_is_named():
    with mpwds.MultiLoader(numbers(5), workers=1, device="cuda:1") as loader:
        batches = list(loader)
    assert {batch.device.index for batch in batches} == {1}
    assert contents(batches) == expected(5)


def test_memory_that_is_refused_leaves_no_error_for_the_next_kernel():
    cuda = Runtime()
    memory = torch.zeros(1 << 20, dtype=torch.uint8)
    address = memory.data_ptr() // 4096 * 4096 + 4096
    cuda.register(address, 4096)
    try:
        with pytest.raises(PinningRefused, match="cudaHostRegister"):
            cuda.register(address, 4096)
        assert torch.ones(10, device="cuda").sum() == 10
    finally:
        cuda.unregister(address)
    cuda.unregister(address)  # there is nothing any more: CUDA reports an error, which is taken back
    assert torch.ones(10, device="cuda").sum() == 10


def test_fences_tell_when_the_work_before_them_is_done():
    cuda = Runtime()
    torch.cuda.synchronize()
    assert cuda.fence().done()
    torch.cuda._sleep(LONG)
    fence = cuda.fence()
    assert not fence.done()
    fence.wait()
    assert fence.done()


def test_a_batch_that_is_dropped_while_a_graph_is_captured_does_no_harm():
    static = torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with mpwds.MultiLoader(numbers(10), workers=1, pin_memory=True) as loader:
        iterator = iter(loader)
        batch = next(iterator)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            static += 1
            del batch
        assert contents(iterator) == expected(10)[1:]
    graph.replay()
    torch.cuda.synchronize()
    assert static[0] == 1


class Samples(torch.utils.data.Dataset):
    """A map-style dataset."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((3, 200, 200), float(index)), index


def test_a_data_loader_delivers_what_torchs_does_pinned():
    batches = []
    for loader_class in (torch.utils.data.DataLoader, mpwds.DataLoader):
        loader = loader_class(Samples(), batch_size=8, num_workers=2, pin_memory=True)
        batches.append([])
        for images, labels in loader:
            assert images.is_pinned()
            assert labels.is_pinned()
            batches[-1].append((images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)))
            del images, labels
    for theirs, ours in zip(*batches, strict=True):
        assert all(torch.equal(left, right) for left, right in zip(theirs, ours, strict=True))


def test_the_interpreter_exits_quietly_with_pinned_batches_in_hand():
    program = """
        import numpy as np
        import mpwds
        loader = mpwds.MultiLoader([np.ones(1_000_000)] * 4, workers=1, pin_memory=True)
        iterator = iter(loader)
        batch = next(iterator)
        copy = batch.to("cuda", non_blocking=True)
        print(batch.is_pinned())
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "True\n", "")
