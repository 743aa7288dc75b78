"""webdataset's clean-up of cache directories."""

import io
import os

import pytest

from mpwds.storage.caches.eviction import LRUCleanup
from mpwds.storage.caches.fill import fills
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


def test_the_least_recently_used_files_go_until_the_rest_is_small_enough(files):
    LRUCleanup(str(files), 3500, keyfn=by_number).cleanup()
    assert names(files) == ["3.tar", "4.tar", "5.tar"]


def test_nothing_goes_while_there_is_room(files):
    LRUCleanup(files, 6000).cleanup()
    assert len(names(files)) == 6


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


def test_a_directory_that_does_not_exist_is_small_enough(tmp_path):
    LRUCleanup(tmp_path / "nowhere", 0).cleanup()


def test_verbose_tells_what_goes(files, capsys):
    LRUCleanup(files, 5000, keyfn=by_number, verbose=True).cleanup()
    assert capsys.readouterr().err == f"# deleting {files / './0.tar'}\n".replace("/./", "/")


def test_what_a_shard_cache_is_reading_stays(tmp_path):
    cache = ShardCache(tmp_path, validator=None, opener=lambda url, offset: io.BytesIO(bytes(1000)))
    for name in ("0", "1"):
        with cache.open(f"http://host/{name}.tar") as stream:
            assert len(stream.read()) == 1000
        for fill in fills(cache.directory):
            fill.wait_beyond(1000)
    with cache.open("http://host/0.tar") as stream:
        LRUCleanup(tmp_path, 0, keyfn=by_number).cleanup()
        assert names(tmp_path) == ["0.tar"]
        assert stream.read() == bytes(1000)
    LRUCleanup(tmp_path, 0, keyfn=by_number).cleanup()
    assert names(tmp_path) == []
