"""Decode audio into waveforms."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mpwds.imports import require
from mpwds.pipeline.decoding.fields import AUDIO_EXTENSIONS, as_tensor
from mpwds.pipeline.decoding.media import (
    Data,
    Media,
    MediaDecoder,
    Sound,
    check_complete,
    mp3_length,
    seeking,
)
from mpwds.pipeline.error_context import check_choice

# Samples of all channels that are read at a time: a file can state any length, so memory is allocated for
# what has been read. Of a damaged file, up to one block before the damage may be lost.
_BLOCK = 1 << 20
_SMALL_BLOCK = 1 << 12
# soundfile seeks after each read, and libsndfile seeks inexactly in these formats. So such files are read in
# one go, unless they state more than _DENSEST samples for each byte.
_INEXACT = ("MP3", "OGG")
_DENSEST = 256
_UNKNOWN = 1 << 62  # soundfile states this length, or a larger one, for FLAC files that state none


@dataclass(frozen=True)
class AudioDecoder(MediaDecoder):
    """Handler for ``Decoder`` that decodes audio to ``(waveform, sample_rate)``.

    The waveform has the shape (channels, samples), as stored, not resampled; the rate is an ``int`` in Hz.

    A file's content, not its name, selects its decoder. libsndfile (``soundfile``) decodes WAV, FLAC, Ogg
    (Vorbis, Opus), AIFF and others, and MP3 files that state their length. FFmpeg (``av``) decodes the rest:
    M4A, WMA, SoX, and MP3 files that do not state their length (libsndfile would guess it). The wheels of
    both packages are self-contained; torchaudio needs FFmpeg's libraries on the system.

    A damaged or truncated file is an error where the damage can be detected. It cannot at the end of an MP3
    file that does not state its length.

    Args:
        output: ``"torch"`` for a tensor, ``"numpy"`` for an array, for which torch is not imported.
        dtype: ``"float32"`` or ``"float64"``, in [-1, 1]; ``"int16"`` or ``"int32"``, in the type's
            full range.
        mono: Average the channels into one, which stays as a dimension of 1.
        start: Where to begin, in seconds from the file's start.
        duration: Seconds to decode; ``None`` for the rest of the file. A span beyond the end is empty.
        allow_partial: Return what can be decoded of a damaged file, instead of an error.
        extensions: Extensions of the fields to decode; case is ignored.

    Raises:
        ValueError: An option is out of range or unknown; or, when called, the data is not audio, damaged, or
            truncated.
        ImportError: When called, soundfile, PyAV or torch is needed and missing.

    Source:
        ``webdataset.autodecode.torch_audio`` and ``torchaudio.load``.

    Example:
        >>> import io, soundfile
        >>> soundfile.write(file := io.BytesIO(), np.zeros((800, 2)), 8000, format="WAV")
        >>> waveform, sample_rate = AudioDecoder("numpy", start=0.05)(".wav", file.getvalue())
        >>> waveform.shape, waveform.dtype, sample_rate
        ((2, 400), dtype('float32'), 8000)
    """

    output: str = "torch"
    dtype: str = "float32"
    mono: bool = False
    start: float = 0.0
    duration: float | None = None
    allow_partial: bool = False
    extensions: Iterable[str] = field(default=AUDIO_EXTENSIONS, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("AudioDecoder", "dtype", self.dtype, "float32", "float64", "int16", "int32")
        if self.duration is not None and not self.duration > 0:
            raise ValueError(f"AudioDecoder: duration must be more than 0 seconds, got {self.duration}")

    def decode(self, data: Data) -> tuple[Any, int]:
        waveform, rate = self._samples(data)
        if self.mono:
            waveform = waveform.mean(axis=0, keepdims=True)
        waveform = _as_dtype(waveform, np.dtype(self.dtype))
        return (as_tensor(waveform) if self.output == "torch" else waveform), rate

    def _samples(self, data: Data) -> tuple[np.ndarray[Any, Any], int]:
        soundfile = require("soundfile", "audio is decoded with soundfile: pip install 'mpwds[audio]'")
        if not self.allow_partial:
            check_complete(data)
        try:
            file = soundfile.SoundFile(io.BytesIO(data))
        except soundfile.LibsndfileError:
            return seeking(partial(self._with_ffmpeg, data))
        with file:
            if self._is_for_soundfile(file, data):
                return self._with_soundfile(file, soundfile.LibsndfileError)
        return seeking(partial(self._with_ffmpeg, data))

    def _is_for_soundfile(self, file: Any, data: Data) -> bool:
        """True if libsndfile knows the length. It decodes nothing beyond the length that it assumes."""
        if file.format in _INEXACT:
            stated = file.format == "OGG" or mp3_length(data)[0] is not None
            return stated and file.frames <= _DENSEST * len(data) and not self.allow_partial
        return bool(file.frames < _UNKNOWN)

    @property
    def _float(self) -> str:
        return "float32" if self.dtype in ("float32", "int16") else "float64"

    def _with_soundfile(self, file: Any, damaged: type[Exception]) -> tuple[np.ndarray[Any, Any], int]:
        rate: int = file.samplerate
        first = round(self.start * rate)
        last = file.frames if self.duration is None else first + round(self.duration * rate)
        last = min(last, file.frames)
        is_exact = file.format not in _INEXACT
        room = max(1, (_SMALL_BLOCK if self.allow_partial else _BLOCK) // file.channels)
        pieces = [np.empty((file.channels, 0), self._float)]
        position = 0
        try:
            if is_exact and first > 0:
                position = file.seek(min(first, last))
            while position < last:
                size = min(room, last - position) if is_exact else last
                block = file.read(size, dtype=self._float, always_2d=True)
                pieces.append(block[max(0, first - position) :].T)
                position += len(block)
                if len(block) < size:
                    break
        except damaged as error:
            if not self.allow_partial:
                raise ValueError(_damaged(file, position)) from error
        if position < last and not self.allow_partial:
            raise ValueError(_damaged(file, position))
        return np.concatenate(pieces, axis=1), rate

    def _with_ffmpeg(self, data: Data, *, seek: bool) -> tuple[np.ndarray[Any, Any], int]:
        end = None if self.duration is None else self.start + self.duration
        sound = Sound(self.start, end, self._float)
        with Media(data, allow_partial=self.allow_partial, purpose="audio of this kind") as media:
            if media.audio is None:
                raise ValueError("the file has no audio stream")
            for _, time, frame in media.frames({"audio"}, self.start if seek else 0.0):
                if not sound.add(time, frame):
                    break
            return sound.joined(), media.audio.rate


def _as_dtype(waveform: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if dtype.kind == "f":
        return waveform
    limits = np.iinfo(dtype)
    scaled = np.rint(waveform * waveform.dtype.type(-float(limits.min)))
    result: np.ndarray[Any, Any] = np.clip(scaled, limits.min, limits.max).astype(dtype)
    return result


def _damaged(file: Any, position: int) -> str:
    return (
        f"the {file.format} audio is damaged or cut off at {position / file.samplerate:.3f} s; "
        "allow_partial=True returns what can be decoded"
    )


torch_audio = AudioDecoder()
"""``AudioDecoder`` without options: a float32 tensor of (channels, samples), and the rate."""
