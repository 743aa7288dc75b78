"""Elements kept on disk: DBCache, and lmdb_cached, which keeps them the same way."""

import itertools
import os
import pickle
import resource
import sqlite3
import subprocess
import sys
import threading
from itertools import islice
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.errors import EnvelopeError, SecurityError
from mpwds.loader.multi_loader import MultiLoader
from mpwds.pipeline.caching import disk_store
from mpwds.pipeline.caching.cached import DBCache, lmdb_cached
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.error_context import notes_of
from mpwds.pipeline.stream import Source, collect


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "samples.db")


class Anything:
    def __init__(self, value):
        self.value = value


def elements(stream):
    return [element for _, element in stream]


def test_reads_as_it_is_written():
    assert str(DBCache("x.db", 100)) == "dbcache('x.db', 100)"
    assert str(DBCache("x.db", 100, shuffle=True)) == "dbcache('x.db', 100, shuffle=True)"
    assert str(lmdb_cached("x.lmdb")) == "lmdb_cached('x.lmdb')"
    stage = lmdb_cached("x.lmdb", 1e9, pickle, 100)
    assert str(stage) == "lmdb_cached('x.lmdb', map_size=1000000000.0, pickler='pickle', chunksize=100)"


BOTH = pytest.mark.parametrize(
    "new", [lmdb_cached, lambda path: DBCache(path, 100)], ids=["lmdb_cached", "DBCache"]
)


@BOTH
def test_the_database_outlives_the_stage_and_is_made_when_it_is_needed(path, new):
    stage = new(path)
    assert not os.path.exists(path)
    collect(stage, "abc")
    assert collect(new(path), "xyz") == ["a", "b", "c"]


def test_an_epoch_ends_when_the_size_is_reached(path):
    taken = []

    def source():
        for n in itertools.count():
            taken.append(n)
            yield n

    dataset = DataPipeline(source).compose(DBCache(path, 150))
    assert list(dataset) == list(dataset) == list(range(150))
    assert len(taken) == 150


@settings(max_examples=15)
@given(n=st.integers(0, 200), size=st.integers(1, 200), stop=st.integers(0, 200))
def test_an_interrupted_epoch_changes_nothing_about_it(tmp_path_factory, n, size, stop):
    stage = DBCache(tmp_path_factory.mktemp("db") / "x.db", size)
    whole = list(range(min(n, size)))
    assert elements(islice(stage.stream(Source(range(n))), stop)) == whole[:stop]
    assert collect(stage, range(n)) == collect(stage, range(n)) == whole


@pytest.mark.parametrize("size", [1, 50, 64, 100, 130, 1000])
def test_the_size_counts_the_elements_of_all_workers(path, size):
    contexts = [Context(worker=worker, workers=3) for worker in range(3)]
    dataset = DataPipeline(range(300)).compose(DBCache(path, size))
    streams = [dataset.stream(context) for context in contexts]
    first = [element for row in itertools.zip_longest(*streams) for element in row if element is not None]
    assert len(first) == len(set(first)) == min(size, 300)
    again = [item for context in contexts for item in dataset.stream(context)]
    assert sorted(again) == sorted(first)


def test_a_larger_size_later_does_not_change_what_is_complete(path):
    collect(DBCache(path, 5), range(10))
    assert collect(DBCache(path, 8), range(10)) == list(range(5))


def test_shuffled_it_gives_another_order_in_every_epoch_once_it_is_complete(path):
    stage = DBCache(path, 100, shuffle=True)
    orders = [collect(stage, range(50), Context(epoch=epoch)) for epoch in range(3)]
    assert orders[0] == list(range(50))
    assert orders[0] != orders[1] != orders[2]
    assert sorted(orders[1]) == sorted(orders[2]) == orders[0]
    assert collect(stage, [], Context(epoch=1)) == orders[1]


@settings(max_examples=10)
@given(stop=st.integers(0, 51))
def test_shuffled_it_continues_from_its_state_exactly(continues, tmp_path_factory, stop):
    stage = DBCache(tmp_path_factory.mktemp("db") / "x.db", 100, shuffle=True)
    collect(stage, range(50))
    continues(lambda: stage.stream(Source(range(50)), Context(epoch=2)), stop)


def test_a_state_of_the_first_epoch_is_continued_in_order_after_it_became_complete(path):
    stage = DBCache(path, 100, shuffle=True)
    first = stage.stream(Source(range(50)))
    assert elements(islice(first, 20)) == list(range(20))
    state = first.state_dict()
    elements(first)
    again = stage.stream(Source(range(50)))
    again.load_state_dict(state)
    assert elements(again) == list(range(20, 50))


def test_a_state_of_a_database_that_is_gone_is_an_error(path, tmp_path):
    stage = DBCache(path, 100, shuffle=True)
    collect(stage, range(50))
    state = stage.stream(Source(range(50))).state_dict()
    elsewhere = DBCache(tmp_path / "other.db", 100, shuffle=True).stream(Source(range(50)))
    with pytest.raises(LookupError, match="the cache was complete with 50 elements; now it has"):
        elsewhere.load_state_dict(state)


def test_behind_an_element_that_failed_the_size_holds_all_the_same(path):
    class Bad(Source):
        def __next__(self):
            item = super().__next__()
            if item[0] == 3:
                raise ValueError("bad element")
            return item

    stream = DBCache(path, 10).stream(Bad(range(100)))
    assert elements(islice(stream, 3)) == [0, 1, 2]
    with pytest.raises(ValueError, match="bad element"):
        next(stream)
    assert len(elements(stream)) == 7


@BOTH
def test_what_cannot_be_stored_without_pickle_is_an_error_that_says_where(path, new, request):
    name = request.node.callspec.id
    why = r'in it, batch\["x"\] is a set, which would need a pickle; move the stage before'
    with pytest.raises(TypeError, match=f"{name}: an element cannot be stored: {why}"):
        collect(new(path), [{"x": {1}}])
    assert collect(new(path), "ab") == ["a", "b"]


def test_a_database_of_another_pipeline_is_refused(path):
    collect(DBCache(path, 10, fingerprint="shards v1"), "ab")
    with pytest.raises(ValueError, match="another pipeline: .*\n  there: shards v1\n  here:  shards v2"):
        collect(DBCache(path, 10, fingerprint="shards v2"), "ab")
    assert collect(DBCache(path, 10), []) == ["a", "b"]


def test_a_database_without_a_fingerprint_is_refused_if_one_is_wanted(path):
    collect(DBCache(path, 10), "ab")
    with pytest.raises(ValueError, match="another pipeline: .*\n  there: no fingerprint\n  here:  shards v2"):
        collect(DBCache(path, 10, fingerprint="shards v2"), "ab")


def test_a_file_that_is_no_database_of_this_stage_is_refused_and_left_alone(path, tmp_path):
    (tmp_path / "text").write_text("something else" * 1000)
    with pytest.raises(ValueError, match="cannot be used as a database"):
        collect(DBCache(tmp_path / "text", 10), "ab")
    assert (tmp_path / "text").read_text() == "something else" * 1000
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(ValueError, match="was not made by this stage"):
        collect(DBCache(path, 10), "ab")


def test_a_directory_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(OSError, match="nowhere/x.db cannot be opened"):
        collect(DBCache(tmp_path / "nowhere" / "x.db", 10), "ab")


def test_readers_are_not_kept_waiting_by_a_writer(path):
    stage = DBCache(path, 100)
    collect(stage, "abc")
    stream = stage.stream(Source([]))
    writer = sqlite3.connect(path, isolation_level=None)
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    writer.execute("BEGIN EXCLUSIVE")
    assert elements(stream) == ["a", "b", "c"]
    writer.close()


def test_a_database_that_another_process_just_makes_is_waited_for(path):
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("PRAGMA user_version = 0")
    other.execute("BEGIN IMMEDIATE")  # for which SQLite does not wait by itself
    ends = threading.Timer(0.2, lambda: other.execute("COMMIT"))
    ends.start()
    assert collect(DBCache(path, 10), "ab") == ["a", "b"]
    ends.join()
    other.close()


def test_with_pickle_anything_is_stored_unless_the_secure_mode_refuses_a_pickler(path, monkeypatch):
    collect(lmdb_cached(path, pickler=pickle), [Anything([1, 2])])
    assert collect(lmdb_cached(path, pickler=pickle), [])[0].value == [1, 2]
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(SecurityError, match=r"lmdb_cached takes no pickler.*WDS_SECURE"):
        collect(lmdb_cached(path, pickler=pickle), [])
    assert collect(lmdb_cached(path + "2"), "ab") == ["a", "b"]


def test_a_database_is_not_read_with_another_pickler(path):
    collect(lmdb_cached(path, pickler=pickle), "ab")
    with pytest.raises(ValueError, match="were stored with pickle, but would be read with mpwds"):
        collect(lmdb_cached(path), "ab")


def test_an_lmdb_database_is_refused_and_left_alone(path):
    os.mkdir(path)
    open(os.path.join(path, "data.mdb"), "wb").close()
    with pytest.raises(ValueError, match="LMDB database that mpwds did not make"):
        collect(lmdb_cached(path), "ab")
    assert os.listdir(path) == ["data.mdb"]


def test_a_full_database_says_what_to_do(path):
    with pytest.raises(MemoryError, match="is full: it has map_size=40960 bytes; give a larger one"):
        collect(lmdb_cached(path, 40_960, chunksize=1), [bytes(10_000)] * 10)


def test_a_full_disk_is_not_blamed_on_the_size_of_the_database(path, monkeypatch):
    monkeypatch.setattr(disk_store.shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
    with pytest.raises(OSError, match=r"elements.db cannot be written: the disk is full"):
        collect(lmdb_cached(path, 40_960, chunksize=1), [bytes(10_000)] * 10)


def test_what_sqlite_cannot_write_is_an_error_that_names_the_database(path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"samples.db/elements.db cannot be used: disk I/O error"):
            collect(lmdb_cached(path, chunksize=1), [bytes(10_000)] * 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_damaged_database_is_an_error_that_names_it(path):
    collect(DBCache(path, 100), [bytes(3000)] * 100)
    with open(path, "r+b") as file:
        file.seek(100_000)
        file.write(b"\xff" * 100_000)
    with pytest.raises(ValueError, match=r"samples.db cannot be used as a database: .* malformed"):
        collect(DBCache(path, 100), [])


def test_a_damaged_element_is_an_error_that_names_it(path):
    collect(DBCache(path, 10), "abc")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE elements SET element = x'c1' WHERE id % 4 = 1")
    connection.close()
    with pytest.raises(EnvelopeError) as caught:
        collect(DBCache(path, 10), [])
    assert notes_of(caught.value)[0] == f"in element 1 of the database {path}"


def test_elements_are_written_by_the_chunk(path):
    stream = lmdb_cached(path, chunksize=10).stream(Source(range(100)))
    list(islice(stream, 25))
    del stream
    connection = sqlite3.connect(os.path.join(path, "elements.db"))
    assert connection.execute("SELECT count(*) FROM elements").fetchone() == (20,)
    connection.close()


PROGRAM = """if True:
    import sys, time
    from mpwds.pipeline.dataset import DataPipeline
    from mpwds.pipeline.caching.cached import DBCache

    dataset = iter(DataPipeline(range(300)).compose(DBCache(sys.argv[1], 1000)))
    print([next(dataset) for _ in range(155)][-1], flush=True)
    time.sleep(60)
"""


def test_a_worker_that_is_killed_leaves_a_database_that_goes_on(path):
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, path], stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "154\n"
    program.kill()
    program.communicate()
    dataset = DataPipeline(range(300)).compose(DBCache(path, 1000))
    assert list(dataset) == list(dataset) == list(range(300))


def test_the_workers_of_a_loader_share_it(path):
    dataset = DataPipeline(range(60)).compose(DBCache(path, 1000)).batched(4)
    with MultiLoader(dataset, workers=2) as loader:
        epochs = [sorted(n for batch in loader for n in batch.tolist()) for _ in range(2)]
    assert epochs == [list(range(60))] * 2
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT complete FROM parts").fetchall() == [(1,), (1,)]
    connection.close()


@pytest.mark.parametrize("size", [10, 40_000])
def test_elements_are_the_same_in_order_and_by_address_in_any_order(path, size):
    elements = [bytes([n]) * size for n in range(50)]
    stage = lmdb_cached(path)
    collect(stage, elements)
    stream = stage.stream(Source([]))
    for n in (0, 1, 2, 3, 2, 40, 41, 42, 5):
        assert stream.fetch(n) == elements[n]
    assert collect(stage, []) == elements


def test_an_element_that_is_gone_is_an_error(path):
    stage = lmdb_cached(path)
    collect(stage, range(5))
    connection = sqlite3.connect(os.path.join(path, "elements.db"), isolation_level=None)
    connection.execute("DELETE FROM elements WHERE element = (SELECT element FROM elements LIMIT 1 OFFSET 2)")
    connection.close()
    stream = stage.stream(Source([]))
    assert [next(stream), next(stream)] == [(0, 0), (1, 1)]
    with pytest.raises(LookupError, match="has no element 2 any more"):
        next(stream)


def test_a_slower_process_takes_nothing_from_a_complete_part(path):
    stage = lmdb_cached(path, chunksize=40)
    slower = stage.stream(Source(range(200)))
    assert elements(islice(slower, 45)) == list(range(45))
    assert elements(stage.stream(Source(range(200)))) == list(range(200))
    assert elements(islice(slower, 100)) == list(range(45, 145))
    assert collect(stage, []) == list(range(200))
