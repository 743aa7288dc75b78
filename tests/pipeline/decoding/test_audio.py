"""Decoding audio: torchaudio's layout and values, whole files and parts, and errors for damage."""

import io
import subprocess
import sys
from functools import partial

import av
import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.decoding.audio import AudioDecoder, torch_audio
from mpwds.pipeline.decoding.fields import AUDIO_EXTENSIONS
from tests.pipeline.decoding.files import Files, assert_holds_tones, encode_sound, still, tones, with_damage

RATE = 16000
SECONDS = 3
WAVE = tones(SECONDS, RATE)


def stored(kind, subtype=None, wave=WAVE, rate=RATE, **options):
    file = io.BytesIO()
    soundfile.write(file, wave.T, rate, format=kind, subtype=subtype, **options)
    return file.getvalue()


def encoded(kind, codec, wave=WAVE, rate=RATE, options=None, codec_options=None):
    file = io.BytesIO()
    layout = "stereo" if len(wave) == 2 else "mono"
    with av.open(file, "w", format=kind, options=options or {}) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout, options=codec_options or {})
        if codec == "wmav2":
            stream.bit_rate = 64_000
        encode_sound(container, stream, wave, rate)
    return file.getvalue()


NO_LENGTH = {"options": {"write_xing": "0"}}
LOSSLESS = {
    "wav": partial(stored, "WAV", "PCM_16"),
    "24-bit wav": partial(stored, "WAV", "PCM_24"),
    "float wav": partial(stored, "WAV", "FLOAT"),
    "8-bit wav": partial(stored, "WAV", "PCM_U8"),
    "flac": partial(stored, "FLAC", "PCM_16"),
    "aiff": partial(stored, "AIFF", "PCM_16"),
    "sox": partial(encoded, "sox", "pcm_s32le"),
}
LOSSY = {
    "vorbis": partial(stored, "OGG", "VORBIS"),
    "mp3": partial(stored, "MP3"),
    "mp3 of variable rate": partial(stored, "MP3", bitrate_mode="VARIABLE"),
    "m4a": partial(encoded, "ipod", "aac"),
}
# Their encoders' delay is not stated, or they know other rates only.
DELAYED = {
    "mp3 without length": partial(encoded, "mp3", "libmp3lame", **NO_LENGTH),
    "wma": partial(encoded, "asf", "wmav2"),
    "aac": partial(encoded, "adts", "aac"),
}
KINDS = {**LOSSLESS, **LOSSY, **DELAYED}


FILES = Files(KINDS)


def decode(data, **options):
    return AudioDecoder("numpy", **options)(".wav", data)


@pytest.mark.parametrize("name", LOSSLESS)
def test_waveforms_are_what_was_stored(name):
    waveform, rate = decode(FILES[name])
    assert (waveform.shape, waveform.dtype, rate) == (WAVE.shape, np.float32, RATE)
    assert np.abs(waveform - WAVE).max() < (2**-6 if name == "8-bit wav" else 2**-15)


@pytest.mark.parametrize("name", LOSSY)
def test_compressed_waveforms_are_close_and_in_place(name):
    waveform, rate = decode(FILES[name])
    assert (waveform.dtype, rate) == (np.float32, RATE)
    assert WAVE.shape[1] <= waveform.shape[1] < WAVE.shape[1] + 1024
    assert np.abs(waveform[:, 2000:40000] - WAVE[:, 2000:40000]).mean() < 0.02


@pytest.mark.parametrize("name", DELAYED)
def test_compressed_waveforms_hold_the_tones(name):
    waveform, rate = decode(FILES[name])
    assert (waveform.dtype, len(waveform), rate) == (np.float32, 2, RATE)
    assert abs(waveform.shape[1] - WAVE.shape[1]) < 6000
    assert_holds_tones(waveform, RATE)


@pytest.mark.parametrize("name", KINDS)
def test_memoryviews_decode_like_bytes_and_results_are_writable(name):
    waveform, _ = decode(memoryview(b"__" + FILES[name])[2:])
    assert np.array_equal(waveform, decode(FILES[name])[0])
    assert waveform.flags.writeable


def test_opus_comes_at_its_own_rate():
    waveform, rate = torch_audio(".ogg", encoded("ogg", "libopus", rate=48000))
    assert (len(waveform), rate) == (2, 48000)


def test_results_are_laid_out_as_by_torchaudio():
    waveform, rate = torch_audio(".wav", FILES["wav"])
    assert (waveform.dtype, waveform.shape) == (torch.float32, (2, RATE * SECONDS))
    assert waveform.is_contiguous()
    assert type(rate) is int
    assert torch_audio(".wav", stored("WAV", "PCM_16", WAVE[:1]))[0].shape == (1, RATE * SECONDS)


def test_the_extensions_are_webdatasets():
    assert {"flac", "mp3", "sox", "wav", "m4a", "ogg", "wma"} == AUDIO_EXTENSIONS
    assert torch_audio(".aiff", FILES["aiff"]) is None
    assert torch_audio(".left.WAV", FILES["wav"])[1] == RATE
    assert AudioDecoder(extensions="opus AAC").extensions == {"opus", "aac"}


def test_the_content_counts_not_the_name():
    assert np.array_equal(torch_audio(".mp3", FILES["flac"])[0], torch_audio(".flac", FILES["flac"])[0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32"])
@pytest.mark.parametrize("name", ["wav", "float wav", "flac", "sox", "m4a"])
def test_all_types_hold_the_same_wave(name, dtype):
    waveform, _ = decode(FILES[name], dtype=dtype)
    whole = 1 if dtype.startswith("float") else -float(np.iinfo(dtype).min)
    assert waveform.dtype == dtype
    assert np.allclose(waveform / whole, decode(FILES[name])[0], atol=2**-15)


def test_integers_are_the_stored_ones():
    samples = np.array([[-32768, -1, 0, 1, 32767]], np.int16)
    data = stored("WAV", "PCM_16", samples)
    assert decode(data, dtype="int16")[0].tolist() == samples.tolist()
    assert decode(data, dtype="int32")[0].tolist() == (samples.astype(np.int32) << 16).tolist()


def test_what_is_louder_than_full_scale_is_limited_as_integers():
    data = stored("WAV", "FLOAT", np.array([[-2.0, 2.0]]))
    assert decode(data)[0].tolist() == [[-2, 2]]
    assert decode(data, dtype="int16")[0].tolist() == [[-32768, 32767]]
    assert decode(data, dtype="int32")[0].tolist() == [[-(2**31), 2**31 - 1]]


@pytest.mark.parametrize("name", ["wav", "m4a"])
def test_mono_is_the_average_of_the_channels(name):
    waveform, _ = decode(FILES[name], mono=True)
    assert np.allclose(waveform, decode(FILES[name])[0].mean(axis=0, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("name", sorted(KINDS))
@given(start=st.integers(0, 35), duration=st.none() | st.integers(1, 35))
@settings(max_examples=10)
def test_a_span_of_time_is_that_part_of_the_whole(name, start, duration):
    whole, _ = decode(FILES[name])
    waveform, _ = decode(FILES[name], start=start / 10, duration=duration and duration / 10)
    first = start * RATE // 10
    expected = whole[:, first : None if duration is None else first + duration * RATE // 10]
    if name == "wma":  # times count from the frame that the decoder keeps back, and in milliseconds
        assert abs(waveform.shape[1] - expected.shape[1]) < 1100
    else:
        assert waveform.shape == expected.shape
        assert np.allclose(waveform, expected, atol=1e-3)


def test_mp3_that_does_not_state_its_length_is_given_whole():
    quiet_then_loud = np.concatenate([WAVE[:, :1], np.zeros((2, RATE * 5)), 0.9 * WAVE, WAVE], axis=1)
    options = {"q": "4", "global_quality": "500", "flags": "+qscale"}
    with_length, without = (
        encoded("mp3", "libmp3lame", quiet_then_loud, options={"write_xing": xing}, codec_options=options)
        for xing in ("1", "0")
    )
    assert abs(decode(without)[0].shape[1] - decode(with_length)[0].shape[1]) < 4000


def test_flac_that_does_not_state_its_length_is_given_whole():
    data = bytearray(FILES["flac"])
    length = slice(4 + 4 + 13, 4 + 4 + 18)  # the last 36 bits of these 40
    data[length] = (int.from_bytes(data[length], "big") & ~((1 << 36) - 1)).to_bytes(5, "big")
    waveform, _ = decode(bytes(data))
    assert np.array_equal(waveform, decode(FILES["flac"])[0])


@pytest.mark.parametrize("kind", ["MP3", "OGG"])
def test_long_compressed_files_are_read_exactly(kind):
    data = stored(kind, wave=np.tile(WAVE[:1], 25), bitrate_mode="VARIABLE" if kind == "MP3" else None)
    expected, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    assert len(expected) > 1 << 20
    assert np.allclose(decode(data)[0], expected.T, rtol=0, atol=1e-6)
    assert np.allclose(decode(data, start=70)[0], expected[70 * RATE :].T, rtol=0, atol=1e-6)


def test_long_files_are_read_whole():
    ramp = np.arange(3_000_000, dtype=np.int32).astype(np.int16)[None]
    assert np.array_equal(decode(stored("WAV", "PCM_16", ramp), dtype="int16")[0], ramp)


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"mp3 without length", "aac"}))
@given(share=st.floats(0.01, 0.95))
@settings(max_examples=10)
def test_a_file_that_is_cut_off_is_an_error(name, share):
    with pytest.raises(ValueError, match="cut off|damaged"):
        decode(FILES[name][: int(len(FILES[name]) * share)])


@pytest.mark.parametrize("name", ["wav", "flac", "vorbis", "mp3", "sox", "mp3 without length", "aac"])
def test_of_a_file_that_is_cut_off_the_rest_is_given_on_request(name):
    data = stored("OGG", "VORBIS", np.tile(WAVE, 9)) if name == "vorbis" else FILES[name]
    waveform, _ = decode(data[: len(data) * 2 // 3], allow_partial=True)
    whole, _ = decode(data)
    assert RATE < waveform.shape[1] < whole.shape[1]
    assert np.allclose(waveform[:, :RATE], whole[:, :RATE], atol=1e-3)


@pytest.mark.parametrize("name", ["flac", "vorbis", "m4a", "aac"])
def test_damage_in_the_midst_is_an_error(name):
    data = bytearray(FILES[name])
    middle = len(data) // 2
    data[middle : middle + 300] = bytes(300)
    with pytest.raises(ValueError, match=r"is damaged"):
        decode(bytes(data))


@given(name=st.sampled_from(sorted(KINDS)), allow_partial=st.booleans(), data=st.data())
def test_any_damage_gives_a_result_or_a_value_error(name, allow_partial, data):
    try:
        waveform, rate = decode(with_damage(FILES[name], data), allow_partial=allow_partial)
    except ValueError:
        return
    assert (waveform.ndim, type(rate)) == (2, int)


def test_a_file_without_sound_is_an_error():
    with pytest.raises(ValueError, match="the file has no audio stream"):
        torch_audio(".m4a", still(32, 32))


def test_arrays_do_without_torch():
    code = (
        "import sys; from mpwds.pipeline.decoding.audio import AudioDecoder; data = sys.stdin.buffer.read()\n"
        "print(len(AudioDecoder('numpy')('.wav', data)[0]), 'torch' in sys.modules, 'av' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=FILES["wav"], capture_output=True, check=True)
    assert done.stdout.split() == [b"2", b"False", b"False"]


def test_missing_packages_name_their_extras(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"audio of this kind is decoded with PyAV: .*'mpwds\[video\]'"):
        torch_audio(".m4a", FILES["m4a"])
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ImportError, match=r"audio is decoded with soundfile: pip install 'mpwds\[audio\]'"):
        torch_audio(".wav", FILES["wav"])
