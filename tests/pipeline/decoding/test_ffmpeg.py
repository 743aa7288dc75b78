"""What is particular to FFmpeg: it touches nothing but the data, and its samples become floats."""

import av
import numpy as np
import pytest

from mpwds.pipeline.decoding.media import Media, Sound
from tests.pipeline.decoding.files import still


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
