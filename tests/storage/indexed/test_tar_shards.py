"""Samples of tar shards by number: the same as in order, from any format, with errors that say where."""

import bz2
import errno
import gzip
import io
import multiprocessing
import os
import pickle
import shutil
import tarfile
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpwds.errors import ShardError, StreamError
from mpwds.pipeline.sources.samples import read_samples
from mpwds.storage.caches import locks
from mpwds.storage.caches.shard_cache import ShardCache
from mpwds.storage.indexed.describing import describe_shard
from mpwds.storage.indexed.offsets import Offsets, find_offsets, load_or_find, to_text
from mpwds.storage.indexed.tar_shards import MappedShard, TarShards
from mpwds.storage.streams.gopen import open_at
from tests.open_files import open_files
from tests.storage.members import FORMATS


def write_tar(path, members, **options):
    """Writes members (name, content); content ``None`` makes a directory."""
    with tarfile.open(path, "w", **options) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.mtime = 1.5  # which pax archives write in a header of its own
            if content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content or b""))
    return str(path)


def digits(first, count, size=0):
    """Samples of a picture (``size`` bytes more) and a class, with the class first in every second sample."""
    for n in range(first, first + count):
        pair = [(f"{n:04d}.cls", b"%d" % n), (f"{n:04d}.Seg.PNG", bytes(size) + b"picture %d" % n)]
        yield from reversed(pair) if n % 2 else pair


@pytest.fixture
def two(tmp_path):
    """Two shards of three and of four samples."""
    return [
        write_tar(tmp_path / "a.tar", digits(0, 3)),
        write_tar(tmp_path / "b.tar", digits(3, 4), format=tarfile.USTAR_FORMAT),
    ]


LONG = [(f"{'g' * 60}/{'h' * 60}{number}.cls", b"%d" % number) for number in range(3)]
keys = st.sampled_from(["a", "b", "dir/c", "dir.d/e", "_f", "__meta__", "g" * 60 + "/ü" + "h" * 80])
members = st.lists(
    st.tuples(
        st.tuples(keys, st.sampled_from(["", ".x", ".Y.gz", ".z", "/sub.x"])).map("".join),
        st.one_of(
            st.none(), st.binary(max_size=9), st.sampled_from([bytes(512), bytes(5000), bytes(70_000)])
        ),
    ),
    max_size=12,
    unique_by=lambda member: member[0],
)


@settings(max_examples=60)
@given(members=members, format=st.sampled_from(FORMATS), parts=st.integers(1, 2))
@example(members=LONG, format=tarfile.PAX_FORMAT, parts=1)
@example(members=LONG, format=tarfile.GNU_FORMAT, parts=1)
@example(members=LONG, format=tarfile.USTAR_FORMAT, parts=1)
def test_by_number_comes_what_comes_in_order(tmp_path_factory, members, format, parts):
    path = str(tmp_path_factory.mktemp("shards") / "x.tar")
    write_tar(path, members, format=format)
    with open(path, "rb") as file:
        whole = file.read()
    with open(path, "wb") as file:
        file.write(whole * parts)  # `cat a.tar b.tar` is an archive, too
    try:
        expected = [sample for _, _, sample in read_samples(path)]
    except ShardError:  # a key comes back in the second part, right behind itself
        return
    shards = TarShards([path])
    assert len(shards) == len(expected)
    assert [shards.read(0, n) for n in range(len(expected))] == expected


def test_samples_of_a_list_of_shards(two):
    shards = TarShards(two, [3, 4])
    assert shards.lengths == [3, 4]
    assert shards.read(1, 2) == {
        "__key__": "0005",
        "__url__": two[1],
        "cls": b"5",
        "seg.png": b"picture 5",
    }
    assert (shards.accesses, shards.misses) == (1, 1)


def test_extensions_can_be_had_as_they_are_written(two):
    members = TarShards(two).members(0, 0)
    assert members == {"__key__": "0000", ".cls": b"0", ".Seg.PNG": b"picture 0"}


@pytest.mark.parametrize("index", [-1, 3])
def test_a_number_beyond_the_shard_is_an_error(two, index):
    with pytest.raises(IndexError, match=f"a.tar has 3 samples, there is no sample {index}"):
        TarShards(two).read(0, index)


def test_lengths_of_other_shards_and_no_open_file_are_errors(two):
    with pytest.raises(ValueError, match="there are 2 shards and 1 lengths"):
        TarShards(two, [3])
    with pytest.raises(ValueError, match="open_files must be at least 1, got 0"):
        TarShards(two, open_files=0)


def test_the_offsets_are_kept_beside_the_shard_in_a_few_bytes(tmp_path):
    path = write_tar(tmp_path / "x.tar", digits(0, 500))
    TarShards([path]).read(0, 0)
    kept = tmp_path / ".mpwds/x.tar.offsets"
    assert kept.stat().st_size < 2100
    assert sorted(os.listdir(kept.parent)) == ["x.tar.offsets"]


def test_kept_offsets_are_used(two, tmp_path, monkeypatch):
    alike = of_sizes(tmp_path / "alike.tar", [1, 600, 2000, 7])
    numbers = [(shard, n) for shard, count in enumerate((3, 4, 4)) for n in range(count)]
    expected = [TarShards([*two, alike]).read(*number) for number in numbers]
    monkeypatch.setattr("mpwds.storage.indexed.offsets.find_offsets", None)  # fails if it is called
    assert [TarShards([*two, alike]).read(*number) for number in numbers] == expected


def test_offsets_of_an_earlier_version_of_the_shard_are_not_used(tmp_path):
    path = write_tar(tmp_path / "x.tar", digits(0, 3))
    assert len(TarShards([path])) == 3
    write_tar(path, digits(0, 5, size=100))
    assert TarShards([path]).read(0, 4)["cls"] == b"4"


def of_sizes(path, sizes):
    """A shard of samples of one field; archives of the same sizes in another order are equally large."""
    return write_tar(path, [(f"{n}.bin", b"%d" % n * size) for n, size in enumerate(sizes)])


@pytest.mark.parametrize("keeps_time", [False, True])
def test_offsets_of_an_equally_large_shard_are_not_used(tmp_path, keeps_time):
    """Its first and last sample are at the same places, and `rsync -t` keeps its time."""
    path = of_sizes(tmp_path / "x.tar", [1, 600, 2000, 1])
    before = os.stat(path)
    assert len(TarShards([path])) == 4
    of_sizes(tmp_path / "new", [1, 2000, 600, 1])
    os.utime(tmp_path / "new", ns=(0, before.st_mtime_ns if keeps_time else 0))
    os.replace(tmp_path / "new", path)
    assert os.stat(path).st_size == before.st_size
    assert [TarShards([path]).read(0, n)["bin"] for n in (1, 2, 3)] == [b"1" * 2000, b"2" * 600, b"3"]


@pytest.mark.parametrize(
    ("mine", "its"), [([1, 600, 1], [600, 1, 1]), ([1, 1, 600], [1, 600, 1]), ([1, 600], [1, 600])]
)
def test_offsets_that_disagree_with_the_first_or_last_header_are_made_anew(tmp_path, mine, its):
    """Where a file system does not tell two shards apart: here by what it says of the file."""
    paths = of_sizes(tmp_path / "a.tar", mine), of_sizes(tmp_path / "b.tar", its)
    if mine == its:
        write_tar(paths[1], [(f"{n}.jpg", b"%d" % n * size) for n, size in enumerate(its)])
    for path in paths:
        shard = MappedShard(path, open_at(path))
        shard.version = (1,)
        assert load_or_find(shard, [str(tmp_path / "kept")]) == (find_offsets(shard), True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:8],
        lambda data: data[:-6],
        lambda data: b"nonsense" * 40,
        lambda data: data[:28] + bytes(len(data) - 28),
        lambda data: b"mpwdsof3" + data[8:],  # of another format
    ],
)
def test_a_damaged_file_of_offsets_is_made_anew(two, tmp_path, damage):
    expected = TarShards(two).read(0, 1)
    kept = tmp_path / ".mpwds/a.tar.offsets"
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert TarShards(two).read(0, 1) == expected
    assert kept.read_bytes() == whole


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (1, "tar header at offset 512 of .*a.tar has checksum"),
        (0, "the offsets of .*a.tar are of another shard: at 0, there is no sample of 0 bytes"),
        (3, "the offsets of .*a.tar are of another shard: at 0, there is no sample of 1536 bytes"),
    ],
)
def test_carried_offsets_that_point_elsewhere_are_an_error_with_the_place(two, wrong, message):
    starts = array("I", [0, wrong, 12, 18])  # where the second sample begins
    carried = [{"offsets": to_text(Offsets(starts), os.path.getsize(two[0]))}]
    with pytest.raises(ShardError, match=message):
        TarShards(two, described=carried).read(0, int(wrong == 1))


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["0.txt", "0.cls", "1.txt", "2.txt"], 0),  # a member more
        (["0.txt", "1.txt", "1.cls", "2.txt"], 1),
        (["0.txt", "1.txt", "2.txt", "3.txt"], 2),  # the padding took up another sample
    ],
)
def test_the_first_sample_that_offsets_of_another_shard_of_the_same_size_miss_is_an_error(
    tmp_path, names, first
):
    contents = [("0.txt", b"x"), ("1.txt", b"x"), ("2.txt", b"x" * 600)]
    path = write_tar(tmp_path / "x.tar", contents, format=tarfile.USTAR_FORMAT)
    carried = [{"offsets": describe_shard(path, offsets=True)["offsets"]}]
    write_tar(path, [(name, b"x") for name in names], format=tarfile.USTAR_FORMAT)
    shards = TarShards([path], described=carried)
    assert [shards.read(0, n)["txt"] for n in range(first)] == [b"x"] * first
    with pytest.raises(ShardError, match="the offsets of .*x.tar are of another shard"):
        shards.read(0, first)


def test_a_shard_that_ends_between_two_members_may_be_cut_off(two):
    os.truncate(two[1], 6 * 512)
    with pytest.warns(RuntimeWarning, match="b.tar ends without the end-of-archive blocks: it may be trunc"):
        assert len(TarShards(two[1:])) == 2


def test_where_nothing_can_be_written_the_offsets_stay_in_memory(two, tmp_path, monkeypatch):
    (tmp_path / ".mpwds").write_bytes(b"no folder")
    shards = TarShards(two)
    assert shards.read(1, 3)["cls"] == b"6"
    shards.close()
    with monkeypatch.context() as patch:
        patch.setattr("mpwds.storage.indexed.offsets.find_offsets", None)  # fails if it is called
        assert pickle.loads(pickle.dumps(shards)).read(1, 3)["cls"] == b"6"
    write_tar(two[1], [("new.cls", b"1"), *((f"{n}.cls", b"x" * 600) for n in range(3))])
    assert [shards.read(1, n)["cls"][:1] for n in range(4)] == [b"1", b"x", b"x", b"x"]


def test_also_where_those_of_an_earlier_shard_cannot_be_replaced(two, tmp_path, monkeypatch):
    TarShards(two).read(1, 3)
    write_tar(two[1], [(f"{n}.cls", b"%d" % n * 600) for n in range(5)])  # a version without offsets
    monkeypatch.setattr("mpwds.storage.indexed.offsets._store", raise_read_only)
    shards = TarShards(two)
    assert shards.read(1, 3)["cls"] == b"3" * 600
    shards.close()
    monkeypatch.setattr("mpwds.storage.indexed.offsets.find_offsets", None)  # fails if it is called
    assert shards.read(1, 4)["cls"] == b"4" * 600


def raise_read_only(*_):
    raise OSError(errno.EROFS, "read-only")


def test_next_they_are_kept_in_the_folder_of_the_cache(two, tmp_path):
    (tmp_path / ".mpwds").write_bytes(b"no folder")
    cache = ShardCache(tmp_path / "cache")
    assert TarShards(two, cache=cache).read(1, 3)["cls"] == b"6"
    (kept,) = os.listdir(tmp_path / "cache/.mpwds")
    assert kept.startswith("b-")
    assert kept.endswith(".tar.offsets")


def test_only_some_files_are_open_at_a_time(tmp_path, nothing_left):
    paths = [write_tar(tmp_path / f"{n}.tar", digits(n, 1)) for n in range(30)]
    shards = TarShards(paths, [1] * 30, open_files=4)
    for n in range(30):
        assert shards.read(n, 0)["cls"] == b"%d" % n
        assert len(open_files(tmp_path)) <= 4
    shards.close()
    assert not open_files(tmp_path)
    assert shards.read(7, 0)["cls"] == b"7"
    shards.close()


def test_threads_read_while_others_close(tmp_path):
    paths = [write_tar(tmp_path / f"{n}.tar", digits(n, 1)) for n in range(8)]
    shards = TarShards(paths, [1] * 8, open_files=1)

    def read(first):
        return [shards.read((first + step) % 8, 0)["cls"] for step in range(300)]

    with ThreadPoolExecutor(4) as threads:
        for first, found in enumerate(threads.map(read, range(4))):
            assert found == [b"%d" % ((first + step) % 8) for step in range(300)]


def test_another_number_of_samples_than_described_is_an_error_with_both(two):
    with pytest.raises(ShardError, match=r"b\.tar has 4 samples, its description says 5"):
        TarShards(two, [3, 5]).read(1, 0)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "x.tar is empty"),
        (b"<html>not found</html>", "22 bytes are left of a header's 512"),
        (b"x" * 5000, "the shard is damaged or not a tar file"),
        (gzip.compress(b"x" * 5000), r"x\.tar is compressed \(gzip\).*decompress it"),
        (bz2.compress(b"x" * 5000), r"x\.tar is compressed \(bzip2\).*decompress it"),
    ],
    ids=["empty", "a page", "anything", "gzip", "bzip2"],
)
def test_what_is_no_tar_file_is_an_error(tmp_path, content, problem):
    path = tmp_path / "x.tar"
    path.write_bytes(content)
    with pytest.raises(ShardError, match=problem):
        TarShards([str(path)]).read(0, 0)


def test_a_truncated_shard_is_an_error_with_the_offset(two):
    os.truncate(two[1], 512 * 5)
    with pytest.raises(ShardError, match=r"b\.tar is truncated or damaged in the member at offset 2048"):
        TarShards(two).read(1, 0)


def test_two_members_of_one_name_are_an_error(tmp_path):
    path = write_tar(tmp_path / "x.tar", [("a.txt", b"1"), ("a.TXT", b"2")])
    with pytest.raises(ShardError, match="sample 'a' has two members 'txt'"):
        TarShards([path]).read(0, 0)


@pytest.mark.parametrize("format", FORMATS)
def test_where_all_samples_are_alike_their_headers_are_not_read_again(tmp_path, monkeypatch, format):
    members = [
        (f"d/{n}.{suffix}", bytes(n) + b"x" * size)
        for n in range(9)
        for suffix, size in (("A.x", 0), ("y", 20_000))
    ]
    path = write_tar(tmp_path / "x.tar", members, format=format)
    expected = [sample for _, _, sample in read_samples(path)]
    len(TarShards([path]))
    monkeypatch.setattr("mpwds.storage.indexed.tar_shards.find_members", None)  # fails if it is called
    assert [TarShards([path]).read(0, n) for n in range(9)] == expected


@pytest.mark.parametrize("shard", ["alike", "mixed"])
def test_large_members_can_be_had_as_views(tmp_path, shard):
    members = [("0.cls", b"0"), ("0.png", bytes(20_000))] + [("1.cls", b"1")] * (shard == "mixed")
    shards = TarShards([write_tar(tmp_path / "x.tar", members)])
    found = shards.members(0, 0, large=lambda view: view)
    assert {suffix: type(data) for suffix, data in found.items()} == {
        ".cls": bytes,
        ".png": memoryview,
        "__key__": str,
    }


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["{}\udce9.txt", "{}.t\udce9"])
def test_names_need_not_be_utf_8(tmp_path, name, format):
    members = [(name.format(n), b"%d" % n) for n in range(3)]
    path = write_tar(tmp_path / "a.tar", members, format=format, errors="surrogateescape")
    found = [TarShards([path]).read(0, number) for number in range(3)]
    key, extension = name.split(".")
    assert [sample["__key__"] for sample in found] == [key.format(n) for n in range(3)]
    assert [bytes(sample[extension]) for sample in found] == [b"0", b"1", b"2"]


def test_keys_and_extensions_may_have_letters_of_several_bytes(tmp_path):
    members = [(f"clé/{n}.{suffix}", b"x") for n in range(3) for suffix in ("größe", "cls")]
    path = write_tar(tmp_path / "x.tar", members, format=tarfile.GNU_FORMAT)
    assert [TarShards([path]).read(0, n)["__key__"] for n in range(3)] == ["clé/0", "clé/1", "clé/2"]


class TestRemote:
    @pytest.fixture
    def served(self, web, two):
        for path in two:
            with open(path, "rb") as file:
                web.files["/" + os.path.basename(path)] = file.read()
        return [web.url("/a.tar"), web.url("/b.tar")]

    def test_a_copy_is_kept_with_its_offsets(self, served, web, tmp_path):
        shards = TarShards(served, [3, 4], cache=ShardCache(tmp_path / "cache"))
        for n in (3, 0, 2):
            assert shards.read(1, n)["cls"] == b"%d" % (3 + n)
        assert [path for _, path, _ in web.requests] == ["/b.tar"]
        kept = {"b.tar.mark", "b.tar.offsets", "lock", "partial"}
        assert set(os.listdir(tmp_path / "cache/.mpwds")) == kept

    def test_the_cache_stays_within_its_size(self, served, tmp_path):
        cache = ShardCache(tmp_path / "cache", size_bytes=25_000)  # of 20,480 and 10,240
        shards = TarShards(served, [3, 4], cache=cache)
        for _ in range(2):
            assert shards.read(0, 0)["cls"] == b"0"
            assert shards.read(1, 0)["cls"] == b"3"
            assert [name for name in os.listdir(tmp_path / "cache") if name != ".mpwds"] == ["b.tar"]
        assert "a.tar.offsets" not in os.listdir(tmp_path / "cache/.mpwds")

    def test_shards_that_are_open_make_room_for_those_of_other_processes(self, served, tmp_path):
        """What others hold open can be removed; they read on, and let go of it when they open the next."""
        cache = ShardCache(tmp_path / "cache", size_bytes=25_000)
        idle, busy = (TarShards(served, [3, 4], cache=cache) for _ in range(2))
        assert idle.read(0, 0)["cls"] == b"0"
        assert busy.read(1, 0)["cls"] == b"3"
        assert idle.read(0, 1)["cls"] == b"1"
        assert "a.tar (deleted)" in Path("/proc/self/maps").read_text()
        assert idle.read(1, 1)["cls"] == b"4"
        assert "a.tar (deleted)" not in Path("/proc/self/maps").read_text()

    def test_shards_that_were_opened_to_be_counted_are_closed(self, served, tmp_path):
        shards = TarShards(served, cache=ShardCache(tmp_path / "cache"))
        assert len(shards) == 7
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()

    def test_a_shard_that_the_cache_cannot_keep_is_an_error_with_the_reason(self, served, tmp_path, recwarn):
        cache = ShardCache(tmp_path / "cache", size_bytes=5_000)
        with pytest.raises(
            StreamError,
            match=r"a\.tar is needed whole, and the cache .* cannot keep it.* room .*5,000 bytes that it may",
        ):
            TarShards(served, [3, 4], cache=cache).read(0, 0)
        assert [str(each.message) for each in recwarn if "is streamed" in str(each.message)] == []

    def test_without_a_cache_is_an_error_that_says_what_to_do(self, served):
        with pytest.raises(ValueError, match=r"a\.tar is not a local file.*give a cache"):
            TarShards(served, [3, 4]).read(0, 0)


def test_one_process_finds_the_offsets_while_others_wait(two, tmp_path, monkeypatch):
    """Each process notes that it looks for offsets, and takes its time."""
    notes = tmp_path / "notes"

    def find(shard):
        with notes.open("a") as file:
            file.write("looked\n")
        time.sleep(0.3)
        return find_offsets(shard)

    def read():
        assert TarShards(two).read(1, 2)["cls"] == b"5"

    monkeypatch.setattr("mpwds.storage.indexed.offsets.find_offsets", find)
    processes = [multiprocessing.get_context("fork").Process(target=read) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert notes.read_text() == "looked\n"


def test_a_process_that_is_killed_meanwhile_leaves_the_work_to_the_next(two, tmp_path, monkeypatch):
    monkeypatch.setattr("mpwds.storage.indexed.offsets.find_offsets", lambda shard: os._exit(3))
    process = multiprocessing.get_context("fork").Process(target=TarShards(two).read, args=(0, 0))
    process.start()
    process.join()
    assert process.exitcode == 3
    monkeypatch.undo()
    assert TarShards(two).read(0, 0)["cls"] == b"0"
    assert os.listdir(tmp_path / ".mpwds") == ["a.tar.offsets"]


def test_a_folder_that_is_removed_meanwhile_is_made_again(two, tmp_path, monkeypatch):
    lock, removed = locks.lock, []

    def remove_once_and_lock(path, **options):
        if not removed:
            removed.append(shutil.rmtree(os.path.dirname(path)))
        return lock(path, **options)

    monkeypatch.setattr(locks, "lock", remove_once_and_lock)
    assert TarShards(two).read(0, 0)["cls"] == b"0"
    assert os.listdir(tmp_path / ".mpwds") == ["a.tar.offsets"]


def test_shards_stay_open_while_there_is_room(tmp_path):
    paths = [write_tar(tmp_path / f"{n}.tar", digits(n, 1)) for n in range(4)]
    shards = TarShards(paths, [1] * 4, open_files=5)
    for n in [0, 1, 2, 3] * 3:
        shards.read(n, 0)
    assert (shards.accesses, shards.misses) == (12, 4)
