"""share: arrays, tensors and lists in memory that other processes can map."""

import gc
import mmap
import os
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mpwds
from mpwds.sharedmem.share import Mappings, map_region
from tests.open_files import descriptors

ARRAYS = {
    "numbers": np.arange(24.0).reshape(2, 3, 4),
    "Fortran order": np.arange(24.0).reshape(4, 6).T,
    "gaps": np.arange(24)[::3],
    "records": np.zeros(3, [("x", "f4"), ("y", "i8")]),
    "text": np.array(["a", "bcd"]),
    "a number": np.array(5),
    "nothing": np.zeros((0, 3)),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_stays_what_it_is_and_is_another(kind):
    array = ARRAYS[kind]
    shared = mpwds.share(array)
    assert (shared.shape, shared.dtype, shared.tolist()) == (array.shape, array.dtype, array.tolist())
    assert shared.flags.writeable
    assert shared.flags.f_contiguous or not array.flags.f_contiguous
    assert not np.shares_memory(shared, array)


def test_shared_data_hold_one_descriptor_each_until_they_are_dropped():
    gc.collect()  # what other tests left
    before = descriptors()
    shared = [mpwds.share(np.arange(5)), mpwds.share(torch.arange(5))]
    assert len(descriptors() - before) == 2
    shared.append(mpwds.share(["a", "b"]))
    assert len(descriptors() - before) == 4  # the bytes, and where each object ends
    shared.clear()
    assert descriptors() == before


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64", "bfloat16", "float8_e4m3fn"])
def test_a_tensor_stays_what_it_is_and_is_another(dtype):
    tensor = torch.arange(6).reshape(2, 3).T.to(getattr(torch, dtype))
    shared = mpwds.share(tensor)
    assert (shared.dtype, shared.tolist()) == (tensor.dtype, tensor.tolist())
    assert shared.data_ptr() != tensor.data_ptr()


def test_shared_data_are_found_beside_mapped_files_of_any_name(tmp_path):
    path = os.path.join(os.fsencode(tmp_path), b"\xff")
    with open(path, "wb+") as file:
        file.write(b"data")
        file.flush()
        with mmap.mmap(file.fileno(), 4):
            shared = mpwds.share(np.arange(5))
            assert Mappings().find(shared.ctypes.data, shared.nbytes) is not None


def test_other_processes_can_map_it():
    shared = mpwds.share(np.arange(100_000))
    mappings = Mappings()
    memory = map_region(mappings.find(shared[1000:].ctypes.data, 8000))
    assert np.array_equal(np.frombuffer(memory, np.int64), np.arange(1000, 2000))
    shared[1000] = -1
    assert np.frombuffer(memory, np.int64)[0] == -1


HIDDEN = {
    "memory of one's own": (lambda: np.zeros(1 << 20, np.uint8), 1 << 20),
    "memory without a file": (lambda: np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8), 1 << 20),
    "more than the mapping": (lambda: mpwds.share(np.zeros(4096, np.uint8)), 1 << 30),
}


@pytest.mark.parametrize(("make", "nbytes"), HIDDEN.values(), ids=HIDDEN)
def test_what_others_cannot_map_is_not_found(make, nbytes):
    array = make()
    assert Mappings().find(array.ctypes.data, nbytes) is None


@given(st.lists(st.one_of(st.text(), st.integers(), st.lists(st.floats(allow_nan=False))), max_size=20))
def test_a_list_has_the_same_elements(items):
    shared = mpwds.share(items)
    assert list(shared) == items
    assert shared[::2] == items[::2]
    assert [shared[-1 - number] for number in range(len(items))] == items[::-1]


def test_a_list_refuses_what_lists_refuse():
    shared = mpwds.share(["a", "b"])
    for index in (2, -3):
        with pytest.raises(IndexError):
            shared[index]
    with pytest.raises(TypeError):
        shared["a"]


def test_a_list_costs_what_its_elements_hold():
    shared = mpwds.share([f"image-{number:08}.jpg" for number in range(10_000)])
    assert len(pickle.dumps(shared)) < 60 * 10_000
    assert repr(shared) == "<SharedList of 10000 elements, 0.3 MB>"


def test_a_shared_list_is_dealt_to_workers_like_a_list():
    shared = mpwds.share([{"path": f"{number}.jpg", "cls": number} for number in range(10)])
    with mpwds.MultiLoader(shared, workers=2) as loader:
        assert [element["path"] for element in loader] == [f"{number}.jpg" for number in range(10)]


def test_a_shared_list_reaches_workers_without_being_copied():
    from mpwds.loader.processes import setup

    shared = mpwds.share([str(number) for number in range(100_000)])
    pickled = setup.PickledSetup(setup.WorkerSetup(shared, workers=1, blocks=4))
    with pickled.store() as stored:
        assert os.fstat(stored.fileno()).st_size < 100_000
        assert setup.read(stored.fileno()).dataset[99_999] == "99999"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        *((data, "share: ") for data in (3, "text", {"a": 1}, np.array([object()]))),
        (torch.eye(3).to_sparse(), "dense tensor"),
        (torch.ones(3, device="meta"), "dense tensor on the CPU"),
        (np.ma.array([1, 2], mask=[True, False]), "would lose its mask"),
    ],
)
def test_anything_else_is_an_error(data, words):
    with pytest.raises(TypeError, match=words):
        mpwds.share(data)
