import io

import av
import numpy as np
import PIL.Image
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from mpwds.cli.inspect.checking import check_checksums
from mpwds.cli.inspect.describing import FieldFigures, describe


def file(save):
    save(stream := io.BytesIO())
    return stream.getvalue()


def video(kind, codec):
    """Seven red frames."""
    with av.open(stream := io.BytesIO(), "w", format=kind) as container:
        pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        track = container.add_stream(codec, rate=5, width=32, height=16, pix_fmt=pixels)
        for _ in range(7):
            frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), (200, 0, 0), np.uint8))
            container.mux(track.encode(frame))
        container.mux(track.encode())
    return stream.getvalue()


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
