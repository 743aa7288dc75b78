import os

import pytest
import webdataset.filters

from mpwds.pipeline.context import Context
from mpwds.pipeline.stages.info import log_keys
from mpwds.pipeline.stream import Source, collect

SAMPLES = [{"__key__": key} for key in "abc"]


def test_writes_a_line_for_each_sample_with_its_reader(tmp_path):
    path = tmp_path / "keys.tsv"
    assert collect(log_keys(path), SAMPLES, Context(worker=2, workers=3, rank=1, world_size=2)) == SAMPLES
    assert path.read_text() == "0\t2\t1\ta\n1\t2\t1\tb\n2\t2\t1\tc\n"


def test_writes_what_webdataset_writes_of_samples_that_name_their_reader(tmp_path):
    samples = [{**sample, "__worker__": 0, "__rank__": 0} for sample in SAMPLES]
    list(webdataset.filters.log_keys(str(tmp_path / "theirs"))(samples))
    list(log_keys(tmp_path / "ours")(samples))
    assert (tmp_path / "ours").read_text() == (tmp_path / "theirs").read_text()


@pytest.mark.parametrize("stop", range(5))
def test_continues_from_its_state_exactly(stop, continues, tmp_path):
    continues(lambda: log_keys(tmp_path / "keys").stream(Source(SAMPLES)), stop)


def test_goes_on_counting_where_it_stopped_in_the_same_file(tmp_path):
    path = tmp_path / "keys.tsv"
    first, second = (log_keys(path).stream(Source(SAMPLES)) for _ in range(2))
    next(first)
    second.load_state_dict(first.state_dict())
    list(second)
    assert path.read_text() == "0\t0\t0\ta\n1\t0\t0\tb\n2\t0\t0\tc\n"


def test_an_element_without_a_key_has_none(tmp_path):
    collect(log_keys(tmp_path / "keys"), [3])
    assert (tmp_path / "keys").read_text() == "0\t0\t0\tNone\n"


@pytest.mark.parametrize("logfile", [None, ""])
def test_without_a_file_it_passes_all_on(logfile):
    assert collect(log_keys(logfile), SAMPLES) == SAMPLES


def test_the_file_is_closed_with_the_stream(tmp_path, nothing_left):
    stream = log_keys(tmp_path / "keys").stream(Source(SAMPLES))
    next(stream)


def test_lines_of_several_processes_stay_whole(tmp_path):
    path = tmp_path / "keys"
    children = []
    for worker in range(3):
        child = os.fork()
        if child == 0:
            collect(log_keys(path), SAMPLES * 100, Context(worker=worker, workers=3))
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    assert sorted((worker, int(count)) for count, worker, _, _ in lines) == [
        (str(worker), count) for worker in range(3) for count in range(300)
    ]
