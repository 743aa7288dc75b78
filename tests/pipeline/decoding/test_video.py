"""Decoding video: torchvision's layouts and FFmpeg's pixels, whole files and parts, and errors for damage."""

import fractions
import functools
import io
import subprocess
import sys

import av
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import mpwds
from mpwds.pipeline.decoding.audio import torch_audio
from mpwds.pipeline.decoding.decoders import Decoder
from mpwds.pipeline.decoding.fields import VIDEO_EXTENSIONS
from mpwds.pipeline.decoding.video import VideoDecoder, torch_video
from tests.pipeline.decoding.files import Files, assert_holds_tones, encode_sound, still, tones, with_damage

RATE = 48000  # the one rate that every sound codec here takes
FPS = 10
SAMPLES = int(2.5 * RATE)


def picture(number):
    """Smooth enough for lossy codecs to keep: what differs from picture to picture is the red level."""
    pixels = np.empty((32, 48, 3), np.uint8)
    pixels[:, :, 0] = 20 + 4 * number
    pixels[:, :, 1] = np.linspace(30, 200, 48)
    pixels[:, :, 2] = np.linspace(30, 200, 32)[:, None]
    return pixels


def make(kind, codec=None, sound=None, count=25, times=None, options=None, gop=5):
    file = io.BytesIO()
    with av.open(file, "w", format=kind, options=options or {}) as container:
        video = container.add_stream(codec, rate=FPS, width=48, height=32) if codec else None
        audio = container.add_stream(sound, rate=RATE, layout="stereo") if sound else None
        if video is not None:
            video.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
            video.gop_size = gop
            video.bit_rate = 2_000_000
            for number in range(count):
                frame = av.VideoFrame.from_ndarray(picture(number))
                if times is not None:
                    frame.pts, frame.time_base = times[number], fractions.Fraction(1, FPS)
                container.mux(video.encode(frame))
            container.mux(video.encode(None))
        if audio is not None:
            encode_sound(container, audio, tones(count / FPS, RATE), RATE)
    return file.getvalue()


KINDS = {
    "mp4": ("mp4", "mpeg4", "aac"),
    "h264.mp4": ("mp4", "libx264", "aac"),
    "fragmented.mp4": ("mp4", "libx264", "aac", 25, None, {"movflags": "frag_keyframe+empty_moov"}),
    "mov": ("mov", "mjpeg", "pcm_s16le"),
    "webm": ("webm", "libvpx", "libopus"),
    "mkv": ("matroska", "libx264", "pcm_s16le"),
    "avi": ("avi", "mjpeg", "pcm_u8"),
    "mpg": ("mpeg", "mpeg2video", "mp2"),
    "wmv": ("asf", "wmv2"),
    "ts": ("mpegts", "libx264", "aac"),
    "h264": ("h264", "libx264"),
    "mjpeg": ("mjpeg", "mjpeg"),
}


FILES = Files({name: functools.partial(make, *arguments) for name, arguments in KINDS.items()})
WITHOUT_TIMES = ("h264",)
WITHOUT_SIZE = ("mpg", "ts", "h264", "mjpeg", "fragmented.mp4")
STATE_SIZE = sorted(set(KINDS) - set(WITHOUT_SIZE))


def decode(data, **options):
    return VideoDecoder("numpy", **options)(".mp4", data)


def pixels_of(data):
    with av.open(io.BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.mark.parametrize("name", KINDS)
def test_frames_are_those_of_ffmpeg_to_the_bit_and_show_what_was_encoded(name):
    frames, _, _ = decode(FILES[name])
    assert frames.shape == (25, 32, 48, 3)
    assert np.array_equal(frames, pixels_of(FILES[name]))
    expected = np.stack([picture(number) for number in range(25)])
    assert np.abs(frames.astype(int) - expected).mean() < 5
    assert np.array_equal(decode(FILES[name], threads=3)[0], frames)


@pytest.mark.parametrize("name", [name for name, arguments in KINDS.items() if len(arguments) > 2])
def test_sound_is_float32_channels_first(name):
    _, sound, info = decode(FILES[name])
    assert (sound.dtype, len(sound), info["audio_fps"]) == (np.float32, 2, RATE)
    assert abs(sound.shape[1] - SAMPLES) < 4000  # codecs fill up their last frame
    assert_holds_tones(sound, RATE)


def test_results_are_laid_out_as_by_torchvision():
    frames, sound, info = torch_video(".mp4", FILES["mp4"])
    assert (frames.dtype, frames.shape) == (torch.uint8, (25, 32, 48, 3))
    assert (sound.dtype, len(sound)) == (torch.float32, 2)
    assert SAMPLES <= sound.shape[1] < SAMPLES + 1024
    assert info == {"video_fps": 10.0, "audio_fps": RATE}
    assert [type(value) for value in info.values()] == [float, int]


def test_a_file_without_sound_gives_one_empty_channel():
    frames, sound, info = torch_video(".wmv", FILES["wmv"])
    assert (len(frames), sound.dtype, sound.shape) == (25, torch.float32, (1, 0))
    assert info == {"video_fps": 10.0}


def test_a_file_without_video_gives_no_frames():
    frames, sound, info = torch_video(".mp4", make("mp4", None, "aac"))
    assert (frames.dtype, frames.shape, len(sound)) == (torch.uint8, (0, 1, 1, 3), 2)
    assert info == {"audio_fps": RATE}


def test_the_extensions_are_webdatasets():
    assert {"mp4", "ogv", "mjpeg", "avi", "mov", "h264", "mpg", "webm", "wmv"} == VIDEO_EXTENSIONS
    assert torch_video(".mkv", FILES["mkv"]) is None
    assert torch_video(".mp4.txt", b"text") is None
    assert len(torch_video(".front.MP4", FILES["mp4"])[0]) == 25
    assert VideoDecoder(extensions="mkv MP4").extensions == {"mkv", "mp4"}


def test_memoryviews_decode_like_bytes():
    view = memoryview(b"__" + FILES["mp4"])[2:]
    assert np.array_equal(decode(view)[0], decode(FILES["mp4"])[0])


def test_results_are_writable_and_own_no_more_than_they_show():
    for kind in ("mp4", "mkv", "h264"):
        frames, sound, _ = decode(FILES[kind])
        assert frames.flags.writeable
        assert frames.flags.c_contiguous
        assert frames.base is None
        assert sound.flags.writeable


def test_frames_of_unequal_length_are_each_given_once():
    uneven = make("mp4", "mpeg4", count=5, times=[0, 1, 2, 6, 10])
    frames, _, info = decode(uneven)
    assert frames[:, 0, 0, 0].argsort().tolist() == list(range(5))
    assert 4 <= info["video_fps"] <= 5
    assert len(decode(uneven, start=0.15, end=0.9)[0]) == 2


# These store exact times, and their first frame and sample come at the start of the file.
@pytest.mark.parametrize("name", ["mp4", "h264.mp4", "mov", "avi", "wmv"])
@pytest.mark.parametrize(("start", "end"), [(0, 0.5), (0.5, None), (1.6, 2.0), (2.4, 9)])
def test_a_span_of_time_is_that_part_of_the_whole(name, start, end):
    whole, whole_sound, info = decode(FILES[name])
    frames, sound, span_info = decode(FILES[name], start=start, end=end)
    last = None if end is None else round(end * FPS)
    assert np.array_equal(frames, whole[round(start * FPS) : last])
    expected = whole_sound[:, round(start * RATE) : None if end is None else round(end * RATE)]
    assert sound.shape == (expected.shape if whole_sound.size else (1, 0))
    assert np.allclose(sound, expected, atol=1e-3)
    assert span_info == info


@pytest.mark.parametrize("name", sorted(set(KINDS) - set(WITHOUT_TIMES)))
@given(start=st.integers(0, 26).map(lambda n: n / 10), length=st.integers(1, 26).map(lambda n: n / 10))
@settings(max_examples=8)
def test_seeking_finds_what_decoding_from_the_beginning_finds(name, start, length):
    decoder = VideoDecoder("numpy", start=start, end=start + length)
    frames, sound, _ = decoder(".mp4", FILES[name])
    expected_frames, expected_sound, _ = decoder._decoded(FILES[name], seek=False)
    assert np.array_equal(frames, expected_frames)
    assert sound.shape == expected_sound.shape
    assert np.allclose(sound, expected_sound, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "codec"), [("mpegts", "libx264"), ("mpegts", "mpeg2video"), ("mp4", "mpeg4")]
)
@pytest.mark.parametrize("gop", [20, 100])
def test_key_frames_may_be_rare(kind, codec, gop):
    data = make(kind, codec, count=45, gop=gop)
    frames, _, _ = decode(data, start=1.9, end=2.2)
    assert np.array_equal(frames, decode(data)[0][19:22])


def test_sound_goes_on_after_the_last_frame_and_is_left_out_on_request():
    assert decode(FILES["mp4"], max_frames=1)[1].shape[1] >= SAMPLES
    _, sound, info = decode(FILES["mp4"], audio=False)
    assert (sound.shape, info) == ((1, 0), {"video_fps": 10.0})


def test_what_lies_behind_the_end_is_empty():
    frames, sound, _ = decode(FILES["mp4"], start=7)
    assert (frames.shape, sound.shape) == ((0, 1, 1, 3), (2, 0))


def test_a_stream_without_times_has_no_spans():
    for span in ({"end": 1}, {"start": 0.5}, {"start": 2}):
        with pytest.raises(ValueError, match="the video holds no times, so it can only be decoded from its"):
            decode(FILES["h264"], **span)


@pytest.mark.parametrize("name", ["mp4", "mkv", "h264"])
@given(every=st.integers(1, 30), limit=st.none() | st.integers(1, 30))
@example(every=1, limit=24)
@settings(max_examples=8)
def test_every_nth_frame_up_to_a_number(name, every, limit):
    frames, _, info = decode(FILES[name], every=every, max_frames=limit)
    whole, _, whole_info = decode(FILES[name])
    assert np.array_equal(frames, whole[::every][:limit])
    assert info["video_fps"] == pytest.approx(whole_info["video_fps"] / every)


def turned(data, matrix):
    """An MP4 file with another display matrix: it lies 40 bytes into the first track header (version 0)."""
    at = data.index(b"tkhd") + 4 + 40
    packed = b"".join(value.to_bytes(4, "big", signed=True) for value in matrix)
    return data[:at] + packed + data[at + 36 :]


ONE, BASE = 1 << 16, 1 << 30
QUARTER_RIGHT = (0, ONE, 0, -ONE, 0, 0, 32 * ONE, 0, BASE)
HALF = (-ONE, 0, 0, 0, -ONE, 0, 48 * ONE, 32 * ONE, BASE)


def test_frames_are_turned_upright_on_request_only():
    whole = decode(FILES["mp4"])[0]
    right, upside_down = turned(FILES["mp4"], QUARTER_RIGHT), turned(FILES["mp4"], HALF)
    assert np.array_equal(decode(right)[0], whole)
    assert np.array_equal(decode(right, rotate=True)[0], np.rot90(whole, -1, axes=(1, 2)))
    assert np.array_equal(decode(upside_down, rotate=True)[0], np.rot90(whole, 2, axes=(1, 2)))
    assert np.array_equal(decode(FILES["mp4"], rotate=True)[0], whole)


def test_a_turn_by_another_angle_is_an_error():
    slanted = turned(FILES["mp4"], (46341, 46341, 0, -46341, 46341, 0, 0, 0, BASE))
    with pytest.raises(ValueError, match="turn its frames by -?45 degrees; only multiples of 90"):
        decode(slanted, rotate=True)


def test_frames_that_change_their_size_are_an_error():
    small, large = make("mjpeg", "mjpeg", count=2), still(64, 32, "mjpeg", "mjpeg", "yuvj420p")
    with pytest.raises(ValueError, match="the frames change their size from 48x32 to 64x32"):
        decode(small + large)


@pytest.mark.parametrize("name", STATE_SIZE)
@given(share=st.floats(0.001, 0.9))
@settings(max_examples=8)
def test_a_file_that_is_cut_off_is_an_error(name, share):
    with pytest.raises(ValueError, match="cut off|damaged"):
        decode(FILES[name][: int(len(FILES[name]) * share)])


@pytest.mark.parametrize("name", ["mkv", "webm", "avi", "h264", "ts"])
def test_of_a_file_that_is_cut_off_the_rest_is_given_on_request(name):
    cut = FILES[name][: int(len(FILES[name]) * 0.6)]
    frames, _, _ = decode(cut, allow_partial=True)
    assert 0 < len(frames) < 25


def test_damage_in_the_midst_is_an_error_unless_partial_files_are_welcome():
    data = bytearray(FILES["h264.mp4"])
    middle = data.index(b"mdat") + 1500
    data[middle : middle + 400] = bytes(400)
    with pytest.raises(ValueError, match=r"the \w+ is damaged or cut off at \d\.\d+ s: .*allow_partial"):
        decode(bytes(data))
    frames, sound, _ = decode(bytes(data), allow_partial=True)
    assert 10 < len(frames) <= 25
    assert len(sound) == 2


def test_a_frame_that_is_not_whole_is_an_error():
    with pytest.raises(ValueError, match=r"the video is damaged or cut off: a frame of it has errors"):
        decode(FILES["h264"][: len(FILES["h264"]) // 2])


def test_colours_that_nobody_knows_are_an_error():
    extension, colours = b"\0\0\1\xb5\x81", b"\0\0\1\xb5\x21"
    assert extension in FILES["mpg"]
    with pytest.raises(ValueError, match="a frame cannot be converted to RGB, or is damaged: "):
        decode(FILES["mpg"].replace(extension, colours))


def test_damage_behind_the_end_is_not_looked_at():
    cut = FILES["mjpeg"][:-300]
    with pytest.raises(ValueError, match="the video is damaged or cut off"):
        decode(cut)
    assert len(decode(cut, max_frames=20)[0]) == 20


@given(name=st.sampled_from(sorted(KINDS)), allow_partial=st.booleans(), data=st.data())
def test_any_damage_gives_a_result_or_a_value_error(name, allow_partial, data):
    try:
        frames, sound, info = decode(with_damage(FILES[name], data), allow_partial=allow_partial)
    except ValueError:
        return
    assert (frames.ndim, sound.ndim, type(info)) == (4, 2, dict)


def test_a_file_with_neither_is_an_error():
    subtitles = b"1\n00:00:00,000 --> 00:00:01,000\nhello\n\n"
    with pytest.raises(ValueError, match="no video or audio stream"):
        torch_video(".mp4", subtitles)


def test_a_file_decodes_without_torch_in_one_thread():
    code = (
        "import os, sys; from mpwds.pipeline.decoding import video\n"
        "data = sys.stdin.buffer.read(); threads = set(); add = video._Pixels.add\n"
        "def counted(self, frame): add(self, frame); threads.add(len(os.listdir('/proc/self/task')))\n"
        "import av; before = len(os.listdir('/proc/self/task')); video._Pixels.add = counted\n"
        "frames = video.VideoDecoder('numpy')('.mp4', data)[0]\n"
        "print(len(frames), 'torch' in sys.modules, max(threads) - before)"
    )
    program, data = [sys.executable, "-c", code], FILES["h264.mp4"]
    output = subprocess.run(program, input=data, capture_output=True, check=True).stdout
    assert output.split() == [b"25", b"False", b"0"]


def test_a_missing_pyav_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"video is decoded with PyAV: pip install 'mpwds\[video\]'"):
        torch_video(".mp4", FILES["mp4"])


def test_videos_and_sounds_in_samples_are_decoded_each_by_its_decoder():
    sample = {"mp4": FILES["mp4"], "m4a": make("mp4", None, "aac"), "cls": b"7"}
    (decoded,) = mpwds.DataPipeline([sample]).decode(torch_video, torch_audio)
    assert [len(decoded["mp4"][0]), decoded["m4a"][1], decoded["cls"]] == [25, RATE, 7]


def test_a_damaged_video_is_a_decode_error_that_names_the_sample():
    with pytest.raises(
        mpwds.DecodeError, match='field "mp4" of sample "7" in x.tar cannot be decoded'
    ) as caught:
        Decoder(torch_video)({"__key__": "7", "__url__": "x.tar", "mp4": FILES["mp4"][:9000]})
    assert "the file is cut off" in str(caught.value)
