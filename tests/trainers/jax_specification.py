"""output="jax": NumPy's memory taken over where jax can, and held as long as jax needs it.

jax starts threads, and no process that has them should be forked, as other tests do: so ``test_jax_arrays``
runs what is here in a process of its own.
"""

import collections
import gc
import time
import warnings

import jax
import numpy as np
import pytest
import torch

import mpwds
from mpwds.loader.output import with_jax_arrays
from mpwds.pipeline.dataset import DataPipeline
from mpwds.sharedmem.arena import Arena, EventFd
from mpwds.sharedmem.lease import LeasedArena

Pair = collections.namedtuple("Pair", "left right")


def address(array):
    return array.__array_interface__["data"][0]


def aligned(dtype, count=1000):
    """An array at an address that is a multiple of 64."""
    memory = np.zeros(count * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -address(memory) % 64
    array = memory[start : start + count * np.dtype(dtype).itemsize].view(dtype)
    array[:] = np.arange(count) % 100
    return array


class Block:
    """A block of a worker's arena with one array in it."""

    def __init__(self, nbytes):
        self.bell = EventFd()
        self.producer = Arena(1, self._map)
        self.number = self.producer.acquire(nbytes).number

    def _map(self, layout, descriptor):
        self.consumer = LeasedArena(layout, descriptor, self.bell)

    def array(self, shape):
        array = np.frombuffer(self.consumer.lease(self.number), np.float32, int(np.prod(shape)))
        array[:] = 1
        return array.reshape(shape)

    @property
    def is_free(self):
        return self.producer.acquire(1) is not None


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float16", "int32", "int16", "int8", "uint32", "uint16", "uint8", "bool", "complex64"],
)
def test_takes_over_the_memory_of_types_that_are_the_same_in_jax(dtype):
    array = aligned(dtype)
    converted = with_jax_arrays(array)
    assert isinstance(converted, jax.Array)
    assert (converted.dtype, converted.unsafe_buffer_pointer()) == (array.dtype, address(array))


@pytest.mark.parametrize(
    ("dtype", "narrow"),
    [("int64", "int32"), ("uint64", "uint32"), ("float64", "float32"), ("complex128", "complex64")],
)
def test_types_of_64_bits_become_those_of_32_without_a_word_unless_jax_is_told_otherwise(dtype, narrow):
    array = aligned(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted = with_jax_arrays(array)
        jax.config.update("jax_enable_x64", True)
        try:
            wide = with_jax_arrays(array)
        finally:
            jax.config.update("jax_enable_x64", False)
    assert (converted.dtype, converted.tolist()) == (narrow, array.tolist())
    assert (wide.dtype, wide.unsafe_buffer_pointer()) == (dtype, address(array))


def test_what_jax_cannot_take_over_is_copied():
    bfloat16 = aligned("uint16").view(jax.numpy.bfloat16)
    misaligned = aligned("float32")[1:]
    transposed = aligned("float32").reshape(10, 100).T
    strided = aligned("float32")[::2]
    swapped = aligned(">i4")
    read_only = aligned("float32")
    read_only.flags.writeable = False
    empty = np.zeros((3, 0), np.float32)
    for array in (bfloat16, misaligned, transposed, strided, swapped, read_only, empty):
        converted = with_jax_arrays(array)
        assert isinstance(converted, jax.Array)
        assert (converted.shape, converted.dtype) == (array.shape, array.dtype.newbyteorder("="))
        assert np.array_equal(np.asarray(converted), array)


def test_what_jax_does_not_have_stays_as_it_is():
    batch = {
        "text": np.array(["a", "b"]),
        "objects": np.array([{}, None]),
        "time": np.array(["2020"], "M8[Y]"),
    }
    scalars = (np.float32(1.5), 7, "name", None)
    converted = with_jax_arrays((batch, scalars))
    assert [type(value) for value in converted[0].values()] == [np.ndarray] * 3
    assert converted[1] == scalars
    assert type(converted[1][0]) is np.float32


def test_a_block_is_held_as_long_as_a_jax_array_of_it_is():
    block = Block(4000)
    converted = with_jax_arrays(block.array((1000,)))
    gc.collect()
    assert not block.is_free
    same = jax.jit(lambda array: array)(converted)
    assert converted.sum() == same.sum() == 1000
    del converted, same
    gc.collect()
    assert block.is_free


def test_a_block_is_held_while_a_computation_that_was_begun_needs_it():
    size = 600
    block = Block(4 * size * size)
    power = jax.jit(
        lambda matrix: jax.lax.fori_loop(0, 20, lambda _, product: matrix @ product / size, matrix)
    )
    power.lower(jax.numpy.ones((size, size))).compile()
    result = power(with_jax_arrays(block.array((size, size))))
    gc.collect()
    if block.is_free:
        assert result.is_ready()
    else:
        result.block_until_ready()
    assert float(result.min()) == pytest.approx(1.0)


def test_a_block_that_is_donated_to_a_computation_is_not_written_to_by_others():
    block = Block(4000)
    converted = with_jax_arrays(block.array((1000,)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jax tells where it cannot use what it was given
        doubled = jax.jit(lambda array: array * 2, donate_argnums=0)(converted)
    del converted
    gc.collect()
    deadline = time.monotonic() + 60
    while not block.is_free:  # jax computes in another thread
        assert time.monotonic() < deadline
    block.array((1000,))[:] = 5
    assert float(doubled.sum()) == 2000


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_delivers_jax_arrays_in_any_nesting(workers):
    batch = {"pair": Pair(np.arange(50_000, dtype=np.float32), [np.ones(3, np.int64), None]), "name": "a"}
    with mpwds.MultiLoader([batch], workers, output="jax") as loader:
        (got,) = loader
    assert (type(got["pair"]), got["name"], got["pair"].right[1]) == (Pair, "a", None)
    assert isinstance(got["pair"].left, jax.Array)
    assert (got["pair"].left[-1], got["pair"].right[0].dtype) == (49_999, np.int32)
    assert workers == 0 or got["pair"].left.unsafe_buffer_pointer() % 64 == 0


def test_batches_that_are_kept_are_not_overwritten():
    numbers = [np.full(20_000, number, np.float32) for number in range(20)]
    loader = mpwds.MultiLoader(lambda: iter(numbers), workers=1, output="jax", prefetch=1)
    with loader, pytest.warns(RuntimeWarning, match="batches of one worker are kept"):
        batches = list(loader)
    assert [set(np.asarray(batch).tolist()) for batch in batches] == [{number} for number in range(20)]


def test_tensors_of_the_dataset_arrive_as_jax_arrays_bfloat16_too():
    samples = [torch.full((3,), 2.5, dtype=torch.bfloat16)]
    with mpwds.MultiLoader(samples, workers=1, output="jax") as loader:
        (got,) = loader
    assert (got.dtype, got.tolist()) == (jax.numpy.bfloat16, [2.5] * 3)


def test_stages_get_numpy_arrays_and_what_the_last_one_yields_becomes_jaxs():
    kinds = set()
    samples = DataPipeline(range(64)).map(lambda number: np.full(10_000, number, np.float32)).batched(4)
    with mpwds.MultiLoader(samples, workers=2, output="jax") as loader:
        staged = loader.map(lambda batch: kinds.add(type(batch)) or batch).rebatched(16, shuffle=32)
        batches = list(staged)
    assert kinds == {np.ndarray}
    assert all(isinstance(batch, jax.Array) for batch in batches)
    rows = np.concatenate([np.asarray(batch) for batch in batches])
    assert sorted(rows[:, 0].tolist()) == list(range(64))
    assert (rows == rows[:, :1]).all()
