"""Large datasets: workers map the arrays in them; they do not each have a copy."""

import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.utils.data

import mpwds
from mpwds import MultiLoader
from mpwds.loader.processes import setup
from tests.loader.processes.large_datasets import Touching, Writing

MB = 1 << 20
SIZE_MB = 16
MEASURED_MB = 64
"""Of data whose copies are seen in the memory of processes."""


def pickled_setup(dataset):
    return setup.PickledSetup(setup.WorkerSetup(dataset, workers=4, blocks=4))


def filled(size_mb=SIZE_MB):
    return np.ones(size_mb * MB, np.uint8)


def memory_mb(pids):
    """Memory of processes in MB; pages that they share count once."""
    rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(re.search(r"^Pss:\s+(\d+) kB", rollup, re.M).group(1)) for rollup in rollups) / 1024


def memory_of_an_epoch_mb(data, times):
    """Of trainer and four workers, after an epoch in which each of these has read all of the data."""
    with MultiLoader(Touching(data, times), workers=4, output="numpy") as loader:
        assert list(loader) == [data.sum(dtype=np.int64)] * 4 * times
        return memory_mb([os.getpid(), *loader.worker_pids])


@pytest.mark.slow
def test_all_workers_together_have_one_copy_and_it_stays_so_over_the_epoch():
    data = filled(MEASURED_MB)
    without = memory_of_an_epoch_mb(data[:1], 1)
    assert memory_of_an_epoch_mb(data, 1) - without < 1.5 * MEASURED_MB
    assert memory_of_an_epoch_mb(data, 5) - without < 1.5 * MEASURED_MB


@pytest.mark.slow
def test_of_data_that_is_shared_already_they_have_none():
    data = mpwds.share(filled(MEASURED_MB))
    without = memory_of_an_epoch_mb(data[:1], 1)
    assert memory_of_an_epoch_mb(data, 3) - without < 0.5 * MEASURED_MB


class Nested:
    """A dataset like those that people write."""

    def __init__(self, array):
        self.splits = {"train": [array[: MB * 8]], "val": (array[MB * 8 :], "name")}


KINDS = {
    "array": filled,
    "nested objects": lambda: Nested(filled()),
    "list of arrays": lambda: np.split(filled(), 512),
    "array of Fortran order": lambda: filled().reshape(1024, -1).T,
    "array with gaps": lambda: filled().repeat(2)[::2],
    "array that cannot be written to": lambda: np.frombuffer(filled().tobytes(), np.uint8),
    "tensor": lambda: torch.from_numpy(filled()),
    "tensor of bfloat16": lambda: torch.ones(SIZE_MB * MB // 2, dtype=torch.bfloat16),
    "half of a tensor": lambda: torch.from_numpy(filled().repeat(2))[SIZE_MB * MB :],
    "transposed tensor": lambda: torch.from_numpy(filled()).view(1024, -1).T,
    "tensor with gaps": lambda: torch.from_numpy(filled().repeat(2))[::2],
    "TensorDataset": lambda: torch.utils.data.TensorDataset(torch.from_numpy(filled())),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_arrays_of_a_dataset_are_stored_once_and_apart_from_its_pickle(kind):
    pickled = pickled_setup(KINDS[kind]())
    assert pickled.parts[0].nbytes < MB
    assert SIZE_MB * MB <= sum(part.nbytes for part in pickled.parts) < (SIZE_MB + 1) * MB


def mapped_file(folder):
    np.save(folder / "array.npy", filled())
    return np.load(folder / "array.npy", mmap_mode="r")


def file_that_was_removed(folder):
    array = mapped_file(folder)
    (folder / "array.npy").unlink()
    return array


def tensor_of_file(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it cannot be written to
        return torch.from_numpy(mapped_file(folder))


MAPPED = {
    "share": lambda folder: mpwds.share(filled()),
    "share, of a tensor": lambda folder: mpwds.share(torch.from_numpy(filled())),
    "share_memory_": lambda folder: torch.from_numpy(filled()).share_memory_(),
    "memmap": mapped_file,
    "part of a memmap": lambda folder: mapped_file(folder)[1000:-1],
    "plain array over a memmap": lambda folder: np.asarray(mapped_file(folder)),
    "memmap of a file that was removed": file_that_was_removed,
    "tensor over a memmap": tensor_of_file,
}


@pytest.mark.parametrize("kind", MAPPED)
def test_what_is_mapped_already_is_not_stored_but_mapped(kind, tmp_path):
    data = MAPPED[kind](tmp_path)
    pickled = pickled_setup(data)
    with pickled.store() as stored:
        assert os.fstat(stored.fileno()).st_size < MB
        got = setup.read(stored.fileno()).dataset
    assert type(got) is type(data)
    assert np.array_equal(np.asarray(got), np.asarray(data))
    assert is_file_or_segment(np.asarray(got).ctypes.data)


def is_file_or_segment(address):
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, device, *_ = line.split()
        start, end = (int(text, 16) for text in addresses.split("-"))
        if start <= address < end:
            return device != "00:00"
    return False


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_map_what_is_mapped_already(start_method, tmp_path):
    data = file_that_was_removed(tmp_path)
    with MultiLoader(Touching(data), workers=2, start_method=start_method, output="numpy") as loader:
        assert list(loader) == [SIZE_MB * MB] * 6


def test_a_memmap_that_cannot_be_written_to_is_none_that_can_in_workers(tmp_path):
    array = mapped_file(tmp_path)

    def look():
        yield type(array).__name__, array.flags.writeable

    with MultiLoader(look, workers=1) as loader:
        assert list(loader) == [("memmap", False)]


def test_a_mapping_that_is_gone_when_workers_start_is_an_error(tmp_path):
    pickled = pickled_setup(mapped_file(tmp_path))
    with pickled.store() as stored:
        descriptor = stored.fileno()
        (tmp_path / "array.npy").unlink()
        with pytest.raises(mpwds.SharedMemoryError, match=r"array.npy\) cannot be mapped"):
            setup.read(descriptor)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver", "fork"])
def test_what_a_worker_writes_to_shared_memory_all_see(start_method):
    data = mpwds.share(np.zeros(100_000))
    with MultiLoader(Writing(data), workers=2, start_method=start_method) as loader:
        list(loader)
    assert data[:2].tolist() == [1.0, 2.0]


def test_shared_memory_of_multiprocessing_is_shared_with_workers(program):
    started = program(
        """
        import ctypes, multiprocessing
        from multiprocessing import shared_memory
        import numpy as np
        import mpwds
        from tests.loader.processes.large_datasets import Writing

        block = shared_memory.SharedMemory(create=True, size=1_000_000)
        for memory in (block.buf, multiprocessing.RawArray(ctypes.c_uint8, 1_000_000)):
            data = np.frombuffer(memory, np.uint8)
            with mpwds.MultiLoader(Writing(data), workers=2, output="numpy") as loader:
                list(loader)
            print(data[:3].tolist())
            del data, loader, memory
        block.close()
        block.unlink()
        """
    )
    assert started.finish() == (0, "[1, 2, 0]\n[1, 2, 0]\n", "")


def test_arrays_keep_their_shape_order_content_and_flags():
    base = np.arange(600_000).reshape(300, 200, 10)
    frozen = base.copy()
    frozen.flags.writeable = False
    arrays = [base, base.T, base[::2, ::-1], base[:, :, 3], frozen, frozen[::3], base.astype(">f4")]
    arrays += [np.array(["a", "bcd"] * 50_000), np.zeros(20_000, [("x", "f4"), ("y", "i8")])]
    pickled = pickled_setup(arrays)
    with pickled.store() as stored:
        got = setup.read(stored.fileno()).dataset
    for array, other in zip(arrays, got, strict=True):
        assert (array.shape, array.dtype) == (other.shape, other.dtype)
        assert array.flags.writeable == other.flags.writeable
        assert array.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    "windows",
    [
        lambda series: np.lib.stride_tricks.sliding_window_view(series, 1000),
        lambda series: np.lib.stride_tricks.sliding_window_view(series, 1000)[::-2, ::-1],
        lambda series: np.broadcast_to(series[::3], (1000, 2000)),
        lambda series: torch.from_numpy(series).unfold(0, 1000, 1),
        lambda series: torch.from_numpy(series).to(torch.bfloat16).unfold(0, 1000, 7),
    ],
)
def test_windows_that_overlap_are_not_multiplied(windows):
    dataset = windows(np.arange(6000.0))
    pickled = pickled_setup([dataset])
    assert sum(part.nbytes for part in pickled.parts) < MB
    with pickled.store() as stored:
        (got,) = setup.read(stored.fileno()).dataset
    assert type(got) is type(dataset)
    assert got.dtype == dataset.dtype
    assert (got.shape, (got == dataset).all()) == (dataset.shape, True)
    assert isinstance(got, torch.Tensor) or got.flags.writeable == dataset.flags.writeable


def test_tensors_in_a_dataset_count_as_a_need_of_torch():
    assert "torch" in pickled_setup(Touching(torch.ones(3))).modules
    assert "torch" not in pickled_setup([np.ones(3)]).modules
