"""Shards for the tests of indexed datasets."""

import pytest

import mpwds


@pytest.fixture
def tar_shards(tmp_path):
    """The pattern of three tar shards of 4, 0 and 7 samples: ``cls`` counts through them."""
    number = 0
    for shard, samples in enumerate((4, 0, 7)):
        with mpwds.TarWriter(str(tmp_path / f"x-{shard}.tar")) as sink:
            for _ in range(samples):
                sink.write({"__key__": f"k{number}", "cls": number, "txt": "abc"[shard]})
                number += 1
    return str(tmp_path / "x-{0..2}.tar")
