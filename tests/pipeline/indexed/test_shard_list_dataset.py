"""ShardListDataset: the samples of wids' own, in every loader, and what it does better."""

import gzip
import io
import json
import pickle
from fractions import Fraction
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from mpwds.errors import DecodeError
from mpwds.loader.dataloader.data_loader import DataLoader
from mpwds.pipeline.indexed.samplers import ChunkedSampler
from mpwds.pipeline.indexed.shard_list import LazyBytesIO, ShardListDataset, default_decoder
from mpwds.storage.writing.tar_writer import TarWriter


@pytest.fixture
def theirs(import_peer):
    return import_peer("wids")


@pytest.fixture
def shards(tmp_path):
    """Three shards of 4, 1 and 6 samples with a picture, a class, an array and more."""
    listed = []
    first = 0
    for name, count in (("a", 4), ("b", 1), ("c", 6)):
        with TarWriter(str(tmp_path / f"{name}.tar")) as sink:
            for n in range(first, first + count):
                sample = {"__key__": f"dir/{n:04d}", "png": np.full((3, 4, 3), n, np.uint8), "cls": n}
                sample |= {"npy": np.arange(n), "meta.json": {"n": n}, "txt": f"text {n}"}
                sink.write({**sample, "bin": bytes([n] * n)})
        listed.append({"url": str(tmp_path / f"{name}.tar"), "nsamples": count})
        first += count
    return listed


@pytest.fixture
def make(shards):
    return lambda **options: ShardListDataset(shards, **options)


@pytest.fixture
def named(shards):
    """The shards by their names in their folder."""
    return [{**shard, "url": Path(shard["url"]).name} for shard in shards]


def plain(sample):
    """A sample with the contents of its streams and images."""
    values = {}
    for name, value in sample.items():
        if isinstance(value, io.BytesIO):
            value = value.read()
        elif hasattr(value, "getpixel"):
            value = ("image", np.asarray(value).tolist())
        elif isinstance(value, np.ndarray):
            value = value.tolist()
        values[name] = value
    return values


@pytest.mark.parametrize("transformations", [[], "PIL", ["PIL"]])
def test_samples_are_those_of_wids(theirs, shards, make, transformations):
    peer = theirs.ShardListDataset(shards, localname=str, transformations=transformations)
    ours = make(transformations=transformations)
    assert len(ours) == len(peer) == 11
    for n in range(11):
        sample = ours[n]
        assert plain(sample) == plain(peer[n])
        assert list(sample) == list(peer[n])


def test_a_description_is_read_as_wids_reads_it(theirs, shards, named, tmp_path):
    path = tmp_path / "index.json"
    parts = [{"name": "rest", "shardlist": shards[1:]}]
    path.write_text(json.dumps({"wids_version": 1, "shardlist": named[:1], "datasets": parts, "name": "x"}))
    peer = theirs.ShardListDataset(str(path), localname=str)
    ours = ShardListDataset(path)
    assert (ours.dataset_name, ours.base, ours.lengths) == ("x", peer.base, peer.lengths)
    assert [plain(ours[n]) for n in range(11)] == [plain(peer[n]) for n in range(11)]


def test_an_open_description_is_read_and_has_no_folder(shards, tmp_path):
    path = tmp_path / "index.json"
    path.write_text(json.dumps({"wids_version": 1, "shardlist": shards, "name": "x"}))
    with open(path, "rb") as file:
        dataset = ShardListDataset(file)
    assert (dataset.base, len(dataset), dataset[10][".cls"]) == (None, 11, 10)


def test_a_remote_dataset_has_a_cache_only_in_a_folder_that_was_given(make, tmp_path):
    assert make(remote=True).cache_dir is None
    assert make(remote=True, cache_dir=tmp_path / "cache").cache_dir == str(tmp_path / "cache")


def test_a_dataset_of_a_description_names_its_shards_read_or_not_and_pickled(shards, named, tmp_path):
    path = tmp_path / "index.json"
    path.write_text(json.dumps({"wids_version": 1, "shardlist": named, "name": "x"}))
    dataset = ShardListDataset(path, transformations=[])
    unread = pickle.loads(pickle.dumps(dataset))
    assert dataset[10]["__shard__"] == shards[2]["url"]
    for each in (dataset, unread, pickle.loads(pickle.dumps(dataset))):
        assert each.shards == each.spec["shardlist"] == [{**shard, "name": "x"} for shard in shards]
        assert (each.cum_lengths, each[10]["__shardindex__"]) == ([4, 5, 11], 5)


def test_a_dataset_without_a_name_gets_the_hash_of_wids(theirs, shards, make):
    assert make().dataset_name == theirs.ShardListDataset(shards, localname=str).dataset_name
    assert make(dataset_name="mine").dataset_name == "mine"


def test_the_urls_of_a_list_may_be_relative_to_a_base(shards, named, tmp_path):
    dataset = ShardListDataset(named, base=str(tmp_path))
    assert (dataset.shards, dataset[10][".cls"]) == (shards, 10)


def test_images_may_become_arrays(make):
    array = make(transformations="numpy")[7][".png"]
    assert (array.shape, array.dtype, int(array[0, 0, 0])) == ((3, 4, 3), np.uint8, 7)


def test_transformations_are_applied_in_order(make):
    dataset = make(transformations=["PIL", lambda sample: sample[".cls"]]).add_transform(lambda n: n + 100)
    assert [dataset[n] for n in range(11)] == list(range(100, 111))


def test_negative_numbers_count_from_the_end_and_others_are_errors(make):
    dataset = make()
    assert (dataset[-1]["__key__"], dataset[np.int64(-11)]["__key__"]) == ("dir/0010", "dir/0000")
    for wrong in ("a", slice(3), None):
        with pytest.raises(TypeError, match="a sample's index is a whole number, got "):
            dataset[wrong]  # getting it is what is tested
    for wrong in (11, -12):
        with pytest.raises(IndexError, match=f"has 11 samples, there is no sample {wrong}"):
            dataset[wrong]
    assert len(list(dataset)) == 11


def test_the_shard_of_a_sample_can_be_had(make, shards):
    shard, number, described = make().get_shard(6)
    assert (len(shard), number, described) == (6, 1, shards[2])
    assert shard[number]["__key__"] == "dir/0006"
    assert shard[number][".cls"].read() == b"6"


def test_accesses_and_opened_shards_are_counted(make):
    dataset = make()
    for n in (0, 1, 5, 0):
        dataset[n]
    assert dataset.get_stats() == (4, 2)


@pytest.mark.parametrize("field", ["pkl", "pickle", "pth", "pt"])
def test_a_pickle_needs_permission(tmp_path, field):
    stream = io.BytesIO()
    torch.save(Fraction(1, 2), stream)
    data = stream.getvalue() if field in ("pth", "pt") else pickle.dumps(Fraction(1, 2))
    with TarWriter(str(tmp_path / "x.tar"), encoder=False) as sink:
        sink.write({"__key__": "a", field: data})
    shards = [{"url": str(tmp_path / "x.tar"), "nsamples": 1}]
    streams = ShardListDataset(shards, transformations=None)
    for read in (
        lambda: ShardListDataset(shards)[0],
        lambda: default_decoder(streams[0]),
        lambda: ShardListDataset(shards, transformations=()).add_transform("PIL")[0],
    ):
        with pytest.raises(DecodeError, match=rf'"\.{field}" of sample "a" in .*x\.tar.*allow_pickle=True'):
            read()
    assert ShardListDataset(shards, allow_pickle=True)[0][f".{field}"] == Fraction(1, 2)


def test_an_unknown_format_of_images_is_an_error(make):
    with pytest.raises(DecodeError, match='field "[.]png" of .*format must be "PIL" or "numpy", got \'pil\''):
        default_decoder(make(transformations=[])[0], format="pil")


def test_it_takes_a_type_in_annotations():
    assert get_args(ShardListDataset[dict]) == (dict,)


def test_compressed_fields_are_decompressed(tmp_path):
    with TarWriter(str(tmp_path / "x.tar"), encoder=False) as sink:
        sink.write({"__key__": "a", "json.gz": gzip.compress(b"[7]"), "bin.gz": gzip.compress(b"bytes")})
    sample = ShardListDataset([{"url": str(tmp_path / "x.tar"), "nsamples": 1}])[0]
    assert (sample[".json.gz"], sample[".bin.gz"].read()) == ([7], b"bytes")


def files_in(folder):
    return sum(path.is_file() for path in folder.iterdir())


class TestCopies:
    @pytest.fixture
    def served(self, shards, tmp_path, monkeypatch):
        """The shards by a command, which leaves a line in a file each time it runs."""
        log = tmp_path / "log"
        log.touch()
        monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "default"))
        urls = [f"pipe:echo >> {log}; cat {shard['url']}" for shard in shards]
        return [{**shard, "url": url} for shard, url in zip(shards, urls, strict=True)], log

    def test_each_shard_is_fetched_once(self, served, tmp_path):
        listed, log = served
        for _ in range(2):
            assert [ShardListDataset(listed)[n][".cls"] for n in range(11)] == list(range(11))
        assert len(log.read_text()) == files_in(tmp_path / "default") == 3

    def test_many_misses_give_one_warning(self, served):
        listed, _ = served
        dataset = ShardListDataset(listed, lru_size=1, transformations=[])
        with pytest.warns(RuntimeWarning, match="a shard was opened for 100% of the samples"):
            for n in range(102):
                dataset[n % 2 * 5]
        dataset.check_cache_misses()

    def test_a_folder_and_a_function_of_names_may_be_given(self, served, tmp_path):
        listed, _ = served
        ShardListDataset(listed, cache_dir=tmp_path / "own")[0]
        assert files_in(tmp_path / "own") == 1
        names = {shard["url"]: f"{tmp_path}/named/{n}/x.tar" for n, shard in enumerate(listed)}
        dataset = pickle.loads(pickle.dumps(ShardListDataset(listed, localname=names.get)))
        assert dataset[10][".cls"] == 10
        assert [*tmp_path.glob("named/*/*.tar")] == [tmp_path / "named/2/x.tar"]

    def test_a_small_cache_holds_a_shard_at_a_time_unless_it_is_to_keep_them(self, served, shards, tmp_path):
        sizes = [Path(shard["url"]).stat().st_size for shard in shards]
        sized = [{**shard, "filesize": size} for shard, size in zip(served[0], sizes, strict=True)]
        dataset = ShardListDataset(sized, cache_size=1, transformations=[])
        for n in (0, 5, 1, 6):
            assert int(dataset[n][".cls"].read()) == n
            assert files_in(tmp_path / "default") == 1
        for number, options in enumerate(({"keep": True}, {"options": {"keep": True}})):
            folder = tmp_path / f"kept {number}"
            keeping = ShardListDataset(sized, cache_size=1, cache_dir=folder, **options)
            assert [keeping[n][".cls"] for n in (0, 5)] == [0, 5]
            assert files_in(folder) == 2

    def test_a_cache_of_some_shards_of_unknown_size_has_no_limit(self, served):
        dataset = ShardListDataset(served[0], cache_size=1)
        assert [dataset[n][".cls"] for n in range(len(dataset))] == list(range(len(dataset)))


def key_and_class(sample):
    return sample["__key__"], sample[".cls"]


class TestLoaders:
    KEYS = tuple((f"dir/{n:04d}", n) for n in range(11))

    @pytest.fixture
    def pairs(self, make):
        return make(transformations=["PIL", key_and_class])

    @pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
    @pytest.mark.parametrize("loader_class", [torch.utils.data.DataLoader, DataLoader])
    def test_read_its_samples_in_the_order_of_a_sampler(self, pairs, start_method, loader_class):
        options = {"num_workers": 2, "multiprocessing_context": start_method}
        loader = loader_class(pairs, batch_size=None, sampler=ChunkedSampler(pairs, chunksize=4), **options)
        order = ChunkedSampler(range(11), chunksize=4)
        assert [tuple(element) for element in loader] == [self.KEYS[n] for n in order]

    def test_leave_nothing_behind(self, pairs, nothing_left):
        with DataLoader(pairs, batch_size=None, num_workers=2, multiprocessing_context="fork") as loader:
            assert sorted(map(tuple, loader)) == sorted(self.KEYS)
        pairs.close()


DATA = b"one\ntwo\nthree"

USES = [
    lambda stream: stream.read(),
    lambda stream: (stream.read(2), stream.read(3), stream.tell()),
    lambda stream: (stream.seek(-3, 2), stream.read1()),
    lambda stream: (stream.readline(), stream.readlines()),
    lambda stream: list(stream),
    lambda stream: next(stream),
    lambda stream: stream.getvalue(),
    lambda stream: bytes(stream.getbuffer()),
    lambda stream: (stream.readinto(buffer := bytearray(5)), buffer),
    lambda stream: (stream.readinto1(buffer := bytearray(5)), buffer),
    lambda stream: (stream.seek(4), stream.write(b"2"), stream.getvalue()),
    lambda stream: (stream.writelines([b"1", b"2"]), stream.getvalue()),
    lambda stream: (stream.truncate(3), stream.getvalue()),
    lambda stream: io.TextIOWrapper(stream).readlines(),
    lambda stream: (stream.readable(), stream.writable(), stream.seekable(), stream.closed),
    lambda stream: (stream.read(5), pickle.loads(pickle.dumps(stream)).read()),
]


@pytest.mark.parametrize("use", USES)
def test_a_lazy_stream_does_what_a_bytesio_does(use):
    assert use(LazyBytesIO(memoryview(DATA))) == use(io.BytesIO(DATA))


def test_nothing_is_copied_before_a_lazy_stream_is_used():
    data = bytearray(DATA)
    stream = LazyBytesIO(memoryview(data))
    data[:3] = b"ONE"
    assert stream.readline() == b"ONE\n"
    data[4:7] = b"TWO"
    assert stream.readline() == b"two\n"


def test_a_closed_lazy_stream_says_so():
    stream = LazyBytesIO(memoryview(DATA))
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.read()
