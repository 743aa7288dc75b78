"""The size of a cache directory: reservations, eviction, counting; and webdataset's clean-up."""

import io
import os

import pytest

from mpwds.cache import LRUCleanup
from mpwds.storage.caches import fetch as cache_fetch
from mpwds.storage.caches.directory import SizeLimit, locked_usage
from mpwds.storage.caches.fetch import CacheEntry
from mpwds.storage.caches.locks import lock, release
from mpwds.storage.caches.shard_cache import ShardCache


@pytest.fixture
def files(tmp_path):
    for number in range(6):
        folder = tmp_path / ("deep" if number % 2 else ".")
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.tar").write_bytes(bytes(1000))
    return tmp_path


def by_number(path):
    return int(os.path.basename(path).split(".")[0])


def names(folder):
    return sorted(path.name for path in folder.rglob("*.tar"))


@pytest.mark.parametrize(("size", "kept"), [(6000, range(6)), (3500, (3, 4, 5)), (0, ())])
def test_the_least_recently_used_files_go_until_the_rest_is_small_enough(files, size, kept):
    LRUCleanup(str(files), size, keyfn=by_number).cleanup()
    assert names(files) == [f"{number}.tar" for number in kept]
    LRUCleanup(files / "nowhere", size).cleanup()


def test_the_size_and_the_directory_may_be_set_later(files):
    cleanup = LRUCleanup(keyfn=by_number, interval=None)
    with pytest.raises(ValueError, match="no directory to clean up"):
        cleanup.cleanup()
    cleanup.set_cache_dir(files)
    cleanup.cache_size = 1000.0
    cleanup.cleanup()
    assert names(files) == ["5.tar"]


def test_a_second_clean_up_within_the_interval_does_nothing(files):
    cleanup = LRUCleanup(files, 3500, keyfn=by_number, interval=1000)
    cleanup.cleanup()
    (files / "9.tar").write_bytes(bytes(1000))
    cleanup.cleanup()
    assert names(files) == ["3.tar", "4.tar", "5.tar", "9.tar"]


def test_verbose_tells_what_goes(files, capsys):
    LRUCleanup(files, 5000, keyfn=by_number, verbose=True).cleanup()
    assert capsys.readouterr().err == f"# deleting {files / './0.tar'}\n".replace("/./", "/")


def _settle():
    for fetch in list(cache_fetch._running.values()):
        with fetch.changed:
            assert fetch.changed.wait_for(lambda fetch=fetch: fetch.ended, timeout=600)


def test_what_a_shard_cache_is_reading_stays(tmp_path):
    cache = ShardCache(tmp_path, validator=None, opener=lambda url, offset: io.BytesIO(bytes(1000)))
    for name in ("0", "1"):
        with cache.open(f"http://host/{name}.tar") as stream:
            assert len(stream.read()) == 1000
        _settle()
    with cache.open("http://host/0.tar") as stream:
        LRUCleanup(tmp_path, 0, keyfn=by_number).cleanup()
        assert names(tmp_path) == ["0.tar"]
        assert stream.read() == bytes(1000)
    LRUCleanup(tmp_path, 0, keyfn=by_number).cleanup()
    assert names(tmp_path) == []


@pytest.fixture
def directory(tmp_path):
    (tmp_path / ".mpwds" / "partial").mkdir(parents=True)
    return str(tmp_path)


@pytest.fixture
def begun(directory):
    """Makes the partial file of a shard, locked as by the process that fetches it; gives its path."""
    locks = []

    def begun(name, size=0):
        partial = CacheEntry.of(directory, f"https://host/{name}").partial
        locks.append(lock(partial, create=True))
        os.ftruncate(locks[-1], size)
        return partial

    yield begun
    for descriptor in locks:
        release(descriptor)


def complete(directory, name, size):
    entry = CacheEntry.of(directory, f"https://host/{name}")
    with open(entry.partial, "wb") as file:
        file.write(bytes(size))
    entry.publish()
    return entry


def reserve(directory, limit, partial, size):
    return SizeLimit(directory, limit).reserve(partial, size, size) == size


def kept(directory):
    return sorted(name for name in os.listdir(directory) if name != ".mpwds")


def note(directory):
    return os.path.join(directory, ".mpwds", "lock")


def test_what_one_process_has_reserved_another_does_not_get_under_whatever_path(directory, begun):
    a, b = begun("a"), begun("b")
    alias = f"{directory}/alias"
    os.symlink(directory, alias)
    assert reserve(alias, 1000, a.replace(directory, alias), 600)
    assert not reserve(directory, 1000, b, 500)
    assert reserve(directory, 1000, b, 400)
    assert reserve(directory, 1000, a, 500)
    assert reserve(directory, 1000, b, 500)


def test_what_a_process_that_is_gone_had_reserved_is_free_again(directory, begun):
    gone = os.path.join(directory, ".mpwds", "partial", "gone.partial")
    with open(gone, "wb"):
        pass
    assert reserve(directory, 1000, gone, 900)
    assert reserve(directory, 1000, begun("b"), 1000)


@pytest.mark.parametrize("text", ["{", "[1]", "", '["x", 1]', '{"total": 1}', "null"])
def test_a_note_that_cannot_be_read_is_made_anew(directory, begun, text):
    complete(directory, "a", 300)
    with open(note(directory), "w") as file:
        file.write(text)
    b = begun("b")
    assert not reserve(directory, 1000, b, 1001)
    assert reserve(directory, 1000, b, 700)
    with locked_usage(directory) as usage:
        assert usage.total == 300
    assert reserve(directory, 1000, b, 701)
    assert kept(directory) == []


@pytest.mark.parametrize(("wrong", "age_s"), [(0, 601), (10_000, 601), (10_000, 0)])
def test_a_wrong_total_removes_nothing_that_fits_and_is_right_again(directory, begun, wrong, age_s):
    """At once where files would be removed, and after a while anyway."""
    a, b = complete(directory, "a", 300), begun("b")
    assert reserve(directory, 1000, b, 100)
    with locked_usage(directory) as usage:
        usage.total = wrong
        usage.counted_s -= age_s
    assert reserve(directory, 1000, b, 700)
    assert kept(directory) == ["a"]
    assert reserve(directory, 1000, b, 701)
    assert not os.path.exists(a.path)
    assert not os.path.exists(a.mark)


def test_nothing_is_removed_where_it_would_not_be_enough(directory, begun):
    complete(directory, "a", 300)
    assert reserve(directory, 2000, begun("b"), 800)
    c = begun("c")
    assert not reserve(directory, 1000, c, 300)
    assert kept(directory) == ["a"]
    assert reserve(directory, 1000, c, 200)
    assert kept(directory) == []


def test_without_a_limit_there_is_always_room(directory, begun):
    assert SizeLimit(directory, -1).reserve(begun("a"), 1 << 60, None) >= 1 << 60


def test_a_sixteenth_of_many_shards_goes_at_once_the_least_recently_used_ones(directory, begun):
    for number in range(64):
        mark = complete(directory, f"{number:02}", 10).mark
        os.utime(mark, (number, number))
    assert reserve(directory, 645, begun("b"), 10)
    assert kept(directory) == [f"{number:02}" for number in range(4, 64)]


def test_a_fetch_looks_at_as_few_files_in_a_large_cache_as_in_a_small_one(tmp_path, monkeypatch):
    """Counted over twice as many fetches as there are between two counts of the larger cache's files."""
    looked = {}
    for shards in (32, 160):
        directory = str(tmp_path / str(shards))
        cache = ShardCache(
            directory, 10 * shards, validator=None, opener=lambda url, offset: io.BytesIO(bytes(10))
        )
        os.makedirs(os.path.join(directory, ".mpwds", "partial"))
        for number in range(shards):
            complete(directory, f"old-{number}", 10)
        calls = []
        with monkeypatch.context() as patch:
            for name in ("stat", "scandir", "listdir", "open", "unlink", "fstat"):
                patch.setattr(os, name, _counting(getattr(os, name), calls))
            for number in range(20):
                with cache.open(f"http://host/new-{number}") as stream:
                    assert stream.read() == bytes(10)
                _settle()
        assert shards - shards // 16 <= len(kept(directory)) <= shards
        looked[shards] = len(calls) / 20
    assert looked[160] < 1.5 * looked[32], looked


def _counting(function, calls):
    """Counts calls of a function of ``os``, and the entries that it lists."""

    def counting(*arguments, **options):
        calls.append(function)
        result = function(*arguments, **options)
        if function.__name__ not in ("scandir", "listdir"):
            return result
        entries = list(result)
        calls.extend(entries)
        return entries

    return counting
