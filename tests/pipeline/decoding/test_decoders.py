"""Decoding samples: webdataset's values and order of handlers, errors that name the field and the sample."""

import gzip
import pickle
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest
import webdataset

from mpwds.errors import DecodeError
from mpwds.pipeline.decoding.decoders import (
    Continue,
    Decoder,
    DecodingError,
    basichandlers,
    decoders,
    gzfilter,
    handle_extension,
)
from mpwds.storage.writing.encoders import encode_field
from tests.pipeline.conftest import plain


def test_every_extension_that_webdataset_decodes_is_decoded():
    assert set(webdataset.autodecode.decoders) <= set(decoders)


METADATA = {"__key__": b"a", "__cls": b"7", "__n__": 7, "__bad__": b"\xff"}
PACKED = {"cls.gz": gzip.compress(b"7"), "cls": b"7"}
SOME = {"cls": b"7", "json": b"1", "id": b"7"}


def reverse(key, data):
    return Continue(".cls", data[::-1]) if key == ".rev" else None


class Bytes(bytes):
    pass


SEVEN = {"cls": b"7"}
DECODED = {
    "a subclass of bytes is bytes": (
        Decoder(("x", type)),
        {"cls": Bytes(b"7"), "x": Bytes()},
        {"cls": 7, "x": bytes},
    ),
    "only the last extension counts": (
        Decoder(),
        {"a.b.cls": b"7", "cls.foo": b""},
        {"a.b.cls": 7, "cls.foo": b""},
    ),
    "a field may be named gz": (Decoder(), {"gz": gzip.compress(b"bytes")}, {"gz": b"bytes"}),
    "the case of an extension does not count": (Decoder(), {"a.CLS": b"7"}, {"a.CLS": 7}),
    **{
        f"None is a value in {field}": (
            Decoder(allow_pickle=True),
            {field: encode_field(field, None)},
            {field: None},
        )
        for field in ("json", "mp", "cbor", "pyd")
    },
    **{
        f"JSON may be in {encoding}": (Decoder(), {"json": '["é"]'.encode(encoding)}, {"json": ["é"]})
        for encoding in ("utf-8-sig", "utf-16", "utf-32-be")
    },
    "maps may have numbers for keys": (Decoder(), {"mp": encode_field("mp", {1: "a"})}, {"mp": {1: "a"}}),
    "bytes of metadata become text": (Decoder(), METADATA, {**METADATA, "__key__": "a", "__cls": "7"}),
    "a decoder may be called by name": (Decoder().decode, SEVEN, {"cls": 7}),
    "only names fields in a string": (Decoder(only="cls json"), SOME, {"cls": 7, "json": 1, "id": b"7"}),
    "only names fields in a list": (Decoder(only=["cls", "json"]), SOME, {"cls": 7, "json": 1, "id": b"7"}),
    "the defaults of pre and post": (Decoder(), PACKED, {"cls.gz": 7, "cls": 7}),
    "pre replaces its default": (Decoder(pre=[]), PACKED, {**PACKED, "cls": 7}),
    "post replaces its default": (Decoder(post=[]), PACKED, {"cls.gz": b"7", "cls": b"7"}),
    "the first result that is not None wins": (
        Decoder(lambda *_: None, ("cls", lambda _: 1), ("cls", lambda _: 2)),
        SEVEN,
        {"cls": 1},
    ),
    "falsy results are results": (Decoder(handle_extension("cls", lambda _: 0)), SEVEN, {"cls": 0}),
    "None leaves it to those that follow": (
        Decoder(handle_extension("cls", lambda _: None)),
        SEVEN,
        {"cls": 7},
    ),
    "handlers may come in a list": (Decoder([handle_extension("cls", len), "rgb8"]), SEVEN, {"cls": 1}),
    "a pair stands for handle_extension": (
        Decoder(("a cls", len)),
        {"a": b"12", **SOME},
        {"a": 2, "cls": 1, "json": 1, "id": 7},
    ),
    "Continue hands on other data": (Decoder(reverse), {"rev": b"21"}, {"rev": 12}),
    "Continue may be the last": (Decoder(reverse, post=[]), {"rev": b"21"}, {"rev": b"12"}),
    "Continue holds anything": (Decoder(lambda key, data: Continue(".x", 5)), {"a": b"1"}, {"a": 5}),
}


@pytest.mark.parametrize(("decode", "sample", "decoded"), DECODED.values(), ids=DECODED)
def test_fields_are_decoded(decode, sample, decoded):
    before = dict(sample)
    assert plain(decode(sample)) == plain(decoded)
    assert sample == before


def test_a_program_may_add_to_the_table(monkeypatch):
    monkeypatch.setitem(decoders, "hex", lambda data: bytes.fromhex(data.decode()))
    monkeypatch.setitem(decoders, "txt", lambda data: data.decode().upper())
    sample = {"hex": memoryview(b"ff"), "txt": b"a", "x.txt.gz": gzip.compress(b"b")}
    assert Decoder()(sample) == {"hex": b"\xff", "txt": "A", "x.txt.gz": "B"}


def test_field_names_without_end_do_not_fill_the_memory():
    decode = Decoder(lambda key, data: None)
    for number in range(5000):
        decode({f"{number}.cls": b"7"})
    assert len(decode.loads) <= 1000
    assert decode({"0.cls": b"7", "4999.cls": b"8"}) == {"0.cls": 7, "4999.cls": 8}


# ------------------------------------------------------------------------------------------- memoryviews


@pytest.mark.parametrize("options", [{}, {"post": []}, {"only": "cls"}, {"partial": True}])
def test_no_memoryview_is_handed_out(options):
    sample = {"__key__": b"k", "__x__": b"\xff", "bin": b"x", "cls": b"7"}
    result = Decoder(**options)({field: memoryview(data) for field, data in sample.items()})
    assert {type(value) for value in result.values()} <= {str, bytes, int}
    assert (result["__key__"], result["__x__"], result["bin"]) == ("k", b"\xff", b"x")


def test_functions_of_others_get_bytes():
    seen = []

    def note(key, data):
        seen.append(type(data))

    decode = Decoder(note, handle_extension("x", type), ("y", type))
    views = {name: memoryview(b"7") for name in ("cls", "x", "y")}
    assert decode(views) == {"cls": 7, "x": bytes, "y": bytes}
    assert seen == [bytes] * 3


def test_arrays_in_tenbin_share_the_views_memory():
    data = encode_field("ten", np.arange(3))
    assert np.shares_memory(Decoder()({"ten": memoryview(data)})["ten"][0], np.frombuffer(data, "u1"))


def test_a_decoder_says_whether_it_takes_memoryviews():
    assert Decoder("rgb8").takes_views
    assert Decoder(pre=[], post=[basichandlers]).takes_views
    assert not Decoder("rgb8", handle_extension("x", len)).takes_views
    assert not Decoder(pre=[lambda key, data: None]).takes_views


# ------------------------------------------------------------------------------------------- handlers


def test_handlers_run_between_pre_and_post():
    order = []

    def note(name):
        return lambda key, data: order.append((name, key))

    Decoder(note("main"), pre=[note("pre")], post=[note("post")])({"a.b": b"1"})
    assert order == [("pre", ".a.b"), ("main", ".a.b"), ("post", ".a.b")]


@pytest.mark.parametrize(
    ("field", "matches"), [("seg.png", True), ("a.SEG.png", True), ("png", False), ("xseg.png", False)]
)
def test_an_extension_with_dots_asks_for_all_of_its_parts(field, matches):
    for make in (handle_extension, webdataset.handle_extension):
        for key in (field, "." + field):
            assert make("other seg.png", len)(key, b"abc") == (3 if matches else None)


def test_a_decoder_can_be_pickled():
    decode = pickle.loads(pickle.dumps(Decoder("rgb8", gzfilter, handle_extension("hex", len), only="cls")))
    assert decode({"cls": b"7", "id": b"7"}) == {"cls": 7, "id": b"7"}


def test_a_handler_that_continues_differently_each_time_is_asked_each_time():
    def continues(key, data):
        return Continue("." + data.decode(), b"7")

    decode = Decoder(continues)
    assert [decode({"a": name})["a"] for name in (b"cls", b"txt", b"bin")] == [7, "7", b"7"]


# --------------------------------------------------------------------------------------------- errors


def test_an_error_says_which_field_of_which_sample_failed():
    sample = {"__key__": "000017", "__url__": "x-3.tar", "cls": b"7", "png": b"not an image"}
    with pytest.raises(DecodeError) as caught:
        Decoder("rgb8")(sample)
    assert str(caught.value) == (
        'field "png" of sample "000017" in x-3.tar cannot be decoded: '
        "UnidentifiedImageError: cannot identify image file (12 bytes)"
    )
    assert (caught.value.field, caught.value.key, caught.value.url) == ("png", "000017", "x-3.tar")
    assert isinstance(caught.value.__cause__, PIL.UnidentifiedImageError)


def test_an_error_survives_pickling():
    with pytest.raises(DecodeError) as caught:
        Decoder()({"__key__": "a", "cls": b"x"})
    error = pickle.loads(pickle.dumps(caught.value))
    assert (str(error), error.field, error.key, error.url) == (str(caught.value), "cls", "a", None)


@pytest.mark.parametrize(
    ("field", "data", "message"),
    [
        ("cls", b"seven", "invalid literal"),
        ("txt", b"\xff", "can't decode"),
        ("json", b"{", "JSONDecodeError"),
        ("npy", b"nothing", "magic"),
        ("npy", encode_field("npy", np.arange(3))[:-1], "takes 24 bytes, 23 are there"),
        ("npz", encode_field("npy", np.arange(3)), r"holds one array as \.npy, not an \.npz archive"),
        ("npz", b"nothing", r"npz\" cannot be decoded"),
        ("ten", b"nothing", "TenbinError"),
        ("mp", b"\xc1", 'mp" cannot be decoded'),
        ("cbor", b"\x42\x00", "CBORDecodeEOF"),
        ("txt.gz", b"nothing", "incorrect header check"),
        ("txt.gz", gzip.compress(b"text", mtime=0)[:-4], "EOFError"),
        ("jpg", encode_field("jpg", np.random.default_rng(0).random((64, 64, 3)))[:-2000], "truncated"),
        ("cls", 7, "it is int, expected bytes"),
        ("cls", None, "it is None"),
        ("cls", bytearray(b"7"), "it is bytearray"),
    ],
)
def test_what_cannot_be_decoded_is_a_decode_error(field, data, message):
    with pytest.raises(DecodeError, match=message):
        Decoder("rgb8")({field: data})


def test_partial_passes_decoded_fields_through_but_not_none():
    assert Decoder(partial=True)({"cls": 7, "id": b"7"}) == {"cls": 7, "id": 7}
    for partial in (False, True):
        with pytest.raises(DecodeError, match='field "cls" cannot be decoded: it is None, .* with only='):
            Decoder(partial=partial)({"cls": None})


@pytest.mark.parametrize(
    ("field", "package", "advice"),
    [("png", "PIL", r"'mpwds\[images\]'"), ("cbor", "cbor2", r"'mpwds\[cbor\]'"), ("pth", "torch", "torch")],
)
def test_a_missing_package_is_an_import_error_that_names_the_extra(monkeypatch, field, package, advice):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.Image", None)
    with pytest.raises(ImportError, match=f"pip install {advice}"):
        Decoder("rgb8", allow_pickle=True)({field: b"data"})


def test_a_sample_that_is_no_dict_is_a_type_error():
    with pytest.raises(TypeError, match="must be a dict, got list"):
        Decoder()([1, 2])


def test_torch_is_not_imported_for_numpy_images():
    program = (
        "import sys, pickle\n"
        "from mpwds.pipeline.decoding.decoders import Decoder\n"
        "Decoder('rgb8')({'pgm': b'P5 1 1 255 a', 'cls': b'7', 'npy': sys.stdin.buffer.read()})\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], input=encode_field("npy", np.arange(3)), check=True)


def test_the_error_has_webdatasets_name():
    assert DecodingError is DecodeError


def test_handlers_may_be_called_by_other_handlers():
    assert basichandlers(".foo", b"1") is None
    assert basichandlers(".x.CLS", b"1") == 1
    with pytest.raises(DecodeError, match="allow_pickle=True"):
        basichandlers(".pkl", pickle.dumps(1))
    assert gzfilter(".txt", gzip.compress(b"a")) is None
    unpacked = gzfilter(".txt.gz", gzip.compress(b"a"))
    assert (unpacked.key, unpacked.data) == (".txt", b"a")


def test_a_handler_prints_as_it_is_written():
    assert repr(handle_extension(".PNG seg.txt", len)) == "handle_extension('png seg.txt', len)"
