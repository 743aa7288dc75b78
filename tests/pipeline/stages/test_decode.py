"""The stages that decode: by extensions, and by patterns."""

import json
import pickle
import random
import re
import warnings

import pytest
import webdataset.filters
from hypothesis import given
from hypothesis import strategies as st

import mpwds
from mpwds.errors import DecodeError
from mpwds.pipeline.context import Context
from mpwds.pipeline.decoding.images import imagespecs
from mpwds.pipeline.handlers import ignore_and_continue
from mpwds.pipeline.stages.decode import decode, xdecode
from mpwds.pipeline.stream import Source, collect


def samples(n=4):
    return Source({"__key__": str(index), "cls": str(index).encode()} for index in range(n))


@pytest.mark.parametrize("stop", range(5))
def test_continues_from_its_state_exactly_with_a_handler_that_draws_numbers(stop, continues):
    def noisy(key, data):
        return float(data) + random.random()

    continues(lambda: decode(noisy).stream(samples()), stop)


@pytest.mark.parametrize(
    ("stage", "decoded"),
    [
        (decode(), {"cls": 7, "txt": "abc"}),
        (decode(only="txt"), {"cls": b"7", "txt": "abc"}),
        (decode(("txt", len)), {"cls": 7, "txt": 3}),
    ],
    ids=str,
)
def test_decodes_by_extension_what_it_is_asked_for(stage, decoded):
    sample = {"__key__": "a", "cls": b"7", "txt": b"abc"}
    assert collect(stage, [sample]) == [{"__key__": "a", **decoded}]


@pytest.mark.parametrize("workers", [1, 2])
def test_sound_and_video_that_stay_bytes_are_told_once_with_what_decodes_them(workers):
    dataset = mpwds.DataPipeline([{"__key__": "a", "wav": b"1", "b.MP4": b"2", "bin": b"3"}] * 3).decode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for worker in range(workers):
            for _, sample in dataset.stream(Context(worker=worker, workers=workers)):
                assert (sample["wav"], sample["b.MP4"]) == (b"1", b"2")
    assert [str(each.message).partition(" among")[0] for each in caught] == [
        'decode leaves field "wav" as bytes: mpwds.AudioDecoder()',
        'decode leaves field "b.MP4" as bytes: mpwds.VideoDecoder()',
    ]
    assert {each.filename for each in caught} == {__file__}


@pytest.mark.parametrize("options", [{"only": "cls"}, {"handlers": [("wav mp4", len)]}])
def test_sound_and_video_that_are_decoded_or_meant_to_stay_are_not_told(options):
    handlers = options.pop("handlers", ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert collect(decode(*handlers, **options), [{"__key__": "a", "wav": b"1", "mp4": b"2"}])


def test_the_help_lists_every_image_specification():
    assert all(re.search(rf"\b{spec}\b", decode.__doc__) for spec in imagespecs)


def test_an_error_names_stage_and_sample():
    with pytest.raises(DecodeError) as caught:
        collect(decode("rgb8"), [{"__key__": "a", "cls": b"seven"}])
    assert caught.value.__notes__ == ["in decode('rgb8'), on sample \"a\""]
    assert caught.value.key == "a"


def test_handlers_of_the_library_do_not_touch_the_random_generators(monkeypatch):
    monkeypatch.setattr(random, "seed", lambda *_: pytest.fail("reseeded"))
    collect(decode("rgb8"), [{"__key__": "a", "cls": b"7"}])


names = st.sampled_from(["txt", "a.txt", "x/B.TXT", "bin", "json", "__key__", "__txt__.txt", "gif"])
values = st.sampled_from([b"[1]", b"\xff", "text"])
encoded_samples = st.dictionaries(names, values, max_size=4)


def upper(stream):
    return stream.read().upper()


def outcome(stage, sample):
    try:
        return list(stage([dict(sample)]))
    except Exception:
        return "an error"


@given(sample=encoded_samples, must_decode=st.booleans(), leave=st.booleans(), upper_txt=st.booleans())
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
