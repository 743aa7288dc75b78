import io

import av
import numpy as np
import PIL.Image
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from mpwds.cli.inspect.checking import check_checksums, make_decoder
from mpwds.cli.inspect.describing import FieldFigures, describe


def file(save):
    save(stream := io.BytesIO())
    return stream.getvalue()


def video(kind, codec, sound=False):
    """Seven red frames."""
    with av.open(stream := io.BytesIO(), "w", format=kind) as container:
        pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        rate = 25 if codec == "mpeg1video" else 5
        track = container.add_stream(codec, rate=rate, width=32, height=16, pix_fmt=pixels)
        voice = container.add_stream("pcm_s16le", rate=8000) if sound else None
        for _ in range(7):
            frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), (200, 0, 0), np.uint8))
            container.mux(track.encode(frame))
        container.mux(track.encode())
        if voice is not None:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 11200), np.int16), "s16", "mono")
            silence.sample_rate = 8000
            container.mux([*voice.encode(silence), *voice.encode()])
    return stream.getvalue()


def picture(mode, image_format):
    return file(lambda stream: PIL.Image.new(mode, (7, 5)).save(stream, image_format))


PNG = file(lambda stream: PIL.Image.new("RGBA", (7, 5)).save(stream, "PNG"))
WAV = file(
    lambda stream: soundfile.write(stream, np.zeros((80, 2), np.int16), 8000, format="WAV", subtype="PCM_16")
)


def npy(shape):
    return file(lambda stream: np.save(stream, np.zeros(shape, np.float32)))


NPY = npy((2, 3))


@pytest.mark.parametrize(
    ("name", "data", "found"),
    [
        ("png", PNG, ("PNG image, RGBA", (5, 7, 4), None)),
        ("seg.png", PNG, ("PNG image, RGBA", (5, 7, 4), None)),
        ("wav", WAV, ("WAV sound, 8000 Hz", (2, 80), None)),
        ("npy", NPY, ("array of float32", (2, 3), None)),
        ("cls", b"-3", ("int", None, -3)),
        ("txt", "Häuser".encode(), ("text", (6,), None)),
        ("json", b'[1, 2, "a"]', ("list of int or text", (3,), None)),
        ("json", b'{"a": 1}', ("object with a", None, None)),
        ("json.gz", b"no gzip", ("unreadable", None, None)),
        ("jpg", PNG[:20], ("unreadable", None, None)),
        ("pkl", b"cos\nsystem\n", ("unreadable", None, None)),
        ("bin", b"12", ("bytes", (2,), None)),
        ("json", b"[]", ("list of nothing", (0,), None)),
        (
            "json",
            b'{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6}',
            ("object with a, b, c, d, e, f", None, None),
        ),
        (
            "json",
            b'{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7}',
            ("object with a, b, c, d, e, f, ...", None, None),
        ),
        ("mp3", b"no sound", ("audio", None, None)),
        ("jpg", picture("L", "JPEG"), ("JPEG image, L", (5, 7), None)),
        ("jpg", picture("CMYK", "JPEG"), ("JPEG image, CMYK", (5, 7, 4), None)),
        ("png", picture("P", "PNG"), ("PNG image, P", (5, 7), None)),
        ("png", picture("LA", "PNG"), ("PNG image, LA", (5, 7, 2), None)),
        ("tif", picture("F", "TIFF"), ("TIFF image, F", (5, 7), None)),
        (
            "avi",
            video("avi", "mpeg4", sound=True),
            ("mpeg4 video, 5 frames/s, pcm_s16le sound", (7, 16, 32, 3), None),
        ),
        ("mp4", video("mp4", "mpeg4"), ("mpeg4 video, 5 frames/s", (7, 16, 32, 3), None)),
        ("mp4", video("mp4", "mpeg4")[:-200], ("unreadable", None, None)),
        ("avi", video("avi", "mjpeg"), ("mjpeg video, 5 frames/s", (7, 16, 32, 3), None)),
    ],
)
def test_a_field_is_described(name, data, found):
    assert describe(name, data) == found


@given(
    name=st.sampled_from(["png", "jpg", "wav", "npy", "npz", "json", "cls", "mp", "ten", "json.gz", "pth"]),
    data=st.one_of(st.binary(max_size=200), st.binary(max_size=40).map(lambda tail: PNG[:-30] + tail)),
)
def test_any_bytes_have_a_description(name, data):
    kind, _, _ = describe(name, data)
    assert kind


@given(
    tail=st.binary(max_size=60),
    start=st.sampled_from([PNG[:40], b"PK\x03\x04", b"\x1f\x8b\x08", b"OggS", b""]),
)
def test_checking_any_bytes_ends_well_or_in_a_value_error(start, tail):
    try:
        check_checksums(start + tail)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - most bytes are in order


@pytest.mark.parametrize(
    ("name", "fields", "text"),
    [
        ("cls", [b"3", b"-1", b"7"], "-1 to 7"),
        ("cls", [b"3", b"3"], "3"),
        ("png", [PNG, PNG], "5 x 7 x 4"),
        ("txt", [b"abc", b"abcdef"], "3-6"),
        ("npy", [NPY, npy((2, 5)), npy((4,))], "2 x 3-5; 4"),
        ("json", [b"{}"], ""),
    ],
    ids=["numbers", "one number", "one shape", "lengths", "several dimensions", "nothing"],
)
def test_shapes_and_numbers_are_summed_up(name, fields, text):
    figures = FieldFigures()
    for data in fields:
        figures.add(name, len(data), data)
    assert figures.shape_text == text


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(-9, 9)), max_size=12), st.integers(0, 12))
def test_figures_of_parts_merge_to_those_of_the_whole(fields, cut):
    def of(part):
        figures = FieldFigures()
        for size, value in part:
            figures.add("cls", size, b"%d" % value)
        return figures

    merged = of(fields[:cut])
    merged.merge(of(fields[cut:]))
    assert merged == of(fields)


def test_the_most_frequent_kinds_are_shown_with_their_counts():
    figures = FieldFigures()
    fields = [b"1"] * 4 + [b"[]"] * 3 + [b"{}"] * 2 + [b'"text"']
    for data in fields:
        figures.add("json", len(data), data)
    assert figures.kind_text == "int (4); list of nothing (3); object with  (2)"


def test_of_many_kinds_those_after_the_first_are_counted_as_one(monkeypatch):
    monkeypatch.setattr("mpwds.cli.inspect.describing._MOST_KINDS", 2)
    figures = FieldFigures()
    for data in (b"1", b"[]", b"{}", b'"text"', b"2"):
        figures.add("json", len(data), data)
    assert dict(figures.kinds) == {"int": 2, "list of nothing": 1, "others": 2}


def test_an_mpg_is_a_video_though_webdataset_lists_it_among_images():
    data = video("mpeg", "mpeg1video")
    assert describe("mpg", data)[0].startswith("mpeg1video video, 25 frames/s")
    make_decoder()("x.mpg", data)
