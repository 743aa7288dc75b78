"""Room in a cache directory: reserved by those who fetch, made of what is not in use."""

import json
import os
import zlib

import pytest

from mpwds.storage.caches.files import CacheFiles, lock_path
from mpwds.storage.caches.locks import try_exclusive
from mpwds.storage.caches.room import CacheRoom


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path)


@pytest.fixture
def begun(directory):
    """Makes the partial file of a shard, locked as by the process that fetches it; gives its path."""
    opened = []

    def begun(name, size=0, locked=True):
        files = CacheFiles.of(directory, f"https://host/{name}")
        files.make_directories()
        file = open(files.partial, "wb")  # noqa: SIM115 - the lock lasts as long as it is open
        file.write(bytes(size))
        file.flush()
        opened.append(file)
        if locked:
            assert try_exclusive(file.fileno())
        return files.partial

    yield begun
    for file in opened:
        file.close()


@pytest.fixture
def complete(directory):
    """Makes a complete shard."""

    def complete(name, size):
        files = CacheFiles.of(directory, f"https://host/{name}")
        files.make_directories()
        with open(files.partial, "wb") as file:
            file.write(bytes(size))
        assert files.publish(zlib.crc32(bytes(size))) == files.path
        return files

    return complete


def test_what_one_process_has_reserved_another_does_not_get(directory, begun):
    room = CacheRoom(directory, 1000)
    a, b = begun("a"), begun("b")
    assert room.reserve(a, 600)
    assert not CacheRoom(directory, 1000).reserve(b, 500)
    assert room.reserve(b, 400)
    assert room.reserve(a, 500)
    assert room.reserve(b, 500)


def test_what_a_process_that_is_gone_had_reserved_is_free_again(directory, begun):
    room = CacheRoom(directory, 1000)
    stale = begun("a", 300, locked=False)
    with open(lock_path(directory), "w") as lock:
        json.dump({stale: 900}, lock)
    assert room.reserve(begun("b"), 1000)
    assert not os.path.exists(stale)


@pytest.mark.parametrize("text", ["{", "[1]", ""])
def test_reservations_that_cannot_be_read_are_none(directory, begun, text):
    a = begun("a", 100)
    with open(lock_path(directory), "w") as lock:
        lock.write(text)
    assert CacheRoom(directory, 1000).reserve(begun("b"), 900)
    assert os.path.exists(a)


def test_nothing_is_removed_where_it_would_not_be_enough(directory, begun, complete):
    shard = complete("a", 300)
    begun("b", 800)
    room = CacheRoom(directory, 1000)
    c = begun("c")
    assert not room.reserve(c, 300)
    assert os.path.exists(shard.path)
    assert room.reserve(c, 200)
    assert not os.path.exists(shard.path)


def test_a_shard_and_its_mark_go_together(directory, begun, complete):
    shard = complete("a", 300)
    assert os.path.exists(shard.mark)
    assert CacheRoom(directory, 1000).reserve(begun("b"), 900)
    assert not os.path.exists(shard.path)
    assert not os.path.exists(shard.mark)


def test_without_a_limit_there_is_always_room(directory, begun):
    assert CacheRoom(directory, -1).reserve(begun("a"), 1 << 60)
