"""Columns of byte strings, for decoders on the device."""

import numpy as np
import PIL.Image
import pytest

import mpwds
from mpwds import RandomResizedCrop, default_collation_fn
from mpwds.pipeline.stages.batched import batched
from tests.pipeline.decoding.files import stored

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


@pytest.mark.parametrize("value", ["text", 7, np.zeros(3), np.zeros((2, 2), np.uint8)])
def test_what_is_not_bytes_is_an_error(value):
    with pytest.raises(TypeError, match="ragged columns are made of bytes, got .* in field 'jpg'"):
        list(mpwds.DataPipeline([{"jpg": value}]).batched(2, ragged="jpg"))


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
