import os
import pickle
import signal
import subprocess
import sys
from itertools import islice

import lmdb
import pytest
import webdataset

from mpwds.errors import SecurityError
from mpwds.pipeline.caching.lmdb_cached import LMDBCached, lmdb_cached
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.stream import Source, collect


class Anything:
    def __init__(self, value):
        self.value = value


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "samples.lmdb")


def test_reads_as_it_is_written(path):
    assert str(lmdb_cached("x.lmdb")) == "lmdb_cached('x.lmdb')"
    stage = lmdb_cached("x.lmdb", 1e9, pickle, 100)
    assert str(stage) == "lmdb_cached('x.lmdb', map_size=1000000000.0, pickler='pickle', chunksize=100)"


def test_the_database_outlives_the_stage(path):
    collect(lmdb_cached(path), "abc")
    assert os.path.exists(os.path.join(path, "data.mdb"))
    assert collect(lmdb_cached(path), "xyz") == ["a", "b", "c"]


def test_nothing_is_made_before_it_is_needed(path):
    lmdb_cached(path)
    assert not os.path.exists(path)


def test_samples_of_the_same_key_are_all_kept(path):
    samples = [{"__key__": "same", "n": n} for n in range(5)]
    assert collect(lmdb_cached(path), samples) == collect(lmdb_cached(path), []) == samples


def test_what_cannot_be_stored_without_pickle_is_an_error_that_says_where(path):
    with pytest.raises(
        TypeError, match=r'lmdb_cached: an element cannot be stored: in it, batch\["x"\] is a'
    ):
        collect(lmdb_cached(path), [{"x": Anything(1)}])
    assert collect(lmdb_cached(path), "ab") == ["a", "b"]


def test_with_pickle_anything_is_stored(path):
    collect(lmdb_cached(path, pickler=pickle), [Anything([1, 2])])
    assert collect(lmdb_cached(path, pickler=pickle), [])[0].value == [1, 2]


def test_the_secure_mode_refuses_a_pickler(path, monkeypatch):
    collect(lmdb_cached(path, pickler=pickle), [Anything([1, 2])])
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(SecurityError, match=r"lmdb_cached takes no pickler.*WDS_SECURE"):
        collect(lmdb_cached(path, pickler=pickle), [])
    assert collect(lmdb_cached(path + "2"), "ab") == ["a", "b"]


def test_a_database_is_not_read_with_another_pickler(path):
    collect(lmdb_cached(path, pickler=pickle), "ab")
    with pytest.raises(ValueError, match="were stored with pickle .* would be read with mpwds"):
        collect(lmdb_cached(path), "ab")


def test_a_database_of_another_pipeline_is_refused(path):
    collect(lmdb_cached(path, fingerprint="shards v1"), "ab")
    with pytest.raises(ValueError, match="another pipeline: .*\n  there: shards v1\n  here:  shards v2"):
        collect(lmdb_cached(path, fingerprint="shards v2"), "ab")
    assert collect(lmdb_cached(path), []) == ["a", "b"]


def test_a_database_of_webdataset_is_refused(path):
    dataset = webdataset.DataPipeline(lambda: iter([{"__key__": "a"}]), webdataset.LMDBCached(path, 1e8))
    list(dataset)
    del dataset
    with pytest.raises(ValueError, match="that mpwds did not make"):
        collect(lmdb_cached(path, 1e8), "ab")


def test_a_full_database_says_what_to_do(path):
    with pytest.raises(MemoryError, match="is full: it has map_size=40960 bytes; give a larger one"):
        collect(lmdb_cached(path, 40_960, chunksize=1), [bytes(10_000)] * 10)


@pytest.mark.parametrize("arguments", [{"chunksize": 0}, {"map_size": 100}])
def test_impossible_sizes_are_refused(path, arguments):
    with pytest.raises(ValueError, match="lmdb_cached: .* must be at least"):
        LMDBCached(path, **arguments)


def test_without_the_package_it_says_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(ImportError, match=r"pip install 'mpwds\[lmdb\]'"):
        collect(lmdb_cached(path), "ab")


def test_elements_are_written_by_the_chunk(path):
    stream = lmdb_cached(path, chunksize=10).stream(Source(range(100)))
    list(islice(stream, 25))
    del stream
    with lmdb.open(path, readonly=True) as database, database.begin() as transaction:
        keys = [key for key, _ in transaction.cursor()]
    assert sum(key.startswith(b"e") for key in keys) == 20


PROGRAM = """if True:
    import sys, time
    from mpwds.pipeline.context import Context
    from mpwds.pipeline.dataset import DataPipeline
    from mpwds.pipeline.caching.lmdb_cached import lmdb_cached

    worker, workers, last = map(int, sys.argv[2:])
    dataset = DataPipeline(range(300)).compose(lmdb_cached(sys.argv[1], 1e9, chunksize=10))
    for count, (_, n) in enumerate(dataset.stream(Context(worker=worker, workers=workers)), 1):
        if count == last:
            print("there", flush=True)
            time.sleep(60)
"""


def test_workers_fill_it_at_the_same_time(path):
    programs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, path, str(worker), "3", "0"]) for worker in range(3)
    ]
    assert [program.wait() for program in programs] == [0, 0, 0]
    stage = lmdb_cached(path, 1e9)
    parts = [stage.stream(Source([]), Context(worker=worker, workers=3)) for worker in range(3)]
    assert sorted(element for part in parts for _, element in part) == list(range(300))


def test_a_worker_that_is_killed_leaves_a_database_that_goes_on(path):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, path, "0", "1", "155"], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout.readline() == "there\n"
    program.send_signal(signal.SIGKILL)
    program.communicate()
    dataset = DataPipeline(range(300)).compose(lmdb_cached(path, 1e9))
    assert list(dataset) == list(dataset) == list(range(300))
