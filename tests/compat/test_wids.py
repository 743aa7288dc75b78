"""Programs written for wids run with the import changed, and print the same."""

import os
import subprocess
import sys

import numpy as np
import pytest

from mpwds import wids
from mpwds.errors import ShardError
from mpwds.storage.indexed.describing import create_description, write_description
from mpwds.storage.writing.tar_writer import TarWriter
from tests.peers import PEERS

PROGRAM = """
import sys

import torch

{import_wids}


def make_pair(sample):
    image = torch.tensor(list(sample[".png"].getdata()), dtype=torch.float32)
    return image.mean(), sample[".cls"], sample["__key__"], sample["__dataset__"], sample["__shardindex__"]


dataset: wids.ShardListDataset[tuple] = wids.ShardListDataset("index.json", cache_dir="cache", keep=True)
dataset.add_transform(make_pair)
print(len(dataset), dataset[3], dataset.get_stats())
sampler = wids.ChunkedSampler(dataset, chunksize=4, seed=7, shufflefirst=True)
for epoch in range(2):
    loader = torch.utils.data.DataLoader(dataset, batch_size=3, sampler=sampler, num_workers=2)
    for means, classes, keys, _, numbers in loader:
        print(means.tolist(), classes.tolist(), keys, numbers.tolist())
print(list(wids.ShardedSampler(dataset, seed=3)))
dataset.close()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with three shards of four samples and their description ``index.json``."""
    monkeypatch.chdir(tmp_path)
    for shard in range(3):
        with TarWriter(f"x-{shard}.tar") as sink:
            for n in range(4 * shard, 4 * shard + 4):
                sink.write({"__key__": f"{n:03d}", "png": np.full((2, 2, 3), n, np.uint8), "cls": n})
    description = create_description([f"x-{shard}.tar" for shard in range(3)])
    for shard in description["shardlist"]:
        shard["dataset"] = "digits"
    write_description(description, "index.json")
    return tmp_path


def printed(import_wids):
    program = PROGRAM.replace("{import_wids}", import_wids)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, PEERS])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    if "No module named 'wids'" in done.stderr:
        pytest.skip("wids is not installed")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_program_prints_the_same(folder):
    assert printed("from mpwds import wids") == printed("import wids")


def test_a_tar_file_is_read_by_number(folder):
    samples = wids.IndexedTarSamples(path="x-1.tar", expected_size=4)
    assert (len(samples), samples.path, samples[2]["__key__"]) == (4, "x-1.tar", "006")
    assert samples[2][".cls"].read() == b"6"
    samples.close()
    digest = wids.compute_file_md5sum("x-1.tar")
    assert wids.IndexedTarSamples(path="x-1.tar", md5sum=digest)[0]["__key__"] == "004"
    with open("x-1.tar", "rb") as file:
        file.read(1000)  # the digest is that of the whole file all the same
        assert wids.compute_file_md5sum(file) == digest
    assert wids.compute_num_samples("x-1.tar") == 4


def test_another_digest_or_number_of_samples_is_an_error(folder):
    with pytest.raises(ValueError, match="x-1.tar has the MD5 digest .*, expected 00"):
        wids.IndexedTarSamples(path="x-1.tar", md5sum="00")
    with pytest.raises(ShardError, match="x-1.tar has 4 samples, its description says 5"):
        wids.IndexedTarSamples(path="x-1.tar", expected_size=5)[0]


@pytest.mark.parametrize(
    ("localname", "url", "copy"),
    [
        (wids.default_localname, "pipe:cat x-0.tar", "pipe%3Acat%20x-0.tar"),
        (wids.cache_localname, "pipe:cat ./x-0.tar", "x-0.tar"),
    ],
)
def test_a_localname_says_where_copies_lie(folder, localname, url, copy):
    dataset = wids.wids.ShardListDataset([{"url": url, "nsamples": 4}], localname=localname("copies"))
    assert dataset[1][".cls"] == 1
    assert (folder / "copies" / copy).read_bytes() == (folder / "x-0.tar").read_bytes()
