import json
import pickle

import pytest
import webdataset.filters
from hypothesis import given
from hypothesis import strategies as st

from mpwds.errors import DecodeError
from mpwds.pipeline.handlers import ignore_and_continue
from mpwds.pipeline.stages.decode import xdecode
from mpwds.pipeline.stream import collect

names = st.sampled_from(["txt", "a.txt", "x/B.TXT", "bin", "json", "__key__", "__txt__.txt", "gif"])
values = st.sampled_from([b"[1]", b"\xff", "text"])
samples = st.dictionaries(names, values, max_size=4)


def upper(stream):
    return stream.read().upper()


def outcome(stage, sample):
    try:
        return list(stage([dict(sample)]))
    except Exception:
        return "an error"


@given(sample=samples, must_decode=st.booleans(), leave=st.booleans(), upper_txt=st.booleans())
def test_decodes_as_webdataset_does(sample, must_decode, leave, upper_txt):
    decoders = [("*.gif", False)] * leave + [("*.txt", upper)] * upper_txt
    options = {"must_decode": must_decode, "json": json.load}
    theirs = webdataset.filters.xdecode(*decoders, **options)
    assert outcome(xdecode(*decoders, **options), sample) == outcome(theirs, sample)


def test_a_field_without_a_decoder_is_an_error_that_names_it():
    sample = {"__key__": "a", "__url__": "x.tar", "gif": b".."}
    place = 'field "gif" of sample "a" in x.tar'
    with pytest.raises(DecodeError, match=f"{place} cannot be decoded: no pattern matches") as caught:
        collect(xdecode(), [sample])
    assert (caught.value.incident.member, caught.value.incident.key) == ("gif", "a")


def test_what_a_decoder_raises_is_the_cause():
    with pytest.raises(DecodeError, match='field "json" cannot be decoded: JSONDecodeError') as caught:
        collect(xdecode(json=json.load), [{"json": b"["}])
    assert isinstance(caught.value.__cause__, json.JSONDecodeError)


def test_pickles_need_permission_in_code():
    samples = [{"pyd": pickle.dumps([1, 2])}]
    with pytest.raises(DecodeError, match="allow_pickle=True"):
        collect(xdecode(), samples)
    assert collect(xdecode(allow_pickle=True), samples) == [{"pyd": [1, 2]}]


def test_a_decoder_of_ones_own_for_pickles_is_permission_enough():
    assert collect(xdecode(pyd=pickle.load), [{"pyd": pickle.dumps(1)}]) == [{"pyd": 1}]


def test_a_pair_may_be_a_list():
    assert collect(xdecode(["*.json", json.load]), [{"a.json": b"[1]"}]) == [{"a.json": [1]}]


def test_a_missing_package_is_no_fault_of_the_sample():
    def need(stream):
        raise ImportError("no such package")

    with pytest.raises(ImportError, match="no such package"):
        list(xdecode(txt=need, handler=ignore_and_continue)([{"txt": b"a"}]))
