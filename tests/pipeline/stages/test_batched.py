"""Batches of a fixed number of elements, also with columns of byte strings."""

import random

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mpwds
from mpwds import RandomResizedCrop, default_collation_fn
from mpwds.pipeline.context import Context
from mpwds.pipeline.handlers import ignore_and_continue, ignore_and_stop
from mpwds.pipeline.stages.batched import Batched, batched
from mpwds.pipeline.stages.collation import Stack, padded
from mpwds.pipeline.stages.map import Map
from mpwds.pipeline.stream import Source, collect
from tests.pipeline.decoding.files import stored


@given(n=st.integers(0, 30), size=st.integers(1, 9), partial=st.booleans(), stop=st.integers(0, 31))
def test_continues_from_its_state_exactly(continues, n, size, partial, stop):
    continues(lambda: Batched(size, partial=partial).stream(Source((k, str(k)) for k in range(n))), stop)


def test_the_address_of_a_batch_is_its_parts_addresses():
    assert next(Batched(2).stream(Source("abc")))[0] == (0, 1)


def test_a_collation_function_that_draws_numbers_draws_the_same_again(continues):
    stage = Batched(3, collation_fn=lambda samples: sum(samples) + random.random())
    continues(lambda: stage.stream(Source(range(10))), 2)


def test_an_error_of_the_collation_names_the_samples():
    with pytest.raises(ValueError, match="different fields") as caught:
        collect(Batched(2), [(1, 2), (1,)])
    assert caught.value.__notes__ == ["in batched(2), on a batch of 2, from element 0 to element 1"]


def test_an_element_that_fails_costs_only_itself_and_comes_again_from_a_state():
    source = Map(lambda n: 6 // n).stream(Source([1, 2, 0, 3, 6]))
    stream = Batched(4, collation_fn=None).stream(source)
    with pytest.raises(ZeroDivisionError):
        next(stream)
    state = stream.state_dict()
    assert [batch for _, batch in stream] == [[6, 3, 2, 1]]
    stream.load_state_dict(state)
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert [batch for _, batch in stream] == [[6, 3, 2, 1]]


def test_a_batch_that_cannot_be_made_is_left_out_whole_or_ends_the_stream():
    samples = [(1,), (2,), (3,), (4, 4), (5,)]
    for handler, made in ((ignore_and_continue, [[1, 2], [5]]), (ignore_and_stop, [[1, 2]])):
        assert [numbers.tolist() for (numbers,) in collect(Batched(2, handler=handler), samples)] == made


@pytest.mark.parametrize("stage", [Batched(2), batched(max_bytes=999), Batched(2, padded())], ids=str)
def test_arrays_are_left_to_the_transport_when_it_asks_for_that(stage):
    samples = [(np.full(3, k), k) for k in range(2)]
    ((images, labels),) = collect(stage, samples, Context(deferred=True))
    assert isinstance(images, Stack)
    assert labels.tolist() == [0, 1]


@pytest.mark.parametrize("first", [Batched(3), Batched(3, padded())], ids=str)
def test_batches_of_batches_are_the_same_in_a_worker(first):
    samples = [(np.full(2, k), k) for k in range(12)]
    pipeline = mpwds.DataPipeline(samples, first, mpwds.shuffle(4), Batched(2))
    with mpwds.MultiLoader(pipeline, workers=1, output="numpy") as loader:
        found = [(images.tolist(), labels.tolist()) for images, labels in loader]
    assert found == [(images.tolist(), labels.tolist()) for images, labels in pipeline]


def test_a_batch_is_made_by_the_users_function_even_when_deferred():
    (batch,) = collect(Batched(2, collation_fn=np.stack), [np.zeros(3)] * 2, Context(deferred=True))
    assert isinstance(batch, np.ndarray)


def test_all_batches_that_failed_come_again_where_the_state_is_loaded():
    faults = ["out of memory"]

    def collate(elements):
        if faults:
            raise ValueError(*faults)
        return elements

    first, second = (Batched(2, collate).stream(Source(range(5))) for _ in range(2))
    for _ in range(2):
        with pytest.raises(ValueError, match="out of memory"):
            next(first)
    faults.clear()
    second.load_state_dict(first.state_dict())
    assert [batch for _, batch in second] == [[0, 1], [2, 3], [4]]


IMAGES = [b"a", b"", b"abc" * 1000, b"ab" * 20_000]
SAMPLES = [{"__key__": str(n), "jpg": image, "cls": n} for n, image in enumerate(IMAGES)]


def dataset(**options):
    return mpwds.DataPipeline(SAMPLES).batched(4, **options)


def test_each_byte_string_is_a_row_of_its_own_length():
    (batch,) = dataset(ragged="jpg")
    assert [row.dtype for row in batch["jpg"]] == [np.uint8] * 4
    assert [row.tobytes() for row in batch["jpg"]] == IMAGES
    assert batch["cls"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("repeats", [1, 20], ids=["within a message", "in shared memory"])
def test_workers_send_the_rows_as_aligned_views_of_one_block(repeats):
    rows = [row * repeats for row in IMAGES]
    pipeline = mpwds.DataPipeline([(row, n) for n, row in enumerate(rows)]).batched(4, ragged=[0])
    with mpwds.MultiLoader(pipeline, workers=1, start_method="fork") as loader:
        ((images, labels),) = loader
    assert [bytes(image.numpy()) for image in images] == rows
    assert labels.tolist() == [0, 1, 2, 3]
    full = [image for image in images if len(image)]
    assert {image.data_ptr() % 64 for image in full} == {0}
    ends = [image.data_ptr() + image.nbytes for image in full]
    assert all(0 <= after.data_ptr() - end < 512 for end, after in zip(ends, full[1:], strict=False))


def test_bytes_may_be_arrays_and_views_already():
    rows = [bytearray(b"ab"), memoryview(b"c"), np.frombuffer(b"def", np.uint8)]
    (batch,) = mpwds.DataPipeline([(row,) for row in rows]).batched(3, ragged=0)
    assert [row.tobytes() for row in batch[0]] == [b"ab", b"c", b"def"]


def test_rows_of_a_loader_can_be_batched_again():
    with mpwds.MultiLoader(dataset(ragged="jpg"), workers=1, start_method="fork") as loader:
        batches = list(loader.unbatched().batched(3, ragged="jpg"))
    assert [bytes(row.numpy()) for batch in batches for row in batch["jpg"]] == IMAGES


@pytest.mark.parametrize(
    "value", ["text", 7, np.zeros(3), np.zeros((2, 2), np.uint8), torch.zeros(3), torch.tensor(7)]
)
def test_what_is_not_bytes_is_an_error(value):
    with pytest.raises(TypeError, match="ragged columns are made of bytes, got .* in field 'jpg'"):
        list(mpwds.DataPipeline([{"jpg": value}]).batched(2, ragged="jpg"))


def test_an_image_that_a_worker_has_yet_to_make_is_an_array_in_that_error():
    pipeline = mpwds.DataPipeline([{"jpg": stored(PIL.Image.new("RGB", (8, 8)), "JPEG")}]).resized("jpg", 4)
    stream = pipeline.batched(2, ragged="jpg").stream(Context(deferred=True))
    with pytest.raises(TypeError, match="ragged columns are made of bytes, got ndarray in field 'jpg'"):
        next(stream)


@pytest.mark.parametrize("sample", [{"png": b""}, (b"",), b""])
def test_a_missing_field_is_an_error(sample):
    with pytest.raises(ValueError, match="ragged: no field 'jpg'; the sample has"):
        list(mpwds.DataPipeline([sample]).batched(2, ragged="jpg"))


@pytest.mark.parametrize(
    "options", [{"collation_fn": None}, {"collation_fn": mpwds.padded()}, {"max_bytes": 10}], ids=str
)
def test_it_goes_with_batches_of_a_fixed_number_and_default_collation(options):
    with pytest.raises(ValueError, match="^batched: ragged "):
        batched(ragged="jpg", **options)
    assert str(batched(4, default_collation_fn, ragged=["jpg"])) == "batched(4, ragged=('jpg',))"


def test_a_box_is_drawn_from_the_header_alone():
    image = PIL.Image.effect_noise((60, 40), 99).convert("RGB")
    header = stored(image)[:-400]  # it cannot be decoded
    top, left, height, width, flipped = RandomResizedCrop(40, scale=(0.5, 0.5), flip=1).box(header)
    assert (0 <= top <= 40 - height, 0 <= left <= 60 - width, flipped) == (True, True, 1)
    assert abs(height * width - 1200) < 60
