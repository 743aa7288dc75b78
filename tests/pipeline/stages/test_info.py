import io
import os

import pytest
import webdataset.filters
from hypothesis import given
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.stages.info import info, log_keys
from mpwds.pipeline.stream import Source, collect

SAMPLES = [{"__key__": str(n), "txt": "x" * n} for n in range(20)]


@given(
    n=st.integers(0, 5),
    every=st.integers(-1, 6),
    width=st.integers(0, 12),
    name=st.sampled_from(["raw", "made"]),
    fmt=st.sampled_from([None, "{__key__}: {txt}"]),
)
def test_prints_what_webdataset_prints(n, every, width, name, fmt):
    printed = []
    for stage in (info, webdataset.filters.info):
        output = io.StringIO()
        assert list(stage(fmt, n, every, width, output, name)(SAMPLES)) == SAMPLES
        printed.append(output.getvalue())
    assert printed[0] == printed[1]


def test_goes_on_counting_where_it_stopped():
    output = io.StringIO()
    stage = info("{__key__}", n=2, stream=output)
    first = stage.stream(Source(SAMPLES))
    next(first)
    second = stage.stream(Source(SAMPLES))
    second.load_state_dict(first.state_dict())
    assert len(list(second)) == 19
    assert output.getvalue() == "0\n1\n"


@pytest.mark.parametrize(
    ("fmt", "element", "printed"), [("{0} {1}", (1, "a"), "1 a\n"), (None, 3, "---\n3\n")]
)
def test_prints_elements_of_any_kind_to_what_stderr_is_when_it_prints(capsys, fmt, element, printed):
    collect(info(fmt, n=1), [element, element])
    assert capsys.readouterr().err == printed


def test_a_format_that_names_a_missing_field_says_where():
    with pytest.raises(KeyError) as caught:
        collect(info("{cls}"), [{"__key__": "a"}])
    assert caught.value.__notes__ == ["in info('{cls}'), on sample \"a\""]


KEYS = [{"__key__": key} for key in "abc"]


def test_writes_a_line_for_each_sample_with_its_reader_also_when_it_goes_on(tmp_path):
    path = tmp_path / "keys.tsv"
    place = Context(worker=2, workers=3, rank=1, world_size=2)
    first, second = (log_keys(path).stream(Source([*KEYS, 3]), place) for _ in range(2))
    next(first)
    second.load_state_dict(first.state_dict())
    assert [element for _, element in second] == [*KEYS[1:], 3]
    assert path.read_text() == "0\t2\t1\ta\n1\t2\t1\tb\n2\t2\t1\tc\n3\t2\t1\tNone\n"


def test_writes_what_webdataset_writes_of_samples_that_name_their_reader(tmp_path):
    samples = [{**sample, "__worker__": 0, "__rank__": 0} for sample in KEYS]
    list(webdataset.filters.log_keys(str(tmp_path / "theirs"))(samples))
    list(log_keys(tmp_path / "ours")(samples))
    assert (tmp_path / "ours").read_text() == (tmp_path / "theirs").read_text()


def test_keys_are_written_as_the_bytes_of_their_archives(tmp_path):
    list(log_keys(tmp_path / "keys")([{"__key__": b"caf\xe9".decode("utf-8", "surrogateescape")}]))
    assert (tmp_path / "keys").read_bytes().endswith(b"\tcaf\xe9\n")


@pytest.mark.parametrize("stop", range(5))
def test_log_keys_continues_from_its_state_exactly(stop, continues, tmp_path):
    continues(lambda: log_keys(tmp_path / "keys").stream(Source(KEYS)), stop)


@pytest.mark.parametrize("logfile", [None, ""])
def test_without_a_file_it_passes_all_on(logfile):
    assert collect(log_keys(logfile), KEYS) == KEYS


def test_the_file_is_closed_with_the_stream(tmp_path, nothing_left):
    stream = log_keys(tmp_path / "keys").stream(Source(KEYS))
    next(stream)


def test_lines_of_several_processes_stay_whole(tmp_path):
    path = tmp_path / "keys"
    children = []
    for worker in range(3):
        child = os.fork()
        if child == 0:
            collect(log_keys(path), KEYS * 100, Context(worker=worker, workers=3))
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    assert sorted((worker, int(count)) for count, worker, _, _ in lines) == [
        (str(worker), count) for worker in range(3) for count in range(300)
    ]
