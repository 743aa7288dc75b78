"""Shards that are fetched from elsewhere: once, checked, uncompressed, and kept within a limit."""

import io
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import time

import pytest

from mpwds import MDSWriter, ShardError, StreamError, StreamingDatasetWriter
from mpwds.storage.mds.fetched_shards import DatasetLocation
from mpwds.storage.mds.shards_v1 import MDS1Shards
from mpwds.storage.mds.shards_v2 import MDSShards
from mpwds.storage.mds.stored_files import Compression
from mpwds.storage.streams.gopen import gopen_schemes
from tests.forks import raised_in_fork
from tests.open_files import open_files
from tests.storage.mds.datasets import COLUMNS, files, read, write

SAMPLES = [{"text": f"{n} " * 10, "number": n} for n in range(200)]


@pytest.fixture
def remote(tmp_path, web):
    """Writes a dataset and serves it; returns its URL."""

    def serve(**options):
        return served(web, write(tmp_path / "written", SAMPLES, COLUMNS, size_limit=2000, **options))

    return serve


def served(web, folder):
    web.files.update({f"/data/{name}": data for name, data in files(folder).items()})
    return web.url("/data")


def asked(web):
    return [path for method, path, _ in web.requests if method == "GET"]


@pytest.mark.parametrize("compression", [None, "gz", "zstd"])
def test_each_file_is_fetched_once_and_shards_are_uncompressed(tmp_path, web, remote, compression):
    url = remote(compression=compression)
    local = tmp_path / "local"
    shards = MDSShards(local, url)
    assert asked(web) == ["/data/index.json"]
    assert read(shards) == SAMPLES
    assert read(MDSShards(local, url)) == SAMPLES
    again = ["/data/index.json"]  # to see whether the dataset is the same one
    assert sorted(asked(web)) == sorted([*web.files, *again])
    fetched = [name for name in os.listdir(local) if not name.startswith(".")]
    assert sorted(fetched) == ["index.json", *(f"shard.{n:05}.mds" for n in range(len(shards.lengths)))]


def test_only_the_shards_that_are_read_are_fetched(tmp_path, web, remote):
    shards = MDSShards(tmp_path / "local", remote())
    assert shards.read(2, 0) == SAMPLES[sum(shards.lengths[:2])]
    assert asked(web) == ["/data/index.json", "/data/shard.00002.mds"]


def test_a_split_is_a_folder_below_both(tmp_path, web, remote):
    url = remote()
    shards = MDSShards(tmp_path / "local", os.path.dirname(url), "data")
    assert read(shards) == SAMPLES
    assert (tmp_path / "local" / "data" / "index.json").exists()


def temporary_folders(tmp_path):
    return list(tmp_path.glob("mpwds-mds-*/*"))


def test_a_dataset_without_a_local_folder_goes_to_a_temporary_one_that_its_last_user_removes(
    tmp_path, monkeypatch, remote
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    url = remote()
    users = [MDSShards(url), MDSShards(url)]
    users.append(pickle.loads(pickle.dumps(users[0])))
    assert read(users[0]) == SAMPLES
    assert [path.stat().st_mode & 0o777 for path in tmp_path.glob("mpwds-mds-*")] == [0o700]
    assert raised_in_fork(users.clear) == ""
    assert len(temporary_folders(tmp_path)) == 1
    del users[:2]
    assert len(temporary_folders(tmp_path)) == 1
    assert read(users[0]) == SAMPLES
    users.clear()
    assert not list(tmp_path.glob("mpwds-mds-*"))


def test_the_temporary_folder_of_a_killed_process_is_removed_by_the_next_one(
    tmp_path, monkeypatch, web, remote
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    url = remote()
    web.files.update({name.replace("data", "other"): data for name, data in web.files.items()})
    program = """if True:
        import os, signal, sys
        from mpwds.storage.mds.shards_v2 import MDSShards
        shards = MDSShards(sys.argv[1])
        shards.read(0, 0)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", program, url], env={**os.environ, "TMPDIR": str(tmp_path)})
    (left,) = temporary_folders(tmp_path)
    shards = MDSShards(web.url("/other"))
    assert read(shards) == SAMPLES
    assert len(temporary_folders(tmp_path)) == 1
    assert not left.exists()


@pytest.fixture(params=["url", "folder"])
def rewritten(request, tmp_path, web):
    """Writes a dataset, which ``rewrite`` replaces by another that has the same index."""

    def rewrite(first):
        samples = [{"x": number} for number in range(first, first + 100)]
        folder = write(tmp_path / "written", samples, {"x": "int"}, size_limit=300, exist_ok=True)
        if request.param == "folder":
            os.utime(folder / "index.json", (first, first))
            return folder
        web.modified = f"Wed, 21 Oct 2015 07:28:{first % 60:02} GMT"
        return served(web, folder)

    return rewrite


def test_a_dataset_that_was_rewritten_is_not_mixed_with_its_copy(tmp_path, rewritten):
    local = tmp_path / "local"
    url = rewritten(0)
    assert MDSShards(local, url).read(0, 0) == {"x": 0}
    assert rewritten(100) == url
    with pytest.raises(FileExistsError, match=r"/local holds another dataset than .*, or an earlier version"):
        MDSShards(local, url)
    shutil.rmtree(local)
    assert [sample["x"] for sample in read(MDSShards(local, url))] == list(range(100, 200))


def test_hashes_in_an_equal_index_prove_that_a_copy_is_of_the_same_version(tmp_path, web):
    url = served(web, write(tmp_path / "written", [{"x": 7}], {"x": "int"}, hashes=["sha1"]))
    for second in range(2):
        web.modified = f"Wed, 21 Oct 2015 07:28:{second:02} GMT"
        assert read(MDSShards(tmp_path / "local", url)) == [{"x": 7}]


def test_a_rewritten_dataset_has_a_temporary_folder_of_its_own(tmp_path, monkeypatch, rewritten):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    url = rewritten(0)
    old = MDSShards(url)
    assert old.read(0, 0) == {"x": 0}
    rewritten(100)
    assert [sample["x"] for sample in read(MDSShards(url))] == list(range(100, 200))
    assert old.read(0, 0) == {"x": 0}


def test_a_copy_serves_while_the_remote_is_away(tmp_path, web, remote):
    local, url = tmp_path / "local", remote()
    read(MDSShards(local, url))
    web.files.clear()
    with pytest.warns(RuntimeWarning, match=r"/local may be out of date: .*/data/index.json"):
        assert read(MDSShards(local, url)) == SAMPLES


def test_a_copy_serves_though_its_remote_has_a_scheme_that_nothing_opens(tmp_path, web, remote):
    remote()
    with pytest.warns(RuntimeWarning, match="may be out of date: .* no opener is known for oci: URLs"):
        assert read(MDSShards(tmp_path / "written", "oci://bucket/data")) == SAMPLES


@pytest.mark.parametrize(("mode", "owner"), [(0o777, -1), (0o720, -1), (0o700, 4321)])
def test_a_temporary_folder_that_is_not_the_users_alone_is_refused(
    tmp_path, monkeypatch, remote, mode, owner
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"mpwds-mds-{os.getuid()}"
    folder.mkdir()
    folder.chmod(mode)
    if owner >= 0 and os.getuid() != 0:
        pytest.skip("only root gives files to others")
    os.chown(folder, owner, -1)
    with pytest.raises(PermissionError, match="pass local="):
        MDSShards(remote())


def test_a_local_folder_of_another_dataset_is_an_error_that_says_so(tmp_path, remote):
    remote(compression="gz")
    (tmp_path / "local").mkdir()
    index = (tmp_path / "written" / "index.json").read_text()
    (tmp_path / "local" / "index.json").write_text(index.replace("gz", "zstd"))
    with pytest.raises(FileExistsError, match=r"/local holds another dataset than .*/written, .* pass anoth"):
        MDSShards(tmp_path / "local", tmp_path / "written")


def test_a_remote_folder_is_copied(tmp_path, remote):
    remote(compression="gz")
    assert read(MDSShards(tmp_path / "local", tmp_path / "written")) == SAMPLES
    assert not list((tmp_path / "written").glob("*.mds"))
    assert list((tmp_path / "local").glob("*.mds"))


def test_a_full_disk_leaves_no_part_of_an_index(tmp_path, remote, limited):
    url = remote()
    opened = "import sys; from mpwds.storage.mds.shards_v2 import MDSShards; MDSShards(*sys.argv[1:])"
    done = limited(1000, opened, tmp_path / "local", url)
    assert "File too large" in done.stderr
    assert os.listdir(tmp_path / "local") == [".mpwds"]  # where it is from
    assert read(MDSShards(tmp_path / "local", url)) == SAMPLES


def test_processes_of_a_machine_share_what_is_fetched(tmp_path, web, remote):
    url = remote(compression="gz", hashes=["sha1"])
    program = """if True:
        import sys
        from mpwds.storage.mds.shards_v2 import MDSShards
        shards = MDSShards(sys.argv[1], sys.argv[2])
        for shard, length in enumerate(shards.lengths):
            for number in range(length):
                shards.read(shard, number)
    """
    arguments = [sys.executable, "-c", program, str(tmp_path / "local"), url]
    readers = [subprocess.Popen(arguments, stderr=subprocess.PIPE) for _ in range(3)]
    assert [(reader.communicate(), reader.returncode) for reader in readers] == [((None, b""), 0)] * 3
    shards = [path for path in asked(web) if "shard" in path]
    assert sorted(shards) == sorted(set(shards))


@pytest.mark.parametrize("compression", [None, "gz"])
def test_a_damaged_file_is_an_error_that_names_its_hashes(tmp_path, web, remote, compression):
    url = remote(compression=compression, hashes=["md5", "xxh64"])
    name = "/data/shard.00001.mds" + (".gz" if compression else "")
    web.files[name] = web.files[name][:-1] + b"?"
    shards = MDSShards(tmp_path / "local", url)
    assert shards.read(0, 0) == SAMPLES[0]
    with pytest.raises(ShardError, match=rf"{name} is damaged: its md5 is \w+, and the index says \w+"):
        shards.read(1, 0)
    assert not (tmp_path / "local" / "shard.00001.mds").exists()


@pytest.mark.parametrize("compression", ["br", "bz2", "gz", "snappy", "zstd"])
def test_compressed_data_that_is_damaged_is_an_error(tmp_path, web, remote, compression):
    url = remote(compression=compression)
    name = f"/data/shard.00000.mds.{compression}"
    middle = len(web.files[name]) // 2
    web.files[name] = web.files[name][:middle] + bytes(9) + web.files[name][middle + 9 :]
    with pytest.raises(ShardError, match="shard.00000.mds.* is damaged") as caught:
        shards = MDSShards(tmp_path / "local", url)
        shards.read(0, 0)
        raise ShardError("shard.00000.mds is damaged") from AssertionError("snappy has no checksum")
    assert compression == "snappy" or not isinstance(caught.value.__cause__, AssertionError)


def grow(entry, files):
    files["/data/shard.00000.mds"] += b"?"


def promise_more(entry, files):
    entry["raw_data"]["bytes"] += 1


def put_a_bomb(entry, files):
    bomb = Compression.of("gz").compress(bytes(3_000_000))
    files["/data/shard.00000.mds.gz"] = bomb
    entry["zip_data"]["bytes"] = len(bomb)


@pytest.mark.parametrize(
    ("change", "compression", "message"),
    [
        (grow, None, "mds is damaged: it has .* bytes, and the index says"),
        (promise_more, "gz", r"mds.gz is damaged: decompressed, it has \d+ bytes"),
        (put_a_bomb, "gz", "mds.gz is damaged: its gz data is damaged: it becomes more than the"),
    ],
)
def test_a_file_of_another_size_is_an_error_and_not_kept(tmp_path, web, remote, change, compression, message):
    url = remote(compression=compression)
    index = json.loads(web.files["/data/index.json"])
    change(index["shards"][0], web.files)
    web.files["/data/index.json"] = json.dumps(index).encode()
    with pytest.raises(ShardError, match=f"shard.00000.{message}"):
        MDSShards(tmp_path / "local", url).read(0, 0)
    assert not (tmp_path / "local" / "shard.00000.mds").exists()


@pytest.mark.parametrize("compression", ["br", "bz2", "gz", "snappy", "zstd"])
def test_what_is_compressed_comes_back_whole_or_not_at_all(compression):
    codec, data = Compression.of(compression), bytes(2_500_000)
    packed = codec.compress(data)
    assert codec.decompress(packed, len(data)) == data
    with pytest.raises(ValueError, match=f"its {compression} data is damaged: it becomes more than the 24"):
        codec.decompress(packed, len(data) - 1)
    if compression != "zstd":  # whose readers see that there are fewer bytes than the index says
        with pytest.raises(ValueError, match=f"its {compression} data is damaged: "):
            codec.decompress(packed[:-1], len(data))


@pytest.mark.parametrize("compression", ["bz2", "gz", "zstd"])
def test_a_flipped_bit_of_formats_with_a_checksum_never_gives_other_data(compression):
    codec, data = Compression.of(compression), random.Random(0).randbytes(300)
    packed = codec.compress(data)
    for place in range(len(packed)):
        try:
            found = codec.decompress(packed[:place] + bytes([packed[place] ^ 1]) + packed[place + 1 :], 300)
        except ValueError:
            continue
        assert found == data


def test_the_user_may_choose_the_hash(tmp_path, web, remote):
    url = remote(hashes=["md5", "sha1"])
    assert read(MDSShards(tmp_path / "local", url, validate_hash="sha1")) == SAMPLES
    with pytest.raises(ValueError, match="no sha256 hash of shard.00000.mds: it lists md5, sha1"):
        MDSShards(tmp_path / "local", url, validate_hash="sha256")


def test_a_chosen_hash_is_compared_for_local_shards_too(tmp_path, remote):
    remote(hashes=["md5"])
    with open(tmp_path / "written" / "shard.00000.mds", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    shards = MDSShards(tmp_path / "written", validate_hash="md5")
    for _ in range(2):
        with pytest.raises(ShardError, match="shard.00000.mds is damaged: its md5 is"):
            shards.read(0, 0)
    assert shards.read(1, 0)


def test_what_is_kept_stays_below_the_limit(tmp_path, remote):
    local = tmp_path / "local"
    shards = MDSShards(local, remote(), cache_limit=8_000)
    assert read(shards) == SAMPLES
    kept = [path.stat().st_size for path in local.glob("shard.*.mds")]
    shards.close()
    assert sum(kept) <= 8_000


def test_a_shard_for_which_there_is_no_room_is_named(tmp_path, remote):
    url = remote()
    local = tmp_path / "local"
    shards = MDSShards(local, url, cache_limit=8_000)
    (local / "foreign").write_bytes(bytes(8_000))
    with pytest.raises(StreamError, match=f"^{url}/shard.00000.mds is needed whole, and .* has no room"):
        shards.read(0, 0)


def test_a_limit_that_no_shard_fits_in_is_an_error_at_once(tmp_path, remote):
    url = remote()
    with pytest.raises(ValueError, match=r"cache_limit \(1000 bytes\) has no room for the largest shard"):
        MDSShards(tmp_path / "local", url, cache_limit=1000)
    assert read(MDSShards(tmp_path / "written", cache_limit=1000)) == SAMPLES  # where nothing is fetched


def test_shards_that_are_open_make_room_for_those_of_other_processes(tmp_path, remote):
    """What others hold open can be removed; they read on, and let go of it when they open the next."""
    url = remote()
    idle, busy = (MDSShards(tmp_path / "local", url, cache_limit=5_000) for _ in range(2))
    assert [idle.read(shard, 0) for shard in (0, 1)] == [SAMPLES[0], SAMPLES[idle.lengths[0]]]
    assert read(busy) == SAMPLES
    assert idle.read(0, 0) == SAMPLES[0]
    assert read(idle) == SAMPLES
    assert not [name for name in open_files(tmp_path) if name.endswith("shard.00000.mds (deleted)")]


@pytest.mark.parametrize(
    ("options", "pause_s", "tries"),
    [({"retries": 0}, 0, 1), ({"retries": 2}, 0, 3), ({"retries": 30, "timeout_s": 60}, 100, 1)],
)
def test_a_file_is_asked_for_as_often_as_the_user_says_within_his_time(
    tmp_path, web, options, pause_s, tries
):
    web.plan[:] = [{"status": 503, "headers": {"Retry-After": str(pause_s)}}] * 100
    with pytest.raises(StreamError, match=rf"503.*gave up after {tries} tr"):
        MDSShards(tmp_path / "local", web.url("/data"), **options)
    assert len(asked(web)) == tries


def test_a_server_that_says_nothing_takes_no_more_time_than_the_user_gives(tmp_path, web, remote):
    url = remote()
    web.plan[:] = [{"stall": 0}]
    with pytest.raises(StreamError, match=r"the server is silent .*at byte 0.*gave up after 1 tries"):
        MDSShards(tmp_path / "local", url, retries=5, timeout_s=0.2)


class Slow(io.BytesIO):
    """Delivers 1,000 bytes at a time, each after the time that its reader has."""

    def read1(self, size):
        time.sleep(0.02)
        return super().read1(1000)


def test_the_time_ends_a_transfer_that_goes_on_and_not_one_that_is_complete(monkeypatch):
    files = {"slow:x/small": bytes(1000), "slow:x/large": bytes(1001)}
    monkeypatch.setitem(gopen_schemes, "slow", lambda url, mode, bufsize: Slow(files[url]))
    location = DatasetLocation.of(None, "slow:x", timeout_s=0.01)
    assert location.fetch("small") == bytes(1000)
    with pytest.raises(StreamError, match=r"slow:x/large was not fetched within 0.01 s: raise the time-out"):
        location.fetch("large")


def test_what_does_not_try_again_by_itself_is_tried_again(monkeypatch):
    results = [OSError("away"), OSError("away"), io.BytesIO(b"data")]

    def opened(url, mode, bufsize):
        if isinstance(result := results.pop(0), OSError):
            raise result
        return result

    monkeypatch.setitem(gopen_schemes, "flaky", opened)
    assert DatasetLocation.of(None, "flaky:x", retries=2).fetch("name") == b"data"
    results[:] = [OSError("away")] * 2
    with pytest.raises(OSError, match="away"):
        DatasetLocation.of(None, "flaky:x", retries=1).fetch("name")


def test_a_dataset_that_is_not_there_is_an_error_at_once(tmp_path, web):
    with pytest.raises(FileNotFoundError, match="index.json"):
        MDSShards(tmp_path / "local", web.url("/nothing"))
    with pytest.raises(FileNotFoundError, match="no index.json in .*nowhere"):
        MDSShards(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="needs local="):
        MDSShards()
    for wrong in ({"retries": -1}, {"timeout_s": 0}, {"timeout_s": -1}):
        with pytest.raises(ValueError, match=r"retries .* must not be negative, the time-out .* positive"):
            MDSShards(tmp_path, **wrong)


def test_a_dataset_of_the_other_version_is_named_as_that(tmp_path):
    with StreamingDatasetWriter(tmp_path / "1", ["x"]) as sink:
        sink.write_sample({"x": b""})
    write(tmp_path / "2")
    with pytest.raises(FileNotFoundError, match="version 1: StreamingDataset reads it"):
        MDSShards(tmp_path / "1")
    with pytest.raises(FileNotFoundError, match="version 2: MDSDataset reads it"):
        MDS1Shards(tmp_path / "2")


@pytest.mark.parametrize("compression", [None, "gz"])
def test_version_1_is_fetched_as_well(tmp_path, web, compression):
    samples = [{"x": b"%d" % n} for n in range(200)]
    with StreamingDatasetWriter(tmp_path / "written", ["x"], 500, compression) as sink:
        sink.write_samples(samples)
    shards = MDS1Shards(tmp_path / "local", served(web, tmp_path / "written"))
    assert read(pickle.loads(pickle.dumps(shards))) == samples
    assert len(list((tmp_path / "local").glob("0*.mds"))) == len(shards.lengths)
    assert read(MDS1Shards(tmp_path / "written")) == samples


def test_a_dataset_is_written_to_a_url_index_last(tmp_path, web):
    with MDSWriter(columns={"x": "bytes"}, out=web.url("/new"), size_limit=100) as sink:
        for number in range(9):
            sink.write({"x": bytes([number] * 30)})
    puts = [path for method, path, _ in web.requests if method == "PUT"]
    assert puts[-1] == "/new/index.json"
    assert len(puts) == 1 + len(sink.shards)
    web_files = {path: data for path, data in web.files.items() if path.startswith("/new/")}
    assert set(web_files) == set(puts)
    with pytest.raises(FileExistsError, match="/new/index.json exists"):
        MDSWriter(columns={"x": "bytes"}, out=web.url("/new"))


def test_a_file_is_sent_as_often_as_the_user_says(web):
    sink = MDSWriter(columns={"x": "bytes"}, out=web.url("/new"), retry=1, exist_ok=True)
    sink.write({"x": b"abc"})
    web.plan[:] = [{"status": 503}] * 100
    with pytest.raises(StreamError, match=r"503.*gave up after 2 tries"):
        sink.finish()
    assert len(web.requests) == 2


def test_the_second_of_two_writers_at_a_url_gets_an_error(web):
    with MDSWriter(columns={"x": "int"}, out=web.url("/new")) as first:
        second = MDSWriter(columns={"x": "int"}, out=web.url("/new"))
        first.write({"x": 1})
        second.write({"x": 2})
    index = web.files["/new/index.json"]
    with pytest.raises(FileExistsError, match="/new/index.json exists"):
        second.finish()
    assert web.files["/new/index.json"] == index


def test_a_server_that_fails_does_not_pass_for_an_empty_one(web):
    web.files["/old/index.json"] = b"old"
    web.plan[:] = [{"status": 400}]
    with pytest.raises(StreamError, match="400"):
        MDSWriter(columns={"x": "bytes"}, out=web.url("/old"))
    assert web.files == {"/old/index.json": b"old"}


def test_a_dataset_that_goes_elsewhere_stays_here_on_request(tmp_path):
    for keep in (False, True):
        places = tmp_path / f"here {keep}", tmp_path / f"there {keep}"
        write(tuple(map(str, places)), keep_local=keep)
        here, there = (sorted(os.listdir(place)) if place.exists() else None for place in places)
        assert there == ["index.json", "shard.00000.mds"]
        assert here == (there if keep else None)


def test_shards_that_are_read_in_order_are_fetched_ahead(tmp_path, web, remote):
    url = remote()
    shards = MDSShards(tmp_path / "local", url)
    for shard in (0, 1):
        shards.read(shard, 0)
    deadline = time.monotonic() + 600
    while "/data/shard.00002.mds" not in asked(web) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [path for path in asked(web) if "shard" in path] == [f"/data/shard.{n:05}.mds" for n in range(3)]
    assert read(shards) == SAMPLES


def test_a_copy_of_a_compressed_dataset_serves_without_its_remote_and_wherever_it_is(tmp_path, remote):
    local, moved = tmp_path / "local", tmp_path / "moved"
    assert read(MDSShards(local, remote(compression="zstd"))) == SAMPLES
    files = sorted(os.listdir(local))
    local.rename(moved)
    assert read(MDSShards(moved)) == SAMPLES
    assert sorted(os.listdir(moved)) == files


def test_what_was_uncompressed_of_an_earlier_version_is_not_read(tmp_path):
    folder = tmp_path / "copied"
    for value in range(2):
        written = tmp_path / str(value)
        write(written, [{"x": value}], {"x": "int"}, compression="gz", hashes=["sha1"])
        shutil.copytree(written, folder, dirs_exist_ok=True)
        assert MDSShards(folder).read(0, 0) == {"x": value}


def test_a_limit_counts_nothing_of_a_local_dataset(tmp_path, remote):
    remote(compression="zstd")
    shards = MDSShards(tmp_path / "written", cache_limit=5_000)
    assert read(shards) == SAMPLES
    shards.close()


def test_another_process_that_uncompresses_for_long_is_waited_for(tmp_path, remote, monkeypatch):
    monkeypatch.setattr("mpwds.storage.caches.fetch.patience_s", 0.1)
    folder = tmp_path / "written"
    remote(compression="gz")
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        decompress, code = Compression.decompress, 1

        def slowly(*arguments):
            os.write(writes, b".")
            time.sleep(0.5)
            return decompress(*arguments)

        try:
            Compression.decompress = slowly
            MDSShards(folder).read(0, 0)
            code = 0
        finally:
            os._exit(code)
    os.close(writes)
    os.read(reads, 1)
    os.close(reads)
    assert MDSShards(folder).read(0, 0) == SAMPLES[0]
    assert os.waitpid(child, 0)[1] == 0


def test_a_system_call_that_reads_a_part_is_followed_by_others(tmp_path, remote, monkeypatch):
    remote()
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, at: pread(file, min(size, 100), at))
    assert read(MDSShards(tmp_path / "written")) == SAMPLES


def test_a_shard_that_is_cut_off_while_it_is_open_is_an_error(tmp_path, remote):
    remote()
    shards = MDSShards(tmp_path / "written")
    shards.read(0, 0)
    last = shards.lengths[0] - 1
    path = tmp_path / "written/shard.00000.mds"
    os.truncate(path, path.stat().st_size - 3)
    with pytest.raises(ShardError, match=f"the fields of sample {last} need"):
        shards.read(0, last)
