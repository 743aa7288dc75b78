import contextlib
import errno
import fcntl
import gc
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from mpwds.pipeline.coercion import Splitter
from mpwds.pipeline.context import Context
from mpwds.pipeline.handlers import ignore_and_continue
from mpwds.pipeline.sources import directory_shards
from mpwds.pipeline.sources.directory_shards import DirectoryShardList, shards_in
from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.storage.streams.patterns import expand_urls
from mpwds.storage.writing.tar_writer import TarWriter

CLAIM = re.compile(r"\._(\d+)(-[0-9a-f]{16}-\d+)?_")
READER = (
    "import sys, time; from mpwds.pipeline.sources.directory_shards import DirectoryShardList\n"
    "source = DirectoryShardList(sys.argv[1], mode='keep', poll=None).stream()\n"
    "print(next(source)[1]['url'], flush=True); time.sleep(600)"
)
UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]
NEEDS_NAMESPACES = pytest.mark.skipif(
    subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0, reason="no namespaces allowed"
)


@pytest.fixture
def folder(tmp_path):
    return f"{tmp_path}/"


def create(folder, numbers):
    for number in numbers:
        path = Path(f"{folder}file{number}.tar")
        path.touch()
        os.utime(path, (number, number))


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def unclaimed(path):
    return CLAIM.sub("", path)


@contextlib.contextmanager
def reader(folder, container):
    """A process that has claimed a shard and reads it until it is killed."""
    command = [*container, sys.executable, "-c", READER, folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process, os.path.basename(process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_each_shard_is_read_once_and_removed_also_those_that_appear_meanwhile(folder):
    create(folder, range(5))
    source = iter(DirectoryShardList(folder, mode="unlink", poll=None))
    urls = [next(source)["url"] for _ in range(3)]
    create(folder, range(5, 9))
    urls += [shard["url"] for shard in source]
    assert sorted(map(unclaimed, urls)) == [f"{folder}file{number}.tar" for number in range(9)]
    assert {CLAIM.search(url)[1] for url in urls} == {str(os.getpid())}
    assert names(folder) == []


def test_the_oldest_are_taken_first(folder):
    create(folder, [3, 1, 4, 0, 2])
    shards = DirectoryShardList(folder, pattern="*.tar", select="oldest", mode="unlink", poll=None)
    urls = [shard["url"] for shard in islice(shards, 3)]
    assert list(map(unclaimed, urls)) == [f"{folder}file{number}.tar" for number in range(3)]
    last = os.path.basename(urls[-1])  # handed out, and so the caller's
    assert names(folder) == [last, "file3.tar", "file4.tar"]
    assert len(list(DirectoryShardList(folder, mode="keep", poll=None))) == 2


def test_a_shard_that_was_taken_away_is_no_error(folder):
    create(folder, range(2))
    source = iter(DirectoryShardList(folder, mode="unlink", poll=None))
    os.remove(next(source)["url"])
    assert len(list(source)) == 1


def test_a_shard_that_was_read_may_be_kept_under_another_name(folder):
    create(folder, range(2))
    assert len(list(DirectoryShardList(folder, mode="keep", poll=None))) == 2
    assert names(folder) == ["file0.tar._done_", "file1.tar._done_"]
    assert list(DirectoryShardList(folder, pattern="*", poll=None)) == []


def test_resampled_shards_come_back(folder):
    create(folder, range(3))
    source = iter(DirectoryShardList(folder, poll=None))
    urls = [next(source)["url"] for _ in range(20)]
    assert len(set(map(unclaimed, urls))) == 3
    assert len(glob.glob(folder + "*.tar")) == 2  # the last one is claimed still


@pytest.mark.parametrize(
    ("mode", "newer", "left"),
    [
        ("keep", "file0.tar._done_", {"file0-1.tar._done_": "first", "file0.tar._done_": "second"}),
        ("resample", "file0.tar", {"file0-1.tar": "first", "file0.tar": "second"}),
        ("unlink", "file0.tar", {"file0.tar": "second"}),
    ],
)
def test_a_shard_that_was_read_replaces_no_newer_one(folder, mode, newer, left):
    Path(f"{folder}file0.tar").write_text("first")
    shards = DirectoryShardList(folder, mode=mode)
    claimed = next(iter(shards))["url"]
    Path(folder, newer).write_text("second")
    shards.recycle(claimed)
    assert {name: Path(folder, name).read_text() for name in names(folder)} == left


def test_a_function_may_deal_with_what_was_read(folder):
    create(folder, range(2))
    dealt_with = []

    def fate(path):
        dealt_with.append(path)
        os.unlink(path)

    urls = [shard["url"] for shard in DirectoryShardList(folder, poll=None, fate=fate)]
    assert dealt_with == urls
    assert names(folder) == []


@pytest.mark.parametrize("container", [(), pytest.param(UNSHARE, marks=NEEDS_NAMESPACES)])
def test_a_shard_is_left_to_its_reader_until_that_is_killed(folder, container):
    create(folder, range(1))
    with reader(folder, container) as (process, claimed):
        # In a container the reader is process 1, as another one here.
        assert CLAIM.search(claimed)[1] == ("1" if container else str(process.pid))
        shards = DirectoryShardList(folder, mode="unlink", poll=None)
        assert list(shards) == []
        assert names(folder) == [claimed]
        process.kill()
        process.stdout.read()  # to the pipe's end: a reader in a container has gone too
        assert [unclaimed(shard["url"]) for shard in shards] == [f"{folder}file0.tar"]


@pytest.fixture
def network_folder(folder, monkeypatch):
    """A directory that other machines have mounted, too."""
    monkeypatch.setattr(directory_shards, "_is_of_one_kernel", lambda device: False)
    return folder


def elsewhere(folder, age_s):
    """Claims a shard as a reader of another kernel would."""
    path = f"{folder}x.tar._17-0123abcd01234567-{time.time_ns() - int(age_s * 1e9)}_"
    Path(path).touch()
    return os.path.basename(path)


def test_a_shard_claimed_before_the_machine_was_restarted_is_given_back(folder, monkeypatch):
    monkeypatch.setattr(directory_shards, "_is_of_one_kernel", lambda device: True)
    elsewhere(folder, age_s=100)
    for pid in (17, os.getpid()):  # another process may have got the number of the reader
        Path(f"{folder}{pid}.tar._{pid}_").touch()
    assert len(list(DirectoryShardList(folder, mode="unlink", poll=None))) == 3


def test_a_file_system_is_of_one_kernel_by_its_type(tmp_path):
    mounted = Path("/proc/self/mountinfo").read_text().splitlines()
    types = {mount.split()[2]: mount.partition(" - ")[2].split()[0] for mount in mounted}
    for device, kind in types.items():
        major, minor = map(int, device.split(":"))
        if kind in ("ext4", "nfs4", "proc"):
            assert directory_shards._is_of_one_kernel(os.makedev(major, minor)) == (kind == "ext4")


def test_the_name_of_a_claim_is_webdatasets_where_locks_tell_enough(folder, monkeypatch):
    create(folder, range(1))
    monkeypatch.setattr(directory_shards, "_is_of_one_kernel", lambda device: True)
    for claimed in DirectoryShardList(folder, poll=None):
        assert claimed["url"] == f"{folder}file0.tar._{os.getpid()}_"
        break


def test_a_shard_claimed_on_another_machine_is_left_alone(network_folder):
    folder = network_folder
    claimed = [elsewhere(folder, age_s=1e6), "y.tar._17_"]  # the second in webdataset's way
    Path(folder + claimed[1]).touch()
    assert list(DirectoryShardList(folder, mode="unlink", poll=None)) == []
    assert names(folder) == claimed


def test_a_shard_claimed_on_this_machine_is_given_back_when_nobody_locks_it(network_folder):
    create(network_folder, range(1))
    shards = DirectoryShardList(network_folder, mode="unlink", poll=None)
    (claimed,) = shards
    Path(claimed["url"]).touch()  # as a reader leaves it that is killed
    assert [unclaimed(shard["url"]) for shard in shards] == [f"{network_folder}file0.tar"]


@pytest.mark.parametrize(("age_s", "read"), [(1000, 0), (10_000, 1)])
def test_a_claim_of_another_machine_that_is_older_than_stated_is_given_up(network_folder, age_s, read):
    folder = network_folder
    elsewhere(folder, age_s)
    shards = DirectoryShardList(folder, mode="unlink", poll=None, claim_timeout=3600)
    assert len(list(shards)) == read


def test_on_a_file_system_without_locks_each_shard_is_read_once(folder, monkeypatch):
    def unsupported(descriptor, operation):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    create(folder, range(3))
    shards = DirectoryShardList(folder, mode="unlink", poll=None)
    first = shards.stream()
    held = next(first)[1]["url"]
    assert len(list(shards)) == 2
    assert names(folder) == [os.path.basename(held)]


def test_several_processes_share_the_shards_without_reading_one_twice(folder):
    create(folder, range(60))
    code = (
        "import sys; from mpwds.pipeline.sources.directory_shards import DirectoryShardList\n"
        "for shard in DirectoryShardList(sys.argv[1], mode='keep', poll=None):\n"
        "    print(shard['url'].split('/')[-1])"
    )
    command = [sys.executable, "-c", code, folder]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    lines = [line for process in processes for line in process.communicate(timeout=600)[0].split()]
    read = [line.partition("._")[0] for line in lines]
    assert sorted(read) == sorted(f"file{number}.tar" for number in range(60))
    assert len(names(folder)) == 60


def test_only_what_fits_the_pattern_is_read(folder):
    shards = [f"x.{ending}" for ending in ("tar", "tar.bz2", "tar.gz", "tar.xz", "tar.zst", "tgz")]
    for name in [*shards, "d.txt"]:
        Path(folder + name).touch()
    assert sorted(map(os.path.basename, shards_in(folder))) == shards
    read = DirectoryShardList(folder, mode="keep", poll=None)
    assert sorted(os.path.basename(unclaimed(shard["url"])) for shard in read) == shards


def test_without_new_shards_it_ends_after_the_timeout(folder):
    assert list(DirectoryShardList(folder, poll=0.001, timeout=0.002)) == []


def test_each_worker_has_an_order_of_its_own(folder):
    create(folder, range(30))
    shards = DirectoryShardList(folder, poll=None)
    streams = [shards.stream(Context(worker=worker, workers=2)) for worker in (0, 1)]
    orders = [[next(stream)[1]["url"] for _ in range(10)] for stream in streams]
    assert orders[0] != orders[1]


@pytest.fixture
def filled(shards, folder):
    for url in expand_urls(shards):
        shutil.copy(url, folder)
    return folder


def classes(samples):
    return sorted(int(sample["cls"]) for sample in samples)


@pytest.mark.parametrize(
    ("mode", "cache_dir", "left"),
    [("unlink", "cache", []), ("keep", None, [f"x-00{n}.tar._done_" for n in range(6)])],
)
def test_webdataset_takes_the_shards_of_a_directory_where_a_mode_says_what_becomes_of_them(
    filled, monkeypatch, tmp_path_factory, mode, cache_dir, left
):
    monkeypatch.chdir(tmp_path_factory.mktemp("other"))
    dataset = WebDataset(filled, mode=mode, cache_dir=cache_dir)  # a cache takes no shard ahead of its time
    dataset.stage(0).poll = None
    assert classes(dataset) == list(range(20))
    assert names(filled) == left


def test_without_a_mode_webdataset_divides_the_shards_of_a_directory_and_renames_none(filled):
    before = names(filled)
    dataset = WebDataset(filled, shardshuffle=True)
    streams = [dataset.stream(Context(worker=worker, workers=2)) for worker in (0, 1)]
    parts = [[sample for _, sample in stream] for stream in streams]
    assert all(parts)
    assert classes(parts[0] + parts[1]) == list(range(20))
    assert {sample["__url__"] for sample in parts[0]} <= {filled + name for name in before}
    assert names(filled) == before
    assert repr(dataset) == f"WebDataset({filled!r}, shardshuffle=True)"
    assert [sample["cls"] for sample in dataset] != [sample["cls"] for sample in dataset]


def test_resampled_webdataset_draws_from_a_directory_and_renames_nothing(filled):
    before = names(filled)
    for options in ({"resampled": True}, {"mode": "resampled"}):
        assert len(list(WebDataset(filled, **options).with_epoch(50))) == 50
    assert names(filled) == before


def test_of_a_directory_the_shards_are_read_and_nothing_else(filled):
    Path(filled + "my.txt.tar").write_bytes(Path(filled + "x-000.tar").read_bytes())
    for name in ("x.tar.partial", "x-000.tar.json", "x.tar._done_", "notes.txt"):
        Path(filled + name).write_text("no shard")
    Path(filled + "folder.tar").mkdir()
    read = {os.path.basename(sample["__url__"]) for sample in WebDataset(filled)}
    assert read == {"my.txt.tar", *(f"x-00{n}.tar" for n in (0, 2, 3, 4, 5))}  # x-001 has no sample


def test_claimed_shards_that_are_not_read_are_told_of(filled):
    os.rename(filled + "x-003.tar", f"{filled}x-003.tar._17_")
    with pytest.warns(UserWarning, match="1 shards in .* not read here .such as x-003.tar._") as caught:
        WebDataset(filled)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("mode", ["resample", "keep", "unlink"])
@pytest.mark.parametrize("end", ["break", "error", "cycle"])
def test_a_shard_whose_reading_is_left_off_gets_its_name_back(filled, mode, end):
    def check(sample):
        if end == "error":
            raise ArithmeticError
        return sample

    os.remove(filled + "x-001.tar")  # it has no sample, so it might be read to its end
    before = names(filled)
    source = iter(WebDataset(filled, mode=mode).map(check))
    with pytest.raises(ArithmeticError) if end == "error" else contextlib.nullcontext():
        next(source)
    assert names(filled) != before or end == "error"
    ring = [source]
    if end == "cycle":
        ring.append(ring)
    del source, ring
    gc.collect()
    assert names(filled) == before


def test_a_process_that_ends_gives_back_what_it_has_not_read(filled):
    code = (
        "import sys; from mpwds import WebDataset\n"
        "source = iter(WebDataset(sys.argv[1], mode='keep', empty_check=False)); next(source)"
    )
    subprocess.run([sys.executable, "-c", code, filled], check=True)
    assert not [name for name in names(filled) if re.search(r"\._\d+.*_$", name)]


def test_a_fork_does_not_hold_what_its_parent_has_given_back(folder):
    create(folder, range(1))
    source = iter(DirectoryShardList(folder, poll=None))
    next(source)
    child = os.fork()
    if child == 0:
        time.sleep(600)
    try:
        next(source)  # gives the shard its name back, and claims it again
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_fork_leaves_the_claims_of_its_parent_alone(folder):
    create(folder, range(1))
    source = iter(DirectoryShardList(folder, mode="unlink", poll=None))
    claimed = next(source)["url"]
    child = os.fork()
    if child == 0:
        del source
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert names(folder) == [os.path.basename(claimed)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DirectoryShardList("/tmp"), "end with a slash"),
        (lambda: DirectoryShardList("/no/such/place/"), "must be a directory"),
        (lambda: DirectoryShardList("/tmp/", mode="eat"), "mode must be one of 'resample', 'unlink', 'keep'"),
        (lambda: DirectoryShardList("/tmp/", select="newest"), "select must be one of 'random', 'oldest'"),
        (lambda: DirectoryShardList("/tmp/", fate="unlink"), "fate is a function"),
        (lambda: WebDataset("/no/such/place/"), "is not a directory on this machine"),
        (lambda: WebDataset("http://127.0.0.1:1/data/"), "is not a directory on this machine"),
        (lambda: WebDataset("s3://bucket/data/"), "is not a directory on this machine"),
        (lambda: WebDataset("./"), "no shards in ./"),
        (lambda: WebDataset(DirectoryShardList("/tmp/"), shardshuffle=True), "pass shardshuffle=False"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(tmp_path, monkeypatch, call, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        call()


def test_a_shard_is_described_by_its_claim_and_an_epoch_has_no_state(folder):
    create(folder, [1])
    shards = DirectoryShardList(folder, poll=None)
    stream = shards.stream()
    address, shard = next(stream)
    described = stream.describe(address)
    assert (str(described), described.url, stream.fetch(address)) == (f"shard {address}", shard["url"], shard)
    load = partial(stream.load_state_dict, {})
    for ask in (stream.state_dict, load, Splitter(iter).stream(stream).state_dict):
        with pytest.raises(LookupError, match="has no state: the shards it gave are gone"):
            ask()


@pytest.mark.parametrize("cache", [True, False])
def test_a_shard_is_not_removed_before_it_was_read_with_a_cache_either(folder, tmp_path_factory, cache):
    for number in range(3):
        with TarWriter(f"{folder}{number}.tar") as sink:
            sink.write({"__key__": str(number), "cls": number})
    cached = {"cache_dir": tmp_path_factory.mktemp("cache")} if cache else {}
    source = DirectoryShardList(folder, mode="unlink", poll=None)
    read = WebDataset(source, handler=ignore_and_continue, **cached)
    assert sorted(sample["cls"] for sample in read) == [b"0", b"1", b"2"]
    assert names(folder) == []
