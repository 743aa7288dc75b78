"""Sound and video: whether files are all there, and what is particular to FFmpeg."""

import contextlib
import pickle
import struct

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.decoding.audio import AudioDecoder, torch_audio
from mpwds.pipeline.decoding.media import Media, Sound, check_complete, mp3_length
from mpwds.pipeline.decoding.video import VideoDecoder, torch_video
from tests.pipeline.decoding.files import still


def box(name, body, wide=False):
    if wide:
        return struct.pack(">I4sQ", 1, name, 16 + len(body)) + body
    return struct.pack(">I4s", 8 + len(body), name) + body


def chunk(name, body, order="<"):
    return struct.pack(order + "4sI", name, len(body)) + body + bytes(len(body) % 2)


def element(identifier, body, size=None):
    length = size if size is not None else (1 << 28 | len(body)).to_bytes(4, "big")
    return identifier + length + body


def page(body, last):
    lacing = bytes([255] * (len(body) // 255) + [len(body) % 255])
    head = b"OggS\0" + bytes([4 * last]) + bytes(16)
    tail = bytes([len(lacing)]) + lacing + body
    return head + checksum(head + bytes(4) + tail).to_bytes(4, "little") + tail


def checksum(data):
    register = 0
    for byte in data:
        register ^= byte << 24
        for _ in range(8):
            register = (register << 1 ^ (0x04C11DB7 if register >> 31 else 0)) & 0xFFFFFFFF
    return register


def mp3():
    head = b"\xff\xfb\x90\0" + bytes(32) + b"Info" + struct.pack(">II", 3, 7)
    return head + struct.pack(">I", len(head) + 4 + len(BODY)) + BODY


HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
OBJECT = bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c")
EBML, SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
BODY = bytes(range(251))

WHOLE = {
    "mp4": box(b"ftyp", b"isom") + box(b"moov", BODY) + box(b"mdat", BODY),
    "mp4 with a wide size": box(b"ftyp", b"isom") + box(b"mdat", BODY, wide=True),
    "mov": box(b"wide", b"") + box(b"mdat", BODY),
    "fragments": box(b"ftyp", b"isom") + box(b"moov", b"") + box(b"moof", BODY) + box(b"mdat", BODY),
    "wav": b"RIFF\0\0\0\0WAVE" + chunk(b"fmt ", bytes(16)) + chunk(b"data", BODY + b"."),
    "wav with a text": b"RIFF\0\0\0\0WAVE" + chunk(b"data", BODY) + chunk(b"LIST", BODY + b"."),
    "avi": b"RIFF\0\0\0\0AVI " + chunk(b"LIST", b"hdrl") + chunk(b"LIST", b"movi" + BODY + b"."),
    "aiff": b"FORM\0\0\0\0AIFF" + chunk(b"COMM", bytes(18), ">") + chunk(b"SSND", BODY + b".", ">"),
    "matroska": element(EBML, b"webm") + element(SEGMENT, BODY),
    "ogg": page(BODY, False) + page(BODY * 4, True),
    "ogg with an empty last page": page(BODY, False) + page(b"", True),
    "asf": HEADER + struct.pack("<Q", 28) + b"head" + OBJECT + struct.pack("<Q", 24 + len(BODY)) + BODY,
    "mp3": mp3(),
    "sox": b".SoX" + struct.pack("<IQ", 28, 100) + bytes(16) + bytes(400),
}
TAG = b"ID3\4\0\0\0\0\x27\x08" + bytes(5000)
UNSIZED = {
    "mp4 up to the end": box(b"ftyp", b"isom") + struct.pack(">I4s", 0, b"mdat") + BODY,
    "wav from a pipe": b"RIFF\xff\xff\xff\xffWAVE" + struct.pack("<4sI", b"data", 0xFFFFFFFF) + BODY,
    "wav from another pipe": b"RIFF\0\0\0\0WAVE" + struct.pack("<4sI", b"data", 0) + b"data" * 99,
    "live webm": element(EBML, b"webm") + element(SEGMENT, BODY, b"\x01" + b"\xff" * 7),
    "padded mp4": WHOLE["mp4"] + bytes(100),
    "padded avi": WHOLE["avi"] + bytes(100),
    "padded webm": WHOLE["matroska"] + bytes(100),
    "padded ogg": WHOLE["ogg"] + bytes(100),
    "tagged mp3": TAG + mp3(),
    "mp3 without length": b"\xff\xfb\x90\0" + bytes(500),
    "text": b"no media",
    "nothing": b"",
}


@pytest.mark.parametrize("data", [*WHOLE.values(), *UNSIZED.values()], ids=[*WHOLE, *UNSIZED])
def test_whole_files_and_files_without_sizes_pass(data):
    check_complete(data)
    check_complete(memoryview(data))


@pytest.mark.parametrize("name", WHOLE)
@settings(max_examples=30)
@given(missing=st.integers(1, len(BODY) - 1))
def test_a_file_without_its_end_is_an_error(name, missing):
    with pytest.raises(ValueError, match="the file is cut off"):
        check_complete(WHOLE[name][:-missing])


@pytest.mark.parametrize("data", [mp3(), TAG + mp3()])
def test_the_length_of_mp3_is_found_behind_a_tag(data):
    assert mp3_length(data) == (7, len(mp3()))
    assert mp3_length(data[: -len(BODY) - 1]) == (None, None)


@pytest.mark.parametrize(
    ("name", "part", "start"),
    [
        ("mp4", "mdat", 271),
        ("mp4 with a wide size", "mdat", 12),
        ("mov", "mdat", 8),
        ("fragments", "mdat", 279),
        ("wav", "data", 36),
        ("wav with a text", "LIST", 272),
        ("avi", "LIST", 24),
        ("aiff", "SSND", 38),
        ("matroska", "Segment", 12),
        ("asf", "data", 28),
        ("mp3", "MPEG", 0),
        ("sox", "samples", 32),
    ],
)
def test_the_error_says_what_is_missing(name, part, start):
    size = len(WHOLE[name])
    place = f'its part "{part}" at offset {start} ends at byte {size}, the data at byte {size - 1}$'
    with pytest.raises(ValueError, match=f"^the file is cut off: {place}"):
        check_complete(WHOLE[name][:-1])


@pytest.mark.parametrize(("flags", "numbers"), [(0, ()), (1, (7,)), (2, (999,)), (3, (7, 999))])
def test_mp3_may_state_either_number_or_none(flags, numbers):
    data = (
        b"\xff\xfb\x90\0"
        + bytes(32)
        + struct.pack(">4sI2I", b"Xing", flags, *numbers, *[0] * (2 - len(numbers)))
    )
    assert mp3_length(data) == (7 if flags & 1 else None, 999 if flags & 2 else None)


@given(offset=st.integers(4, len(WHOLE["ogg"]) - 1), damage=st.integers(1, 255))
def test_a_damaged_byte_of_an_ogg_stream_is_an_error(offset, damage):
    data = bytearray(WHOLE["ogg"])
    data[offset] ^= damage
    with pytest.raises(ValueError, match="the file is damaged|the file is cut off"):
        check_complete(bytes(data))


FIRST = page(BODY, False)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (FIRST * 2, "the file is cut off: its last Ogg page does not end the stream"),
        (
            FIRST + b"junk" * 9,
            f"the file is damaged: no Ogg page at offset {len(FIRST)}, where one should be",
        ),
        (FIRST + FIRST[:26], f"the file is cut off: its Ogg page at offset {len(FIRST)} ends after the data"),
        (FIRST + FIRST[:27], f"the file is cut off: its Ogg page at offset {len(FIRST)} ends after the data"),
        (FIRST[:-1], "the file is cut off: its Ogg page at offset 0 ends after the data"),
        (FIRST[:-1] + b"x", "the file is damaged: its Ogg page at offset 0 has the wrong checksum"),
    ],
)
def test_an_ogg_stream_without_all_its_pages_is_an_error_that_says_where(data, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_complete(data)


@given(st.sampled_from([*WHOLE.values()]), st.binary(max_size=40), st.integers(0, 60))
def test_damage_gives_no_other_error(data, damage, offset):
    with contextlib.suppress(ValueError):
        check_complete(data[:offset] + damage + data[offset + len(damage) :])


def test_a_file_that_names_another_file_does_not_open_it(tmp_path, monkeypatch):
    (tmp_path / "secret.mp4").write_bytes(still(32, 32))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="damaged, or no audio or video file"):
        Media(b"ffconcat version 1.0\nfile secret.mp4\n")


def test_a_file_that_describes_a_session_does_not_listen_to_the_network():
    session = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 26\n"
    with pytest.raises(ValueError, match="damaged, or no audio or video file"):
        Media(session.encode())


def test_a_stream_whose_codec_is_unknown_is_an_error():
    data = still(32, 32, "mov", "mjpeg", "yuvj420p").replace(b"jpeg", b"xxxx")
    with pytest.raises(ValueError, match="the codec of the video is unknown"):
        Media(data)


def test_only_kinds_that_are_wanted_are_decoded():
    movie = still(32, 32, count=3)
    with Media(movie) as media:
        assert [kind for kind, _, _ in media.frames({"audio"})] == []
    with Media(movie) as media:
        assert [kind for kind, _, _ in media.frames({"video", "audio"})] == ["video"] * 3
    with Media(movie) as media:
        wanted = {"video"}
        frames = media.frames(wanted)
        next(frames)
        wanted.clear()
        assert list(frames) == []


def sound_frame(samples, layout="stereo", rate=100):
    formats = {"u1": "u8", "i2": "s16", "i4": "s32", "f4": "flt", "f8": "dbl"}
    packed = np.ascontiguousarray(samples.T).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(packed, formats[samples.dtype.str[1:]], layout)
    frame.sample_rate = rate
    return frame


@pytest.mark.parametrize(
    ("dtype", "low", "middle", "half"),
    [
        ("u1", 0, 128, 192),
        ("i2", -(1 << 15), 0, 1 << 14),
        ("i4", -(1 << 31), 0, 1 << 30),
        ("f4", -1, 0, 0.5),
        ("f8", -1, 0, 0.5),
    ],
)
def test_samples_of_every_format_become_floats(dtype, low, middle, half):
    sound = Sound(0, None)
    sound.add(0.0, sound_frame(np.array([[low, middle], [half, middle]], dtype)))
    assert sound.joined().dtype == np.float32
    assert sound.joined().tolist() == [[-1, 0], [0.5, 0]]


def test_samples_are_placed_by_the_time_of_their_frame():
    ramp = np.arange(10, dtype="f4")
    sound = Sound(0.05, 0.25)
    more = [
        sound.add(time, sound_frame(np.stack([ramp, ramp]) + 100 * time, rate=100))
        for time in (0.0, 0.1, 0.2, 0.3)
    ]
    assert more == [True, True, False, False]
    assert sound.joined()[0].tolist() == pytest.approx([*range(5, 10), *range(10, 20), *range(20, 25)])


def test_sound_that_changes_on_the_way_is_an_error():
    frame = sound_frame(np.zeros((2, 4), "f4"))
    for other in (sound_frame(np.zeros((1, 4), "f4"), "mono"), sound_frame(np.zeros((2, 4), "f4"), rate=99)):
        sound = Sound(0, None)
        sound.add(0.0, frame)
        with pytest.raises(ValueError, match="changes its sampling rate or its number of channels"):
            sound.add(0.04, other)


def test_a_span_of_sound_without_times_is_an_error():
    with pytest.raises(ValueError, match="the audio holds no times"):
        Sound(1.0, None).add(None, sound_frame(np.zeros((2, 4), "f4")))


@pytest.mark.parametrize("decoder", [torch_audio, torch_video])
@pytest.mark.parametrize("data", [b"", b"no media", bytes(100)])
def test_what_is_neither_audio_nor_video_is_an_error(decoder, data):
    with pytest.raises(ValueError, match=rf"damaged, or no audio or video file \({len(data)} bytes\)"):
        decoder.decode(data)


@pytest.mark.parametrize(
    "decoder",
    [AudioDecoder("numpy", "int16", start=1.5, extensions=["aiff"]), VideoDecoder(every=2, extensions="mkv")],
)
def test_decoders_survive_pickling(decoder):
    assert pickle.loads(pickle.dumps(decoder)) == decoder
