import io

import pytest
import webdataset.filters
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.stages.info import info
from mpwds.pipeline.stream import Source, collect

SAMPLES = [{"__key__": str(n), "txt": "x" * n} for n in range(20)]


@settings(max_examples=60, deadline=None)
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


@pytest.mark.parametrize("stop", range(4))
def test_continues_from_its_state_exactly(stop, continues):
    continues(lambda: info(stream=io.StringIO()).stream(Source(SAMPLES[:3])), stop)


def test_goes_on_counting_where_it_stopped():
    output = io.StringIO()
    stage = info("{__key__}", n=2, stream=output)
    first = stage.stream(Source(SAMPLES))
    next(first)
    second = stage.stream(Source(SAMPLES))
    second.load_state_dict(first.state_dict())
    assert len(list(second)) == 19
    assert output.getvalue() == "0\n1\n"


def test_prints_to_what_stderr_is_when_it_prints(capsys):
    collect(info("{0} {1}", n=1), [(1, "a"), (2, "b")])
    assert capsys.readouterr().err == "1 a\n"


def test_prints_elements_of_any_kind(capsys):
    collect(info(n=1), [3])
    assert capsys.readouterr().err == "---\n3\n"


def test_a_format_that_names_a_missing_field_says_where():
    with pytest.raises(KeyError) as caught:
        collect(info("{cls}"), [{"__key__": "a"}])
    assert caught.value.__notes__ == ["in info('{cls}'), on sample \"a\""]
