"""The shard cache in one process: what it keeps, what it streams, what it removes."""

import contextlib
import fcntl
import io
import os
import pickle
import random
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from mpwds.errors import ShardError
from mpwds.storage.caches import fetch as cache_fetch
from mpwds.storage.caches.shard_cache import ShardCache, UncacheableShard
from tests.open_files import none_left
from tests.storage.members import read_members


def tar(size, seed=0):
    """The bytes of a tar archive of one member, ``size`` bytes in all."""
    data = random.Random(seed).randbytes(size - 1536)
    info = tarfile.TarInfo("000.bin")
    info.size = len(data)
    return info.tobuf() + data + bytes(1024)


class Remote:
    """Shards under URLs, opened by a function that counts, and that waits where it is told to."""

    def __init__(self, **shards):
        self.shards = shards
        self.opened = []
        self.gates = {}  # (shard, byte): what is waited for before that byte is given
        self.at_gate = threading.Event()
        self.errors = {}  # shard: (byte, exception)
        self.tell_size = False

    def __call__(self, url, offset=0):
        name = url.rpartition("/")[2].partition(".")[0]
        self.opened.append((name, offset))
        return io.BufferedReader(_Shard(self, name, offset), 512)


class _Shard(io.RawIOBase):
    def __init__(self, remote, name, offset):
        self._remote, self._shard, self._position = remote, name, offset
        if remote.tell_size:
            self.size = len(remote.shards[name])

    def readable(self):
        return True

    def readinto(self, buffer):
        position = self._position
        end = min(position + min(len(buffer), 512), len(self._remote.shards[self._shard]))
        for (name, byte), gate in self._remote.gates.items():
            if name == self._shard and position <= byte < end:
                self._remote.at_gate.set()
                assert gate.wait(600)
        at, error = self._remote.errors.get(self._shard, (None, None))
        if at is not None and at < end:
            raise error
        data = self._remote.shards[self._shard][position:end]
        buffer[: len(data)] = data
        self._position = end
        return len(data)


@pytest.fixture(autouse=True)
def _warnings_anew(monkeypatch):
    monkeypatch.setattr(cache_fetch, "_warned", set())


@pytest.fixture
def remote():
    return Remote(a=tar(10_240, 1), b=tar(10_240, 2), c=tar(10_240, 3), d=tar(10_240, 4))


def url(name, host="host"):
    return f"test://{host}/{name}.tar"


def by_last_part(address):
    return address.rpartition("/")[2]


@pytest.fixture
def make(tmp_path, remote):
    def make(size=-1, **options):
        options = {"url_to_name": by_last_part, "opener": remote, **options}
        return ShardCache(tmp_path / "cache", size, **options)

    return make


def read(cache, name, offset=0, **options):
    with cache.open(url(name) if "/" not in name else name, offset, **options) as stream:
        return stream.read()


def settle(cache, *but):
    """Waits until nothing is being fetched, apart from what is named."""
    for fetch in list(cache_fetch._running.values()):
        if fetch.entry.directory == cache.directory and fetch.url not in map(url, but):
            with fetch.changed:
                assert fetch.changed.wait_for(partial(has_gone, fetch), timeout=600)


def has_gone(fetch):
    """`ended` alone is true before the partial file is removed."""
    return cache_fetch._running.get(fetch.entry.partial) is not fetch


def fetch(cache, *names):
    """Reads shards, each when those before it are kept or not."""
    for name in names:
        read(cache, name)
        settle(cache)


def kept(cache):
    return sorted(name for name in os.listdir(cache.directory) if not name.startswith("."))


def partials(cache):
    return os.listdir(os.path.join(cache.directory, ".mpwds", "partial"))


# ---------------------------------------------------------------------------------------------- keeping


def test_a_shard_is_fetched_once_and_then_read_from_its_file(make, remote):
    cache = make()
    for _ in range(3):
        assert read(cache, "a") == remote.shards["a"]
        settle(cache)
    assert remote.opened == [("a", 0)]
    assert kept(cache) == ["a.tar"]
    with cache.open(url("a")) as complete:
        assert os.path.samefile(complete.fileno(), cache.path(url("a")))
    another = pickle.loads(pickle.dumps(make(opener=None)))  # with the directory
    assert read(another, "a") == remote.shards["a"]


def test_a_shard_and_its_mark_are_on_disk_before_it_gets_its_name(make, remote, monkeypatch):
    synced, fsync, rename = [], os.fsync, os.rename
    on_disk = {}

    def record(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2])
        fsync(descriptor)

    def name(source, target):
        on_disk[target.rpartition("/")[2]] = list(synced)
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "rename", name)
    cache = make()
    fetch(cache, "a")
    shard, mark = on_disk["a.tar"]
    assert mark == shard + ".mark"
    assert shard.endswith(".partial")


def test_reading_starts_at_the_offset_whether_the_shard_is_there_or_not(make, remote):
    cache = make()
    assert read(cache, "a", 5000) == remote.shards["a"][5000:]
    settle(cache)
    assert read(cache, "a", 6000) == remote.shards["a"][6000:]
    assert remote.opened == [("a", 0)]


def test_a_reader_gets_bytes_before_the_shard_is_complete_of_what_is_no_regular_file(make, remote):
    gate = remote.gates["a", 5120] = threading.Event()
    cache = make()
    with cache.open(url("a")) as stream:
        head = stream.read1(4000)
        assert head
        assert kept(cache) == []
        assert len(partials(cache)) == 1
        with pytest.raises(OSError, match="fileno"):
            stream.fileno()
        gate.set()
        assert head + stream.read() == remote.shards["a"]


def test_local_files_are_opened_as_they_are(tmp_path, make, remote):
    shard = tmp_path / "local.tar"
    shard.write_bytes(remote.shards["a"])
    cache = make(opener=None)
    for name in (str(shard), shard.as_uri()):
        with cache.open(name, 1000) as stream:
            assert stream.read() == remote.shards["a"][1000:]
        assert cache.path(name) == str(shard)
    assert not os.path.exists(cache.directory)


def test_a_shard_put_there_by_hand_is_used(make, remote):
    cache = make()
    os.makedirs(cache.directory)
    with open(cache.path(url("a")), "wb") as file:
        file.write(b"mine")
    assert read(cache, "a") == b"mine"
    assert remote.opened == []


def test_names_may_hold_directories(make, remote):
    cache = make(url_to_name=lambda address: address.partition("://")[2])
    assert read(cache, "a") == remote.shards["a"]
    settle(cache)
    assert cache.path(url("a")).endswith("cache/host/a.tar")
    assert os.path.getsize(cache.path(url("a"))) == len(remote.shards["a"])


def test_two_urls_of_the_same_name_get_different_files(make, remote):
    cache = make()
    read(cache, url("a", "train"))
    settle(cache)
    remote.shards["a"] = tar(10_240, 9)
    for _ in range(2):
        assert read(cache, url("a", "val")) == remote.shards["a"]
        settle(cache)
    assert remote.opened == [("a", 0)] * 2
    assert len(kept(cache)) == 2
    assert cache.path(url("a", "train")).endswith("/a.tar")
    assert cache.path(url("a", "val")) != cache.path(url("a", "train"))


def test_two_urls_of_the_same_name_that_are_fetched_at_once_get_different_files(make, remote):
    gate = remote.gates["a", 5120] = threading.Event()
    cache = make()
    with cache.open(url("a", "train")) as one, cache.open(url("a", "val")) as other:
        gate.set()
        assert one.read() == other.read() == remote.shards["a"]
    settle(cache)
    assert len(kept(cache)) == 2
    assert partials(cache) == []


# --------------------------------------------------------------------------------------------- failures


def test_an_error_of_the_stream_reaches_the_reader_and_nothing_is_kept(make, remote):
    remote.errors["a"] = (5120, OSError("the line is cut"))
    cache = make()
    with cache.open(url("a")) as stream, pytest.raises(OSError, match="the line is cut"):
        stream.read()
    settle(cache)
    assert kept(cache) == partials(cache) == []
    del remote.errors["a"]
    assert read(cache, "a") == remote.shards["a"]


def test_an_error_while_prefetching_is_left_to_whoever_opens_the_shard(make, remote):
    remote.errors["a"] = (0, OSError("the line is cut"))
    cache = make()
    assert cache.prefetch(url("a"))
    settle(cache)
    with cache.open(url("a")) as stream, pytest.raises(OSError, match="the line is cut"):
        stream.read()
    settle(cache)


@pytest.mark.parametrize("name", "ab")
def test_what_a_killed_process_left_is_removed_when_any_shard_is_fetched(make, remote, name):
    cache = make()
    partial = cache._entry(url(name)).partial
    os.makedirs(os.path.dirname(partial))
    for path in (partial, partial + ".mark"):
        with open(path, "wb") as file:
            file.write(b"damaged")
    assert read(cache, "a") == remote.shards["a"]
    settle(cache)
    assert kept(cache) == ["a.tar"]
    assert partials(cache) == []


@pytest.mark.parametrize("is_page", [True, False], ids=["an error page", "broken off without an error"])
def test_what_is_no_whole_shard_is_streamed_and_not_kept(make, remote, is_page):
    whole = remote.shards["a"]
    remote.shards["a"] = b"<html>Please log in</html>" if is_page else whole[:5000]
    cache = make()
    warned = pytest.warns(RuntimeWarning, match="not kept .* it is not a whole shard")
    with warned, cache.open(url("a")) as stream:
        assert stream.read() == remote.shards["a"]
        settle(cache)
    assert kept(cache) == partials(cache) == []
    remote.shards["a"] = whole
    assert read(cache, "a") == whole


def test_a_directory_that_cannot_be_made_is_warned_of_once_and_shards_are_streamed(tmp_path, make, remote):
    (tmp_path / "cache").write_text("a file")
    cache = make()
    with pytest.warns(RuntimeWarning, match="cannot be used, shards are streamed without it") as caught:
        assert read(cache, "a", 100) == remote.shards["a"][100:]
        assert read(cache, "b") == remote.shards["b"]
    assert len(caught) == 1
    assert remote.opened == [("a", 100), ("b", 0)]


def test_on_a_full_disk_the_stream_continues_where_the_cache_ends_with_a_warning(tmp_path):
    program = """if True:
        import io, resource, sys, warnings
        from mpwds.storage.caches.shard_cache import ShardCache
        data = bytes(range(256)) * 4096
        opened = []
        def opener(url, offset):
            opened.append(offset)
            return io.BytesIO(data[offset:])
        cache = ShardCache(sys.argv[1], opener=opener, validator=None)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with cache.open("test://host/a.tar", 1000) as stream:
                assert stream.read() == data[1000:]
        assert opened == [0, 1000], opened
        assert ["File too large" in str(each.message) for each in caught] == [True], caught
    """
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == []


# --------------------------------------------------------------------------------------------- the size


def test_the_shard_that_was_not_used_for_longest_goes_first(make, remote):
    cache = make(31_000)
    fetch(cache, "a", "b", "c", "a", "d")
    assert kept(cache) == ["a.tar", "c.tar", "d.tar"]


def test_a_shard_that_is_read_stays(make, remote):
    cache = make(31_000)
    fetch(cache, "a", "b", "c")
    first, stream = cache.open(url("a")), cache.open(url("a"))
    first.close()
    with stream:
        fetch(cache, "b", "c", "d")
        assert kept(cache) == ["a.tar", "c.tar", "d.tar"]
        assert stream.read() == remote.shards["a"]


def test_a_shard_that_is_needed_whole_may_be_removed_while_it_is_open(make, remote):
    cache = make(15_000)
    with cache.open_whole(url("a")) as stream:
        cache.open_whole(url("b")).close()
        assert kept(cache) == ["b.tar"]
        assert stream.read() == remote.shards["a"]


def test_a_shard_that_is_needed_whole_waits_for_room_while_another_is_fetched(make, remote):
    remote.tell_size = True
    remote.gates["a", 5_000] = threading.Event()
    cache = make(15_000)
    with cache.open(url("a")), ThreadPoolExecutor() as pool:
        waiting = pool.submit(cache.open_whole, url("b"))
        time.sleep(0.2)  # it finds no room
        remote.gates["a", 5_000].set()
        with waiting.result(600) as stream:
            assert stream.read() == remote.shards["b"]
    assert kept(cache) == ["b.tar"]


@pytest.mark.parametrize("tell_size", [False, True])
def test_a_shard_larger_than_the_cache_is_streamed_with_one_warning(make, remote, tell_size):
    remote.tell_size = tell_size
    remote.shards["a"] = tar(40_960)
    remote.shards["b"] = tar(40_960)
    cache = make(31_000)
    fetch(cache, "c")
    with pytest.warns(RuntimeWarning, match="has no room for it") as caught:
        assert read(cache, "a") == remote.shards["a"]
        assert read(cache, "b", 35_000) == remote.shards["b"][35_000:]
    assert len(caught) == 1
    assert [name for name, _ in remote.opened] == ["c", "a", "a", "b", "b"]
    settle(cache)
    assert "c.tar" in kept(cache) or not tell_size
    assert partials(cache) == []


def test_files_that_are_not_of_the_cache_count_and_stay(make, remote):
    cache = make(31_000)
    os.makedirs(cache.directory)
    with open(os.path.join(cache.directory, "notes.txt"), "wb") as file:
        file.write(bytes(15_000))
    for name in "abc":
        assert read(cache, name) == remote.shards[name]
        settle(cache)
    assert kept(cache) == ["c.tar", "notes.txt"]


def test_what_is_being_fetched_counts(make, remote):
    gate = remote.gates["b", 10_000] = threading.Event()
    remote.tell_size = True
    cache = make(25_000)
    fetch(cache, "a")
    with cache.open(url("b")) as stream:
        stream.read(100)
        read(cache, "c")
        settle(cache, "b")
        assert kept(cache) == ["c.tar"]
        gate.set()
        stream.read()
    settle(cache)
    assert kept(cache) == ["b.tar", "c.tar"]


@pytest.mark.filterwarnings("ignore:.*cache")
def test_a_shard_is_streamed_while_too_few_files_can_be_opened_and_kept_later(make, remote):
    cache = make()
    for spare in range(4):
        with none_left(spare):
            assert read(cache, "a") == remote.shards["a"]
            settle(cache)
    fetch(cache, "a")
    assert kept(cache) == ["a.tar"]
    assert partials(cache) == []


def test_a_shard_is_streamed_while_no_thread_can_be_started_and_kept_later(make, remote, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    cache = make()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.warns(RuntimeWarning, match="cannot be used, shards are streamed without it: .*thread"):
            assert read(cache, "a") == remote.shards["a"]
        assert not cache.prefetch(url("a"))
    assert kept(cache) == []
    assert read(cache, "a") == remote.shards["a"]
    settle(cache)
    assert kept(cache) == ["a.tar"]


# -------------------------------------------------------------------------------------- fetching ahead


def test_a_prefetched_shard_is_there_when_it_is_opened(make, remote):
    cache = make()
    assert cache.prefetch(url("a"))
    settle(cache)
    assert kept(cache) == ["a.tar"]
    assert not cache.prefetch(url("a"))
    assert read(cache, "a") == remote.shards["a"]
    assert remote.opened == [("a", 0)]


@pytest.mark.parametrize("begun_by", ["prefetching", "a reader"])
def test_a_shard_that_is_being_fetched_is_followed(make, remote, begun_by):
    gate = remote.gates["a", 5120] = threading.Event()
    cache = make()
    with contextlib.ExitStack() as stack:
        if begun_by == "prefetching":
            cache.prefetch(url("a"))
        else:
            first = stack.enter_context(cache.open(url("a"), 100))
        with cache.open(url("a")) as stream:
            gate.set()
            assert stream.read() == remote.shards["a"]
        assert begun_by == "prefetching" or first.read() == remote.shards["a"][100:]
    assert remote.opened == [("a", 0)]


def test_a_shard_that_another_process_fetches_is_not_prefetched(make, remote):
    cache = make()
    entry = cache_fetch.CacheEntry.of(cache.directory, url("a"), by_last_part)
    os.makedirs(os.path.dirname(entry.partial))
    with open(entry.partial, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not cache.prefetch(url("a"))
    assert remote.opened == []


def test_no_more_are_prefetched_at_a_time_than_asked_for(make, remote):
    gates = [remote.gates.setdefault((name, 0), threading.Event()) for name in "abc"]
    cache = make(prefetch_shards=2)
    assert [cache.prefetch(url(name)) for name in "abc"] == [True, True, False]
    for gate in gates:
        gate.set()
    settle(cache)
    assert not make(prefetch_shards=0).prefetch(url("c"))


def test_no_more_than_prefetch_shards_are_left_to_the_background(make, remote):
    gates = [remote.gates.setdefault((name, 5120), threading.Event()) for name in "ab"]
    cache = make(prefetch_shards=1)
    for name in "ab":
        with cache.open(url(name)) as stream:
            stream.read(100)
    for gate in gates:
        gate.set()
    settle(cache)
    assert kept(cache) == ["a.tar"]
    assert partials(cache) == []


def test_a_reader_that_joins_a_fetch_before_it_has_stopped_goes_on_with_it(make, remote):
    gate = remote.gates["a", 5120] = threading.Event()
    cache = make(prefetch_shards=0)
    leaves = cache.open(url("a"))
    assert remote.at_gate.wait(600)
    leaves.close()
    with cache.open(url("a")) as stream:
        gate.set()
        assert stream.read() == remote.shards["a"]
    settle(cache)
    assert (remote.opened, kept(cache)) == ([("a", 0)], ["a.tar"])


def test_what_is_not_to_be_kept_is_streamed_from_its_offset_unless_it_is_there(make, remote):
    cache = make()
    assert read(cache, "a", 5000, keep=False) == remote.shards["a"][5000:]
    assert remote.opened == [("a", 5000)]
    fetch(cache, "a")
    assert read(cache, "a", 5000, keep=False) == remote.shards["a"][5000:]
    assert remote.opened == [("a", 5000), ("a", 0)]


def test_nothing_is_open_when_everything_is_closed(make, remote, nothing_left):
    cache = make()
    read(cache, "a")
    cache.prefetch(url("b"))
    settle(cache)
    with cache.open(url("a")) as stream:
        stream.read(10)


def test_verbose_tells_what_is_fetched_and_removed(make, capfd):
    cache = make(11_000, verbose=True)
    fetch(cache, "a", "b")
    said = capfd.readouterr().err
    assert f"# downloading {url('a')} to {cache.path(url('a'))}" in said
    assert f"# deleting {cache.path(url('a'))}" in said


def test_a_file_that_became_shorter_is_fetched_again(make, remote):
    cache = make()
    fetch(cache, "a")
    os.truncate(cache.path(url("a")), 5000)
    with pytest.warns(RuntimeWarning, match="is shorter than when it was fetched"):
        assert read(cache, "a") == remote.shards["a"]
    settle(cache)
    assert read(cache, "a") == remote.shards["a"]
    assert remote.opened == [("a", 0)] * 2


def test_an_archive_without_an_end_is_read_from_a_stream_that_tells_when_it_breaks_off(make, remote):
    remote.shards["a"] = remote.shards["a"][:-1024]
    for _ in range(2):  # while it is fetched, and from its file
        with pytest.warns(RuntimeWarning, match="without the end-of-archive blocks"):
            assert len(list(read_members(url("a"), open=make().open))) == 1
        settle(make())
    assert remote.opened == [("a", 0)]


@pytest.mark.filterwarnings("ignore:.*not kept in the cache")
def test_a_download_that_may_be_cut_off_is_an_error_and_is_not_kept(web, tmp_path):
    """The server closes the connection between two members, and has not said how long the shard is."""
    web.files["/x.tar"] = tar(5120)[:4096] + tar(5120)
    web.plan = [{"sends_length": False, "cut": 4096}] * 2
    cache = ShardCache(tmp_path / "cache")
    with pytest.raises(UncacheableShard, match="not a whole shard"):
        cache.open_whole(web.url())
    with pytest.raises(ShardError, match="is cut off"):
        list(read_members(web.url(), open=cache.open))
    while cache_fetch._running:
        time.sleep(0.01)
    assert not os.path.exists(cache.path(web.url()))
    assert len(list(read_members(web.url(), open=cache.open))) == 2


@pytest.mark.filterwarnings("ignore:.*not kept in the cache")
def test_who_waited_for_a_refused_shard_does_not_take_its_half_for_whole(tmp_path):
    entry = cache_fetch.CacheEntry.of(str(tmp_path), url("a"))
    os.makedirs(os.path.dirname(entry.partial))
    with open(entry.partial, "wb") as file:
        file.write(tar(5120)[:4096])
    os.chmod(entry.partial, 0o400)
    with pytest.raises(ShardError, match="is cut off"):
        list(read_members(url("a"), open=lambda *place: cache_fetch.wait_for_other(url("a"), entry)))
