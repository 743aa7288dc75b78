"""Fields that are small in the shard and huge in memory: an error that names them, and no memory taken."""

import gzip
import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from mpwds.errors import DecodeError
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.decoding.decoders import Decoder
from mpwds.pipeline.decoding.fields import gunzip, unzip

MIB = 1 << 20
ZEROS = bytes(16 * MIB)


def npz(**arrays):
    np.savez_compressed(stream := io.BytesIO(), **arrays)
    return stream.getvalue()


def understated(archive):
    """A zip archive that claims to hold little."""
    for size in (len(ZEROS), len(ZEROS) + 128):
        archive = archive.replace(size.to_bytes(4, "little"), (1000).to_bytes(4, "little"))
    return archive


BOMBS = {
    "txt.gz": gzip.compress(ZEROS),
    "bin.gz": gzip.compress(bytes(MIB)) * 16,
    "npz": npz(a=np.zeros(len(ZEROS), "u1")),
    "arrays.npz": npz(**{f"a{n}": np.zeros(MIB, "u1") for n in range(16)}),
}


@pytest.mark.parametrize("field", BOMBS)
def test_a_field_that_decompresses_to_more_than_the_limit_is_an_error(field):
    sample = {"__key__": "a/7", "__url__": "x.tar", field: BOMBS[field]}
    assert len(BOMBS[field]) < MIB
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError) as caught:
            list(DataPipeline([sample]).decode(max_decompressed_bytes=2 * MIB))
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
    start = (
        f'field "{field}" of sample "a/7" in x.tar cannot be decoded: it decompresses to more than the limit'
    )
    assert str(caught.value).startswith(start)
    assert "decode(max_decompressed_bytes=...)" in str(caught.value)


@pytest.mark.parametrize("field", BOMBS)
def test_a_limit_that_is_just_enough_lets_it_through(field):
    limit = len(ZEROS) + (0 if field.endswith("gz") else 128 * 16)
    assert field.removesuffix(".gz") in "".join(Decoder(max_decompressed_bytes=limit)({field: BOMBS[field]}))


def test_an_archive_that_understates_its_size_takes_no_more_than_it_states():
    data = understated(BOMBS["npz"])
    tracemalloc.start()
    try:
        with pytest.raises(zipfile.BadZipFile):
            unzip(data, 2 * MIB)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_a_zip_archive_with_another_compression_is_an_error():
    with zipfile.ZipFile(stream := io.BytesIO(), "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", ZEROS)
    with pytest.raises(DecodeError, match="neither stored nor deflated"):
        unzip(stream.getvalue())


def test_the_members_of_gzip_data_are_joined_and_padding_is_dropped():
    assert gunzip(gzip.compress(b"abc") + gzip.compress(b"def") + bytes(5)) == b"abcdef"
    assert gunzip(memoryview(gzip.compress(b""))) == gunzip(b"") == b""


def test_a_damaged_array_of_an_archive_is_an_error():
    data = bytearray(npz(a=np.arange(1000)))
    data[200] ^= 255
    with pytest.raises(DecodeError):
        Decoder()({"npz": bytes(data)})


@pytest.mark.slow
def test_a_megabyte_that_becomes_a_gigabyte_is_refused_by_default():
    bomb = gzip.compress(ZEROS) * 64
    assert len(bomb) < 2 * MIB
    with pytest.raises(DecodeError, match="decompresses to more than the limit of 536870912 bytes"):
        Decoder()({"txt.gz": bomb})
