"""Programs for mosaicml-streaming, with ``from mpwds import streaming`` in place of ``import streaming``."""

import subprocess
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import mpwds
from mpwds import streaming
from mpwds.pipeline.context import Context
from tests.open_files import open_files

PEER = Path(__file__).parents[1] / "storage" / "mds" / "peer.py"


def write(folder, numbers, **options):
    with streaming.MDSWriter(columns={"x": "int"}, out=str(folder), size_limit=300, **options) as sink:
        for number in numbers:
            sink.write({"x": number})
    return str(folder)


def xs(samples):
    return [sample["x"] for sample in samples]


def xs_of(batches):
    return [x for batch in batches for x in batch["x"].tolist()]


PROGRAM = """
import sys
import numpy as np
from torch.utils.data import DataLoader
StreamingDataset = __import__(f"{streaming.__name__}.base.dataset", fromlist=["x"]).StreamingDataset
encodings = __import__(f"{streaming.__name__}.base.format.mds.encodings", fromlist=["x"])
get_list_arg = __import__(f"{streaming.__name__}.base.util", fromlist=["x"]).get_list_arg


class Halves(encodings.Encoding):
    def encode(self, obj):
        return np.asarray(obj, np.float16).tobytes()

    def decode(self, data):
        return np.frombuffer(data, np.float16)


encodings._encodings["halves"] = Halves


class Squares(streaming.StreamingDataset):
    def __init__(self, local, remote=None, shuffle=False, batch_size=None):
        super().__init__(local=local, remote=remote, shuffle=shuffle, batch_size=batch_size, shuffle_seed=17,
                         predownload=100, num_canonical_nodes=1, shuffle_algo="py1s", cache_limit="1gb")

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return sample["x"] ** 2, sample["text"]


if __name__ == "__main__":
    folder = sys.argv[1]
    columns = {"x": "int", "text": "str"}
    with streaming.MDSWriter(columns=columns, out=(folder + "/a", folder + "/remote"), compression="gz",
                             hashes=["sha1"], size_limit="1kb") as out:
        for number in range(203):
            out.write({"x": number, "text": str(number)})
    dataset = Squares(folder + "/local", folder + "/remote", shuffle=True, batch_size=10)
    print(len(dataset), dataset.size, dataset.num_shards, dataset.batch_size, dataset[3], dataset[202])
    for epoch in range(2):
        loader = DataLoader(dataset, batch_size=10, num_workers=2)
        batches = list(loader)
        print(sorted(len(texts) for _, texts in batches), sorted(int(x) for xs, _ in batches for x in xs))
    loader = streaming.StreamingDataLoader(dataset, batch_size=10, num_workers=2)
    print(sum(len(texts) for _, texts in loader))
    for part in range(2):
        with streaming.MDSWriter(columns={"x": "int"}, out=f"{folder}/parts/{part}", size_limit=300) as out:
            for number in range(20 * part, 50 * part + 20):
                out.write({"x": number})
    streaming.base.util.merge_index(folder + "/parts")
    streams = [streaming.Stream(local=f"{folder}/parts/{part}") for part in range(2)]
    mixed = streaming.StreamingDataset(streams=streams, batch_size=4)
    for name in ("samples_per_shard", "samples_per_stream", "shards_per_stream", "stream_per_shard",
                 "shard_offset_per_stream", "epoch_size", "num_shards", "num_samples", "num_streams"):
        print(name, getattr(mixed, name))
    for *weights, size in (({"proportion": 3}, {"proportion": 1.5}, "0.1k"), ({}, {}, 33), ({}, {}, None),
                           ({"proportion": 0.3}, {"proportion": 0.3}, None),
                           ({"repeat": 1.55}, {"choose": 7}, None), ({}, {"repeat": 2}, None)):
        streams = [streaming.Stream(local=f"{folder}/parts/{part}", **weights[part]) for part in range(2)]
        weighted = StreamingDataset(streams=streams, epoch_size=size, batch_size=4, download_retry=5)
        print(weighted.epoch_size, len(weighted))
        for stream in weighted.streams:
            print(f"{stream.proportion:.9f} {stream.repeat:.9f} {stream.choose}", stream.download_retry,
                  int(stream.download_timeout), stream.validate_hash, stream.keep_zip, repr(stream.split))
    (alone,) = StreamingDataset(local=folder + "/parts/0", batch_size=4).streams
    print(alone.local == folder + "/parts/0", alone.remote, alone.choose, alone.proportion, alone.repeat)
    print(len(mixed.shards), [tuple(map(int, mixed.spanner[number])) for number in range(mixed.size)])
    mixed.prepare_shard(1)
    whole = streaming.StreamingDataset(local=folder + "/parts", batch_size=4, num_canonical_nodes=1)
    loader = streaming.StreamingDataLoader(whole, batch_size=4, num_workers=3)
    print([batch["x"].tolist() for batch in loader])
    for name in ("shuffle_seed", "shuffle_algo", "sampling_method", "sampling_granularity", "replication",
                 "batching_method", "allow_unsafe_types", "num_canonical_nodes", "partition_algo", "length",
                 "cache_limit", "shuffle_block_size", "sample_offset_per_shard", "sample_offset_per_stream"):
        fresh = StreamingDataset(local=folder + "/parts", num_canonical_nodes=2, cache_limit="1mb",
                                 shuffle_block_size=9)
        print(name, getattr(fresh, name))
    with streaming.MDSWriter(columns={"x": "int", "h": "halves"}, out=folder + "/own", compression="gz",
                             hashes=["md5"], size_limit="1kb") as out:
        for number in range(6):
            out.write({"x": number, "h": [number, number + 1]})
        for name in ("columns", "column_names", "column_encodings", "column_sizes", "compression", "hashes",
                     "size_limit", "keep_local"):
            print(name, getattr(out, name))
    print([sample["h"] for sample in StreamingDataset(local=folder + "/own", batch_size=1)])
    loader = DataLoader(StreamingDataset(local=folder + "/own", batch_size=2), batch_size=2, num_workers=1,
                        multiprocessing_context="spawn")
    print([batch["h"].tolist() for batch in loader])
    print(encodings.mds_decode("halves", encodings.mds_encode("halves", [1, 2])))
    print([encodings.get_mds_encoded_size(name) for name in ("halves", "int")], get_list_arg("a,b"))
    local = streaming.LocalDataset(folder + "/parts")
    print([tuple(map(int, local.spanner[number])) for number in range(local.size)])
"""


@pytest.mark.slow
def test_a_program_prints_the_same_with_either_import(tmp_path):
    theirs = (
        "from peer import import_streaming\nstreaming = import_streaming(('torchvision', 'transformers'))\n"
    )
    printed = []
    for name, first_lines in (("theirs", theirs), ("ours", "from mpwds import streaming\n")):
        (tmp_path / name).mkdir()
        program = tmp_path / f"{name}.py"
        program.write_text(f"import sys\nsys.path.append({str(PEER.parent)!r})\n{first_lines}{PROGRAM}")
        run = [sys.executable, "-W", "ignore", str(program), str(tmp_path / name)]
        done = subprocess.run(run, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1]


@pytest.mark.parametrize("algorithm", ["naive", "py1s", "py2s", "py1b", "py1br", "py1e"])
def test_shuffled_epochs_have_each_sample_once_in_the_order_of_their_seed(tmp_path, algorithm):
    folder = write(tmp_path, range(100))
    options = {"shuffle": True, "shuffle_algo": algorithm, "shuffle_block_size": 30}
    ds = streaming.StreamingDataset(local=folder, **options)
    first, second = xs(ds), xs(ds)
    assert sorted(first) == sorted(second) == list(range(100))
    same, other = (streaming.StreamingDataset(local=folder, shuffle_seed=n, **options) for n in (9176, 2))
    assert xs(same) == first
    assert len({tuple(order) for order in (first, second, range(100), xs(other))}) == 4


def test_samples_are_asked_for_in_all_ways(tmp_path):
    ds = streaming.StreamingDataset(local=write(tmp_path, range(9)))
    assert ds[np.int64(2)] == ds[-7] == {"x": 2}
    assert xs(ds[1:8:3]) == [1, 4, 7]
    assert xs(ds[::-1]) == list(range(9))[::-1]
    assert [xs(part) for part in ds[[[0, 1], [2]]]] == [[0, 1], [2]]
    assert xs(ds[np.array([3, 3])]) == [3, 3]
    for wrong in (9, -10):
        with pytest.raises(IndexError, match=f"no sample {wrong} among 9"):
            ds[wrong]  # getting it is what is tested
    with pytest.raises(TypeError, match="'a'"):
        ds["a"]  # getting it is what is tested


@pytest.mark.parametrize(
    ("method", "options"), [("__getitem__", {}), ("get_item", {}), ("get_item", {"retry": 1})]
)
def test_a_subclass_changes_the_samples_of_epochs_too(tmp_path, method, options):
    def changed(self, index, **given):
        assert given in ({}, options)
        return getattr(streaming.StreamingDataset, method)(self, index, **options)["x"] * 10

    kind = type("Tens", (streaming.StreamingDataset,), {method: changed})
    ds = kind(local=write(tmp_path, range(5)))
    assert list(ds) == [0, 10, 20, 30, 40]
    assert ds[3] == getattr(ds, method)(3, **options) == 30


def test_workers_know_a_programs_own_encodings(tmp_path):
    from mpwds.streaming.base.format.mds.encodings import Encoding, _encodings

    class Reversed(Encoding):
        def encode(self, obj):
            return obj[::-1].encode()

        def decode(self, data):
            return data.decode()[::-1]

    _encodings["reversed"] = Reversed
    try:
        with streaming.MDSWriter(columns={"text": "reversed"}, out=str(tmp_path)) as sink:
            sink.write({"text": "abc"})
        ds = streaming.StreamingDataset(local=str(tmp_path))
        with mpwds.MultiLoader(ds, workers=1) as loader:
            assert list(loader) == [{"text": "abc"}]
    finally:
        del _encodings["reversed"]
    assert b"cba" in (tmp_path / "shard.00000.mds").read_bytes()


def test_an_encoding_that_is_put_in_place_of_another_is_used():
    from mpwds.streaming.base.format.mds import encodings

    for size in (1, 2):
        kind = type(
            "Zeros", (encodings.Encoding,), {"encode": lambda self, value: bytes(self.size), "decode": len}
        )
        kind.size = size
        encodings._encodings["zeros"] = kind
        assert encodings.mds_encode("zeros", None) == bytes(size)
        assert encodings.get_mds_encoded_size("zeros") == size
    del encodings._encodings["zeros"]


def test_streams_are_mixed(tmp_path):
    one, other = write(tmp_path / "one", range(10)), write(tmp_path / "other", range(100, 120))
    streams = [streaming.Stream(local=one, repeat=2), streaming.Stream(local=other, choose=5)]
    ds = streaming.StreamingDataset(streams=streams, shuffle=True)
    counts = Counter(xs(ds))
    assert {number: counts[number] for number in range(10)} == dict.fromkeys(range(10), 2)
    assert sum(counts.values()) == ds.epoch_size == len(ds) == 25
    assert (ds.size, ds[10], ds[29]) == (30, {"x": 100}, {"x": 119})
    assert (ds.samples_per_stream.tolist(), ds.sample_offset_per_stream.tolist()) == ([10, 20], [0, 10])
    starts = ds.sample_offset_per_shard.tolist()
    assert starts == [sum(ds.samples_per_shard[:shard]) for shard in range(ds.num_shards)]
    shard, number = ds.spanner[12]
    assert (starts[shard] + number, ds.stream_per_shard[shard], ds.length) == (12, 1, 25)


def test_proportions_make_epochs_of_a_size(tmp_path):
    one, other = write(tmp_path / "one", range(10)), write(tmp_path / "other", range(100, 120))
    streams = [streaming.Stream(local=one, proportion=3), streaming.Stream(local=other, proportion=1)]
    ds = streaming.StreamingDataset(streams=streams, epoch_size="0.1k")
    assert Counter(x >= 100 for x in xs(ds)) == {False: 75, True: 25}


def test_the_dataset_says_what_its_streams_weigh_and_leaves_the_programs_own_alone(tmp_path):
    streams = [streaming.Stream(remote=write(tmp_path / str(n), range(10))) for n in range(3)]
    for _ in range(2):  # the same streams
        ds = streaming.StreamingDataset(streams=streams, epoch_size=10)
        assert [stream.local for stream in ds.streams] == [str(tmp_path / str(n)) for n in range(3)]
        assert sorted(stream.choose for stream in ds.streams) == [3, 3, 4]
        assert Counter(xs(ds)).total() == 10
    assert [(stream.choose, stream.local) for stream in streams] == [(None, None)] * 3


def test_streams_with_one_local_folder_are_an_error(tmp_path):
    """Their indexes are the same here: only their remotes differ."""
    remotes = [write(tmp_path / name, range(first, first + 22)) for name, first in (("a", 0), ("b", 100))]
    streams = [streaming.Stream(remote=each, local=str(tmp_path / "local")) for each in remotes]
    with pytest.raises(FileExistsError, match=r"/local holds another dataset than .*/b, or an earlier"):
        streaming.StreamingDataset(streams=streams)


def test_stages_behind_a_mix_get_its_samples_alone(tmp_path):
    streams = [streaming.Stream(local=write(tmp_path, range(50)), choose=7)]
    ds = streaming.StreamingDataset(streams=streams, shuffle=True)
    epochs = [[number for batch in ds.map(lambda sample: sample["x"]).batched(2) for number in batch]]
    epochs += [xs(ds.shuffle(10))]
    assert [len(set(epoch)) for epoch in epochs] == [7, 7]


def test_what_a_stream_does_not_say_the_dataset_says(tmp_path):
    write(tmp_path / "data" / "train", range(10), hashes=["md5"])
    stream = streaming.Stream(remote=str(tmp_path / "data"), local=str(tmp_path / "local"))
    ds = streaming.StreamingDataset(streams=[stream], split="train", validate_hash="md5")
    assert xs(ds) == list(range(10))
    with pytest.raises(ValueError, match="no sha1 hash"):
        streaming.StreamingDataset(streams=[stream], split="train", validate_hash="sha1")


def test_streams_share_the_limits_of_open_files_and_of_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("mpwds.storage.mds.fetched_shards.most_open_files", lambda: 4)
    shards, nbytes = 12, 20_000
    streams = []
    for name in "ab":
        remote, local = (str(tmp_path / where / name) for where in ("remote", "local"))
        streams.append(streaming.Stream(remote=remote, local=local))
        with streaming.MDSWriter(columns={"x": "bytes"}, out=remote, size_limit=nbytes + 1000) as sink:
            for number in range(shards):
                sink.write({"x": bytes([number]) * nbytes})
    ds = streaming.StreamingDataset(streams=streams, cache_limit=10 * nbytes)
    assert [x[0] for x in xs(ds)] == 2 * [*range(shards)]
    assert len(open_files(tmp_path)) == 4
    kept = sum(path.stat().st_size for path in (tmp_path / "local").rglob("*.*"))
    assert 6 * nbytes < kept <= 10 * nbytes
    ds = streaming.StreamingDataset(streams=streams, cache_limit=2 * nbytes)  # less than a shard for each
    assert [x[0] for x in xs(ds)] == 2 * [*range(shards)]


def test_the_index_takes_no_room_of_the_shards(tmp_path):
    remote = write(tmp_path / "remote", range(500))
    limit = 3 * max(path.stat().st_size for path in (tmp_path / "remote").glob("*.mds"))
    assert (tmp_path / "remote" / "index.json").stat().st_size > limit
    for _ in range(2):
        ds = streaming.StreamingDataset(remote=remote, local=str(tmp_path / "local"), cache_limit=limit)
        assert xs(ds) == [*range(500)]


def test_replicated_ranks_read_the_same(tmp_path):
    ds = streaming.StreamingDataset(local=write(tmp_path, range(20)), replication=2)
    parts = [xs(s for _, s in ds.stream(Context(rank=rank, world_size=4))) for rank in range(4)]
    assert parts == [[*range(10)], [*range(10)], [*range(10, 20)], [*range(10, 20)]]


@pytest.mark.parametrize("kind", [streaming.StreamingDataset, type("Own", (streaming.StreamingDataset,), {})])
def test_replicated_ranks_ask_for_samples_by_number(tmp_path, kind):
    ds = kind(local=write(tmp_path, range(20)), replication=2)
    assert ds[3] == ds.get_item(3) == {"x": 3}


@pytest.mark.parametrize("ranks", [1, 3])
def test_replication_must_divide_the_ranks_so_that_each_has_samples(tmp_path, ranks):
    ds = streaming.StreamingDataset(local=write(tmp_path, range(20)), replication=2)
    with pytest.raises(ValueError, match=f"replication=2 does not divide the number of ranks, {ranks}"):
        ds.stream(Context(world_size=ranks))


def shuffled(folder, **options):
    return streaming.StreamingDataset(local=folder, shuffle=True, batch_size=4, **options)


@pytest.mark.parametrize("kind", [streaming.StreamingDataset, type("Own", (streaming.StreamingDataset,), {})])
@pytest.mark.parametrize("stop", [0, 5])
def test_a_loader_resumes_without_reading_what_was_delivered(tmp_path, kind, stop):
    folder = write(tmp_path, range(50))

    def loader():
        ds = kind(local=folder, shuffle=True, batch_size=4)
        return streaming.StreamingDataLoader(ds, batch_size=4)

    whole = loader()
    expected = [[batch["x"].tolist() for batch in whole] for epoch in range(3)]
    first = loader()
    list(first)
    iterator = iter(first)
    seen = [next(iterator)["x"].tolist() for _ in range(stop)]
    second = loader()
    second.load_state_dict(first.state_dict())
    reads = CountReads(second.dataset)
    assert seen + [batch["x"].tolist() for batch in second] == expected[1]
    assert reads.count == 50 - 4 * stop
    second.load_state_dict(second.state_dict())  # of a finished epoch
    assert [batch["x"].tolist() for batch in second] == expected[2]


class CountReads:
    """Counts the samples that a dataset reads."""

    def __init__(self, dataset):
        self.count = 0
        self._shards, self._read = dataset.source.shards, dataset.source.shards.read
        self._shards.read = self

    def __call__(self, shard, index):
        self.count += 1
        return self._read(shard, index)


def test_a_loader_with_another_batch_size_than_the_datasets_resumes_exactly(tmp_path):
    folder = write(tmp_path, range(50))
    first, second, whole = (streaming.StreamingDataLoader(shuffled(folder), batch_size=5) for _ in range(3))
    seen = xs_of(islice(first, 2))
    second.load_state_dict(first.state_dict())
    assert seen + xs_of(second) == xs_of(whole)


class WaitsForFile(streaming.StreamingDataset):
    """Delivers sample 0 when there is a file ``go``."""

    def __getitem__(self, at):
        while at == 0 and not Path("go").exists():
            time.sleep(0.01)
        return super().__getitem__(at)


@pytest.mark.filterwarnings("ignore:the iterable dataset .* runs again")
def test_a_loader_resumes_exactly_where_batches_came_out_of_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path, range(24))
    loaders = [
        streaming.StreamingDataLoader(
            WaitsForFile(local=folder, batch_size=4), batch_size=4, num_workers=2, in_order=False
        )
        for _ in range(2)
    ]
    seen = xs_of(islice(loaders[0], 1))
    assert seen == [4, 5, 6, 7]
    loaders[1].load_state_dict(loaders[0].state_dict())
    Path("go").touch()
    assert sorted(seen + xs_of(loaders[1])) == list(range(24))
    for loader in loaders:
        loader.close()


@pytest.mark.slow
def test_a_resumed_loader_may_have_another_number_of_workers(tmp_path):
    folder = write(tmp_path, range(50))
    loaders = [streaming.StreamingDataLoader(shuffled(folder), batch_size=4, num_workers=n) for n in (3, 2)]
    whole = xs_of(loaders[1])
    begun = iter(loaders[0])
    seen = xs_of(islice(begun, 5))
    loaders[1].load_state_dict(loaders[0].state_dict())
    begun = iter(loaders[1])
    seen += xs_of(islice(begun, 3))
    loaders[0].load_state_dict(loaders[1].state_dict())  # resumed twice
    assert seen + xs_of(loaders[0]) == whole
    for loader in loaders:
        loader.close()


def test_composers_trainer_saves_and_loads_the_state_of_the_dataset(tmp_path):
    folder = write(tmp_path, range(50))
    whole, saved, resumed = (shuffled(folder) for _ in range(3))
    expected = [xs(whole) for _ in range(2)]
    xs(saved)
    iterator = iter(saved)
    seen = [next(iterator)["x"] for _ in range(12)]
    state = saved.state_dict(12, True)
    assert state == {"epoch": 1, "sample_in_epoch": 12, "shuffle_seed": 9176, "epoch_size": 50, "ranks": 1}
    resumed.load_state_dict(state)
    assert (len(resumed), resumed.state_dict(8, False)["sample_in_epoch"]) == (50, 20)
    assert seen + xs(resumed) == expected[1]
    with pytest.raises(ValueError, match="shuffle_seed=9176, which is 3 now"):
        shuffled(folder, shuffle_seed=3).load_state_dict(state)
    with pytest.raises(ValueError, match="the state is of mosaicml-streaming, which has another order"):
        resumed.load_state_dict({"epoch": 0, "sample_in_epoch": 4, "num_canonical_nodes": 1})
    resumed.load_state_dict(saved.state_dict(50, True, epoch=0))  # of an epoch that has ended
    assert xs(resumed) == expected[1]


@pytest.mark.parametrize("method", ["balanced", "fixed"])
def test_epochs_have_a_part_of_the_samples(tmp_path, method):
    folder = write(tmp_path, range(100))
    ds = streaming.StreamingDataset(local=folder, epoch_size=30, sampling_method=method)
    epochs = [xs(ds) for _ in range(3)]
    assert [len(set(epoch)) for epoch in epochs] == [30, 30, 30]
    assert all(sorted(epoch) == epoch for epoch in epochs)
    assert len(set(map(tuple, epochs))) == (3 if method == "balanced" else 1)


def test_programs_import_from_base(tmp_path):
    from mpwds.streaming.base import StreamingDataset
    from mpwds.streaming.base.util import clean_stale_shared_memory, merge_index

    assert mpwds.streaming is streaming
    assert StreamingDataset is streaming.base.StreamingDataset is streaming.StreamingDataset
    with pytest.raises(AttributeError, match="there is only MDS here"):
        streaming.JSONWriter  # looking the name up is what is tested
    assert clean_stale_shared_memory() is None
    for part in range(3):
        write(tmp_path / str(part), range(10 * part, 10 * part + 10), compression="gz", hashes=["sha1"])
    merge_index(str(tmp_path))
    ds = streaming.StreamingDataset(local=str(tmp_path), validate_hash="sha1")
    assert xs(ds) == list(range(30))
    with pytest.raises(FileExistsError, match="no dataset is overwritten"):
        merge_index(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="in a folder below"):
        merge_index(str(tmp_path / "0"))


def test_a_list_of_indexes_is_merged(tmp_path):
    from mpwds.streaming.base.util import merge_index

    for part in range(2):
        write(tmp_path / "remote" / str(part), [part])
    pairs = [
        (f"{tmp_path}/local/{part}/index.json", f"{tmp_path}/remote/{part}/index.json") for part in (1, 0)
    ]
    merge_index(pairs, (f"{tmp_path}/local", f"{tmp_path}/remote"), keep_local=False)
    ds = streaming.StreamingDataset(local=str(tmp_path / "copy"), remote=str(tmp_path / "remote"))
    assert xs(ds) == [1, 0]
    assert not (tmp_path / "local").exists()
    (tmp_path / "remote/index.json").unlink()
    merge_index(pairs, (f"{tmp_path}/local", f"{tmp_path}/remote"))
    assert (tmp_path / "local/index.json").read_bytes() == (tmp_path / "remote/index.json").read_bytes()


def test_indexes_that_are_not_below_the_merged_one_are_refused(tmp_path, monkeypatch):
    from mpwds.streaming.base.util import merge_index

    monkeypatch.chdir(tmp_path)
    indexes = [f"{write(tmp_path / group / 'train', [1])}/index.json" for group in "ab"]
    with pytest.raises(ValueError, match="b/train/index.json is not in a folder of a$"):
        merge_index(indexes, "a")
    with pytest.raises(ValueError, match="two of the folders have the same name: "):
        merge_index(indexes, "s3://bucket/merged")
    assert not (tmp_path / "a/index.json").exists()
    merge_index(indexes[:1], "a")
    assert xs(streaming.StreamingDataset(local="a")) == [1]


def test_a_local_dataset_has_a_length_and_numbers(tmp_path):
    write(tmp_path / "train", range(30))
    ds = streaming.LocalDataset(str(tmp_path), "train")
    assert (len(ds), ds.size, ds[29], ds[-1]) == (30, 30, {"x": 29}, {"x": 29})
    assert xs(ds[10:13]) == [10, 11, 12]


def test_pickles_need_permission(tmp_path):
    with streaming.MDSWriter(columns={"x": "pkl"}, out=str(tmp_path)) as sink:
        sink.write({"x": {1}})
    with pytest.raises(ValueError, match="pickles runs code"):
        streaming.StreamingDataset(local=str(tmp_path))
    with pytest.raises(ValueError, match="pickles runs code"):
        streaming.LocalDataset(str(tmp_path))
    assert streaming.StreamingDataset(local=str(tmp_path), allow_unsafe_types=True)[0] == {"x": {1}}


def opened(*weights, **arguments):
    """Opens a dataset, of a stream for each of the weights if there are any."""
    if weights:
        arguments["streams"] = [streaming.Stream(local="xy"[n], **each) for n, each in enumerate(weights)]
    streaming.StreamingDataset(**arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: opened(), "either streams, or remote and local"),
        (lambda: opened({}, local="x"), "either streams, or remote and local"),
        (lambda: opened(local="x", batching_method="stratified"), "mpwds.RandomMix"),
        (lambda: opened(local="x", shuffle_algo="py3"), "one of 'naive', 'py1s'"),
        (lambda: opened(local="x", stream_name="mine"), "no registry"),
        (lambda: opened(local="x", sampling_method="fix"), "one of 'balanced', 'fixed'"),
        (lambda: opened(local="x", shuffle_seed=-1), "must not be negative"),
        (lambda: opened(local="x", epoch_size="many"), "'100k'"),
        (lambda: opened(local="x", epoch_size=-5), "cannot have -5 samples"),
        (lambda: opened({"proportion": 0}), "with the proportions"),
        (lambda: opened(local="x", cache_limit="much"), "'64mb'"),
        (lambda: opened(local="z", remote="x", cache_limit=100), "no room for the largest shard"),
        (lambda: opened(local="x", suffle=True), "did you mean 'shuffle'"),
        (lambda: opened({"repeat": 1, "choose": 1}), "one of proportion, repeat and choose"),
        (lambda: opened({"proportion": -1}), "one of proportion, repeat and choose"),
        (lambda: opened({"proportion": 1}, {}), "either all streams have a proportion"),
        (lambda: opened({"repeat": 1}, epoch_size=5), "epoch_size is for streams with proportions"),
    ],
)
def test_what_is_not_offered_is_refused_with_a_reason(tmp_path, monkeypatch, call, message):
    monkeypatch.chdir(tmp_path)
    for name in "xy":
        write(name, range(3))
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_keeping_compressed_files_is_a_warning(tmp_path):
    with pytest.warns(RuntimeWarning, match="keep_zip"):
        streaming.StreamingDataset(local=write(tmp_path, range(3)), keep_zip=True)


def test_a_position_counts_what_came_before_the_epoch_was_resumed(tmp_path):
    dataset = streaming.StreamingDataset(local=write(tmp_path, range(10)), batch_size=2)
    dataset.load_state_dict(dataset.state_dict(4, True, 0))
    assert dataset.state_dict(2, False, 0)["sample_in_epoch"] == 6
    assert dataset.state_dict(2, True, 0)["sample_in_epoch"] == 2
    assert dataset.batch_size == 2


def test_a_position_is_that_of_all_ranks_together(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    dataset = streaming.StreamingDataset(local=write(tmp_path, range(20)))
    whole = xs(dataset)
    dataset.load_state_dict(dataset.state_dict(6, True, 0))
    assert xs(dataset) == whole[3:]
    assert dataset.state_dict(2, False, 0)["sample_in_epoch"] == 8
    dataset.load_state_dict(dataset.state_dict(20, True, 0))  # all were delivered
    assert (xs(dataset), dataset.state_dict(0, True)["epoch"]) == (whole, 1)


def test_a_shard_can_be_fetched_before_its_samples_are_asked_for(tmp_path):
    remote, local = write(tmp_path / "remote", range(60)), tmp_path / "local"
    dataset = streaming.StreamingDataset(remote=remote, local=str(local))
    assert not list(local.glob("*.mds"))
    dataset.prepare_shard(1)
    assert [path.name for path in local.glob("*.mds")] == ["shard.00001.mds"]


@pytest.mark.filterwarnings("ignore:the iterable dataset .* runs again")
def test_a_loader_continues_exactly_after_stages_that_drop_samples(tmp_path):
    folder = write(tmp_path, range(40))

    def loader():
        dataset = streaming.StreamingDataset(local=folder, batch_size=4)
        return streaming.StreamingDataLoader(dataset.map(even), batch_size=4)

    def even(sample):
        return None if sample["x"] % 2 else sample

    first, second = loader(), loader()
    seen = xs_of(islice(first, 2))
    second.load_state_dict(first.state_dict())
    assert sorted(seen + xs_of(second)) == list(range(0, 40, 2))
