"""Rebatching: rows of batches, each once, in batches of another size and in random order."""

import gc
import itertools
import pickle
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.errors import SharedMemoryError
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.rebatch.rebatched import Rebatched
from mpwds.pipeline.stream import Source, collect
from tests.pipeline.conftest import plain

DTYPES = ["bool", "uint8", "int16", ">i4", "float16", "float32", "int64", "complex128", "M8[s]", "U3", "O"]
TORCH_DTYPES = [torch.bool, torch.uint8, torch.bfloat16, torch.float32, torch.int64, torch.complex64]


def batches_of(sizes, make):
    """Batches of the rows 0, 1, 2, ... by ``make(numbers)``."""
    ends = list(itertools.accumulate(sizes))
    return [make(np.arange(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


class Place(str):
    """An address whose life can be watched."""


class Endless:
    """A source of batches without end, which sees those of its addresses that are kept."""

    def __init__(self):
        self.count = 0
        self.kept = weakref.WeakSet()

    def __next__(self):
        self.count += 1
        place = Place(self.count)
        self.kept.add(place)
        return place, np.arange(2)

    def state_dict(self):
        return {}


def test_addresses_of_batches_whose_rows_are_gone_are_forgotten():
    source = Endless()
    stream = Rebatched(2, shuffle=20).stream(source)
    most = 0
    for _ in range(4000):
        next(stream)
        most = max(most, len(source.kept))
    assert most < 1500


def test_addresses_of_batches_whose_rows_are_held_are_kept():
    for steps in range(1000, 1030, 3):  # at some of them addresses are forgotten
        stream = Rebatched(2, shuffle=20).stream(Endless())
        for _ in range(steps):
            next(stream)
        assert sum(map(len, stream.state_dict()["unused"])) == 20


def test_addresses_of_rows_of_a_batch_that_is_not_complete_are_kept():
    class Failing(Endless):
        def __next__(self):
            if self.count == 2000:
                raise ValueError("bad")
            return super().__next__()

    stream = Rebatched(5000, shuffle=20).stream(Failing())
    with pytest.raises(ValueError, match="bad"):
        next(stream)
    assert sum(map(len, stream.state_dict()["unused"])) == 2 * 2000


def numbers_in(batches):
    return [number for batch in batches for number in batch.tolist()]


@st.composite
def columns(draw):
    """A function from the rows' numbers to a column, whose rows tell their numbers up to 100."""
    shape = draw(st.sampled_from([(), (3,), (2, 2), (0,), (70,)]))
    dtype = draw(st.sampled_from(DTYPES + TORCH_DTYPES))

    def make(numbers):
        repeated = np.broadcast_to(numbers.reshape(-1, *[1] * len(shape)), (len(numbers), *shape))
        if isinstance(dtype, torch.dtype):
            return torch.from_numpy(repeated % 100).to(dtype)
        return (repeated % 100).astype(dtype)

    return make


sizes = st.lists(st.integers(0, 20), max_size=12)


@settings(max_examples=60)
@given(
    sizes,
    st.integers(1, 30),
    st.integers(0, 60),
    st.integers(1, 120),
    st.booleans(),
    st.lists(columns(), max_size=3),
    st.integers(0, 3),
)
def test_every_row_comes_once_and_whole(sizes, batchsize, shuffle, initial, drop_last, makers, epoch):
    def make(numbers):
        return {
            "number": numbers,
            "nested": {
                "names": [str(number) for number in numbers],
                **{number: make(numbers) for number, make in enumerate(makers)},
            },
        }

    given_batches = batches_of(sizes, make)
    stage = Rebatched(batchsize, shuffle, drop_last, initial)
    batches = collect(stage, given_batches, Context(epoch=epoch))

    rows = sum(sizes)
    counts = [len(batch["number"]) for batch in batches]
    whole, rest = divmod(rows, batchsize)
    assert counts == [batchsize] * whole + [rest] * (rest > 0 and not drop_last)
    numbers = numbers_in(batch["number"] for batch in batches)
    assert len(set(numbers)) == len(numbers) == sum(counts)
    assert set(numbers) <= set(range(rows))
    if shuffle < 2:
        assert numbers == list(range(len(numbers)))
    for batch in batches:
        assert batch["nested"].pop("names") == [str(number) for number in batch["number"]]
        for number, maker in enumerate(makers):
            assert plain(batch["nested"][number]) == plain(maker(batch["number"]))


def test_a_shuffle_mixes_over_its_pool_and_not_much_further():
    given_batches = batches_of([50] * 100, np.asarray)
    numbers = np.array(numbers_in(Rebatched(64, shuffle=500)(given_batches)))
    delays = np.argsort(numbers) - np.arange(5000) + 500
    assert 400 < delays[1000:4000].mean() < 600
    assert delays[1000:4000].std() > 300
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.99


def test_a_pool_that_holds_everything_gives_every_order():
    given_batches = batches_of([2, 1], np.asarray)
    orders = {
        tuple(numbers_in(Rebatched(3, shuffle=3, initial=3, seed=seed)(given_batches))) for seed in range(100)
    }
    assert orders == set(itertools.permutations(range(3)))


def test_the_order_depends_on_seed_and_epoch_and_nothing_else():
    def order(seed=None, **context):
        stage = Rebatched(8, shuffle=30, seed=seed)
        return numbers_in(collect(stage, batches_of([10] * 10, np.asarray), Context(**context)))

    assert order() == order() == order(seed=0)
    assert order(epoch=1) == order(epoch=1) != order()
    assert order(seed=5) != order()
    assert order(seed=5) == order(seed=5, epoch=0)
    assert order(rank=1, world_size=2) != order()


@pytest.mark.parametrize(
    ("options", "taken_batches", "rows"),
    [({"shuffle": 500, "initial": 50}, 1, 50 + 20), ({"shuffle": 100, "initial": 10}, 30, 100 + 30 * 10)],
    ids=["the first batch comes when the pool holds initial rows", "a pool grows by half of what comes"],
)
def test_no_more_rows_are_taken_than_the_pool_needs(options, taken_batches, rows):
    taken = []

    def source():
        for batch in batches_of([10] * 100, np.asarray):
            taken.append(len(batch))
            yield batch

    batches = Rebatched(10, **options)(source())
    for _ in range(taken_batches):
        next(batches)
    assert sum(taken) == rows


def test_a_batch_that_was_given_is_not_kept():
    given_before = []

    def source():
        for number in range(50):
            assert [reference() for reference in given_before] == [None] * number
            batch = np.full((10, 1000), number), [np.zeros(100) for _ in range(10)]
            given_before.append(weakref.ref(batch[0]))
            yield batch
            del batch

    assert sum(len(names) for _, names in Rebatched(16, shuffle=40)(source())) == 500


LARGE = 1 << 18


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("shape", [(), (LARGE,)])
def test_a_consumer_may_keep_all_batches(convert, shape):
    def make(numbers):
        return convert(np.broadcast_to(numbers.reshape(-1, *[1] * len(shape)), (len(numbers), *shape)).copy())

    kept = list(Rebatched(3, shuffle=5)(batches_of([4] * 5, make)))
    assert sorted({int(row.reshape(-1)[0]) for batch in kept for row in batch}) == list(range(20))
    assert all((row == row.reshape(-1)[0]).all() for batch in kept for row in batch)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_the_memory_of_a_large_batch_is_used_again_when_no_part_of_it_is_left(convert):
    batch = convert(np.ones((4, LARGE), np.int64))
    batches = Rebatched(3, shuffle=5)(itertools.repeat(batch, 40))

    def address(array):
        return array.__array_interface__["data"][0] if convert is np.asarray else array.data_ptr()

    kept = next(batches)[1:, 5:]
    addresses = {address(batch) for batch in batches}
    assert len(addresses) <= 3
    assert not addresses & {address(kept) - 8 * (LARGE + 5)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
def test_a_batch_without_rows_adds_none(dtype):
    # An empty tensor of NumPy's has a stride of 0.
    batches = [torch.from_numpy(np.ones(rows)).to(dtype) for rows in (0, 3)]
    (batch,) = collect(Rebatched(3), batches)
    assert torch.equal(batch, batches[1])


def test_batches_are_writable_and_their_columns_aligned():
    given_batches = [(np.zeros((5, 3), "uint8"), np.zeros((5, LARGE)))]
    for first, second in Rebatched(3)(given_batches):
        first[:], second[:] = 1, 1
        assert second.__array_interface__["data"][0] % 64 == 0


class Row:
    """A row of which one can tell whether it is still there."""


def test_nothing_is_kept_when_the_last_batch_was_given():
    rows = [Row() for _ in range(20)]
    references = [weakref.ref(row) for row in rows]
    stream = Rebatched(8, shuffle=15, drop_last=True).stream(Source([{"row": rows}]))
    del rows
    batches = [batch["row"] for _, batch in stream]
    assert [len(batch) for batch in batches] == [8, 8]
    assert next(stream, None) is next(stream, None) is None
    stream._source = stream._next = None
    del batches
    gc.collect()
    assert {reference() for reference in references} == {None}


def test_batches_without_rows_are_passed_over():
    given_batches = [(np.zeros((0, 3)), []), (np.ones((2, 3)), ["a", "b"]), (np.zeros((0, 3)), [])]
    ((rows, names),) = Rebatched(5)(given_batches)
    assert (rows.tolist(), names) == ([[1, 1, 1]] * 2, ["a", "b"])
    assert list(Rebatched(5, shuffle=10)([(np.zeros((0, 3)), [])])) == []


@pytest.mark.parametrize("zeros", [np.zeros, torch.zeros])
def test_rows_may_be_of_no_bytes(zeros):
    batches = list(Rebatched(3, shuffle=4)([(zeros((5, 0)), zeros((5, 2)))]))
    assert [(tuple(empty.shape), tuple(full.shape)) for empty, full in batches] == [
        ((3, 0), (3, 2)),
        ((2, 0), (2, 2)),
    ]
    assert all(empty.dtype == full.dtype for empty, full in batches)


def test_arrays_that_are_not_contiguous_and_tensors_with_gradients_are_taken():
    array = np.arange(24).reshape(4, 6)[:, ::2]
    tensor = torch.arange(24.0).reshape(6, 4).T.requires_grad_()
    ((first, second),) = Rebatched(4)([(array, tensor)])
    assert first.tolist() == array.tolist()
    assert second.tolist() == tensor.tolist()


def test_a_batch_of_another_form_is_an_error_that_names_it_and_costs_its_rows_alone():
    given_batches = [np.zeros((4, 3)), np.zeros((4, 2)), np.ones((4, 3))]
    stream = Rebatched(5).stream(Source(given_batches))
    with pytest.raises(ValueError, match=r"batch has rows of float64 \[2\]") as caught:
        next(stream)
    assert caught.value.__notes__ == ["in rebatched(5), on element 1"]
    assert [batch[:, 0].tolist() for _, batch in stream] == [[0, 0, 0, 0, 1], [1, 1, 1]]


def test_what_is_no_batch_is_an_error():
    with pytest.raises(TypeError, match=r"batch\['cls'\] is an int") as caught:
        list(Rebatched(5)([{"x": np.zeros(3), "cls": 7}]))
    assert caught.type is TypeError
    with pytest.raises(ValueError, match="a batch has 16,777,216 rows, it may have 16,777,215"):
        list(Rebatched(5)([np.zeros(1 << 24, np.uint8)]))


def test_an_error_of_the_source_costs_no_rows():
    class Failing(Source):
        def __next__(self):
            address, element = super().__next__()
            if isinstance(element, Exception):
                raise element
            return address, element

    source = Failing([np.arange(4), ValueError("bad"), np.arange(4, 8)])
    stream = Rebatched(6, shuffle=3).stream(source)
    with pytest.raises(ValueError, match="bad"):
        next(stream)
    assert sorted(numbers_in(batch for _, batch in stream)) == list(range(8))


def test_a_pool_for_which_there_is_no_memory_is_an_error():
    batches = [np.zeros((4, 1000))]
    with pytest.raises(
        SharedMemoryError, match=r"a pool of 1,000,000,000,000 rows, 8,008,000,000.0 MB, .* left"
    ):
        list(Rebatched(4, shuffle=10**12)(batches))


@pytest.fixture
def pinned(monkeypatch):
    """The sizes for which pinned memory was asked, in a process that seems to have used CUDA."""
    asked = []
    empty = torch.empty

    def recording(*size, pin_memory=False, **options):
        if pin_memory:
            asked.append(size)
        return empty(*size, **options)

    monkeypatch.setattr(torch, "empty", recording)
    for name in ("is_initialized", "is_available"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return asked


def test_tensors_lie_in_pinned_memory_where_cuda_is_used(pinned):
    given_batches = [(torch.arange(4), torch.ones(4, 2))]
    batches = list(Rebatched(3)(given_batches))
    assert pinned == [(64 + 64,)] * 2
    assert [(numbers.tolist(), ones.sum().item()) for numbers, ones in batches] == [([0, 1, 2], 6), ([3], 2)]


def test_arrays_do_not_and_neither_do_tensors_where_it_is_declined_or_cuda_not_used(pinned, monkeypatch):
    list(Rebatched(3)([np.arange(4)]))
    list(Rebatched(3, pin_memory=False)([torch.arange(4)]))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    list(Rebatched(3)([torch.arange(4)]))
    assert pinned == []
    list(Rebatched(3, pin_memory=True)([torch.arange(4)]))
    assert pinned == [(64,)] * 2


def test_without_cuda_tensors_are_not_pinned_and_the_user_hears_of_it():
    with pytest.warns(RuntimeWarning, match="pin_memory=True has no effect"):
        batches = list(Rebatched(3, pin_memory=True)([torch.arange(4)]))
    assert [batch.tolist() for batch in batches] == [[0, 1, 2], [3]]


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_rows_of_a_list_keep_no_batch_alive_however_deep_its_arrays_lie(convert):
    wholes = []

    def batches():
        for _ in range(20):
            whole = np.zeros((4, 3))
            wholes.append(weakref.ref(whole))
            yield {"image": np.zeros(4), "target": [{"boxes": [convert(row)]} for row in whole]}

    stage = iter(Rebatched(5, shuffle=60)(batches()))
    next(stage)
    gc.collect()
    assert sum(whole() is not None for whole in wholes) <= 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_batches_are_not_overwritten_while_a_copy_to_the_device_runs():
    torch.zeros(1, device="cuda")
    given_batches = batches_of([64] * 100, lambda numbers: torch.from_numpy(numbers).repeat(4096, 1).T)
    on_device = []
    for batch in Rebatched(32)(given_batches):
        assert batch.is_pinned()
        on_device.append(batch.to("cuda", non_blocking=True))
        del batch
    assert torch.cat(on_device)[:, -1].tolist() == list(range(6400))


def test_it_prints_as_it_was_written_and_can_be_pickled():
    stage = Rebatched(8, shuffle=30, drop_last=True, seed=3)
    assert str(stage) == "rebatched(8, shuffle=30, drop_last=True, seed=3)"
    assert pickle.loads(pickle.dumps(stage)) == stage


def test_a_pipeline_with_it_is_restored_by_replay():
    dataset = DataPipeline(batches_of([5] * 8, np.asarray)).compose(Rebatched(8, shuffle=20))
    stream = dataset.stream()
    seen = [next(stream)[1].tolist() for _ in range(2)]
    again = dataset.stream()
    with pytest.warns(UserWarning, match=r"rebatched\(8, shuffle=20\) gives elements without addresses"):
        again.load_state_dict(stream.state_dict())
    assert seen + [batch.tolist() for _, batch in again] == [batch.tolist() for _, batch in dataset.stream()]
