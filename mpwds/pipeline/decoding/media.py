"""Decode the frames of audio and video files in memory, with PyAV; find out whether a file is complete."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from mpwds.closing import Closes
from mpwds.imports import require
from mpwds.pipeline.decoding.fields import FieldDecoder, extension_set
from mpwds.pipeline.error_context import check_choice

if TYPE_CHECKING:
    from av import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream

T = TypeVar("T")

# Seconds before the requested start: a decoder needs the sound before a point to decode the sound at it, and
# containers sort by decoding time, which for video is a little before the time of display.
_LEAD = 1.0
_SOUND_LEAD = 0.25
# Tolerance for float arithmetic on times, in seconds; far below any distance of frames or samples.
ROUNDING = 1e-6


class SeekFailed(Exception):
    """After a seek, frames are missing or cannot be decoded: decode from the beginning instead."""


class MediaDecoder(FieldDecoder):
    """Base of the handlers for audio and video, which are frozen dataclasses."""

    output: str
    start: float
    extensions: Any  # an iterable of names or one string; a frozenset once it is made

    def __post_init__(self) -> None:
        kind = type(self).__name__
        check_choice(kind, "output", self.output, "torch", "numpy")
        if not self.start >= 0:
            raise ValueError(f"{kind}: start must be at least 0 seconds, got {self.start}")
        object.__setattr__(self, "extensions", extension_set(self.extensions))


def seeking(decode: Callable[..., T]) -> T:
    """Decodes after seeking; if frames would be missing then, from the beginning."""
    try:
        return decode(seek=True)
    except SeekFailed:
        return decode(seek=False)


class Media(Closes):
    """An opened audio or video file; a context manager.

    Reads only the data given: a file that refers to others (a playlist, a list to concatenate, a description
    of a session) gets nothing from the disk or the network. Raises ``ValueError`` if the file is of an
    unknown kind, damaged, or cut off.
    """

    def __init__(
        self, data: Data, *, threads: int = 1, allow_partial: bool = False, purpose: str = "video"
    ) -> None:
        av = require("av", f"{purpose} is decoded with PyAV: pip install 'mpwds[video]'")
        if not allow_partial:
            check_complete(data)
        try:
            self._container: InputContainer = av.open(
                io.BytesIO(data),
                "r",
                container_options={"protocol_whitelist": "none"},  # "options" crash PyAV up to release 17
                metadata_errors="ignore",
            )
        except av.FFmpegError as error:
            raise ValueError(
                f"damaged, or no audio or video file ({len(data)} bytes): {error.strerror}"
            ) from error
        self._av = av
        self._allow_partial = allow_partial
        self.video: VideoStream | None = next(iter(self._container.streams.video), None)
        self.audio: AudioStream | None = next(iter(self._container.streams.audio), None)
        for kind, stream in (("video", self.video), ("audio", self.audio)):
            if stream is None:
                continue
            context = stream.codec_context
            if context is None:  # decoding it crashes the process in some releases of PyAV
                self.close()  # so does looking at a stream after this
                raise ValueError(f"the codec of the {kind} is unknown, or its parameters are damaged")
            context.thread_count = threads
            if threads > 1:
                context.thread_type = "AUTO"
        # In microseconds; neither raw streams nor some damaged files have it.
        self._origin = self._container.start_time or 0

    def close(self) -> None:
        self._container.close()

    def frames(self, wanted: Collection[str], start: float = 0.0) -> Iterator[tuple[str, float | None, Any]]:
        """The kind ("video" or "audio"), time in seconds and frame, of the first stream of each kind.

        ``wanted`` is read again for every packet: remove a kind when it is no longer needed. Frames before
        ``start`` may be left out. Raises ``ValueError`` if a frame is damaged, ``SeekFailed`` if frames from
        ``start`` on may be missing: decode again from the beginning.
        """
        streams = [stream for stream in (self.video, self.audio) if stream and stream.type in wanted]
        self._sought = start > _LEAD
        if self._sought:
            try:
                self._container.seek(int((start - _LEAD) * 1e6) + self._origin)
            except self._av.FFmpegError as error:  # the position is unknown now
                raise SeekFailed from error
        unseen = {stream.type for stream in streams}
        tried = set()
        for packet in self._packets(streams, start):
            kind = packet.stream.type
            tried.add(kind)
            for frame in self._decoded(packet) if kind in wanted else ():
                if kind not in wanted:  # no longer, since the frame before it in this packet
                    break
                time = self._time(frame)
                if kind in unseen:
                    unseen.remove(kind)
                    lead = _SOUND_LEAD if kind == "audio" else -ROUNDING
                    if self._sought and (time is None or time > start - lead):
                        raise SeekFailed
                if frame.is_corrupt:
                    self._complain(kind, time, start, "a frame of it has errors")
                yield kind, time, frame
            if not wanted:
                return
        if self._sought and unseen:
            raise SeekFailed
        for kind in unseen & tried:
            self._complain(kind, None, start, "nothing of it can be decoded")

    def _packets(self, streams: list[Any], start: float) -> Iterator[Any]:
        packets = self._container.demux(*streams) if streams else iter(())
        while True:
            try:
                packet = next(packets, None)
            except self._av.FFmpegError as error:
                self._complain("file", None, start, error.strerror)
                return
            except IndexError:  # PyAV's, after the end, about streams that appeared later
                return
            if packet is None:
                return
            if packet.is_corrupt:
                self._complain(packet.stream.type, self._time(packet), start, "a packet of it is not whole")
            yield packet

    def _decoded(self, packet: Any) -> list[Any]:
        try:
            return list(packet.decode())
        except self._av.FFmpegError as error:
            # Errors before the start count too: the frames after it depend on those before.
            self._complain(packet.stream.type, self._time(packet), 0.0, error.strerror)
            return []

    def _complain(self, what: str, time: float | None, start: float, reason: str | None) -> None:
        """Raises, unless the error lies before the start, or partial files are allowed."""
        if self._allow_partial or (time is not None and time < start):
            return
        if self._sought:  # perhaps into the middle of a group of frames
            raise SeekFailed
        where = "" if time is None else f" at {time:.3f} s"
        raise ValueError(f"the {what} is damaged or cut off{where}: {reason}; allow_partial=True skips it")

    def _time(self, timed: Any) -> float | None:
        """Seconds from the file's start at which a frame or packet is due."""
        if timed.pts is None or timed.time_base is None:
            return None
        return float(timed.pts * timed.time_base) - self._origin / 1e6


class Sound:
    """Collects the samples of audio frames from ``start`` to ``end`` (seconds), as floats in [-1, 1)."""

    def __init__(self, start: float, end: float | None, dtype: Any = np.float32) -> None:
        self._start = start
        self._end = end
        self._dtype = np.dtype(dtype)
        self._pieces: list[np.ndarray[Any, Any]] = []
        self._rate: int | None = None
        self._next: float | None = None

    def add(self, time: float | None, frame: AudioFrame) -> bool:
        """Adds a frame; returns whether more are needed.

        Raises ``ValueError`` if the rate or the number of channels changes, or if a frame has no time where
        only a part of the file is wanted.
        """
        samples = _as_float(frame, self._dtype)
        if self._rate is None:
            self._rate = frame.sample_rate
        if frame.sample_rate != self._rate or (self._pieces and len(samples) != len(self._pieces[0])):
            raise ValueError("the audio changes its sampling rate or its number of channels")
        if time is None:  # some decoders give none to the last frames
            time = self._next
        first, last = 0, samples.shape[1]
        if time is not None:
            self._next = time + last / self._rate
        if self._start > 0 or self._end is not None:
            offset = check_timed("audio", time)
            first = min(max(0, round((self._start - offset) * self._rate)), last)
            if self._end is not None:
                last = min(max(first, round((self._end - offset) * self._rate)), last)
        self._pieces.append(samples[:, first:last])
        return bool(last == samples.shape[1])

    def joined(self) -> np.ndarray[Any, Any]:
        """All samples, of shape (channels, samples); (1, 0) without a frame."""
        return np.concatenate(self._pieces, axis=1) if self._pieces else np.empty((1, 0), self._dtype)


def check_timed(kind: str, time: float | None) -> float:
    """Returns a frame's time; raises if it has none, because a span of time was requested."""
    if time is None:
        raise ValueError(f"the {kind} holds no times, so it can only be decoded from its start to its end")
    return time


def _as_float(frame: AudioFrame, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    samples: np.ndarray[Any, Any] = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, len(frame.layout.channels)).T
    result = samples.astype(dtype)
    if samples.dtype.kind != "f":
        result *= 2.0 ** (1 - 8 * samples.dtype.itemsize)
    if samples.dtype.kind == "u":
        result -= 1
    return result


Data: TypeAlias = bytes | bytearray | memoryview


def check_complete(data: Data) -> None:
    """Raises ``ValueError`` if a file ends before its headers say it does.

    Most decoders take the end of the data for the end of the recording, so an interrupted download gives a
    shorter clip and no error. This looks at the outermost structure only, which costs microseconds. It knows
    MP4 and MOV (M4A), Matroska and WebM, RIFF (WAV, AVI), AIFF, Ogg, MP3, ASF (WMV, WMA) and SoX. Files of
    other kinds pass, and so do files written as a stream, which state no size. In Ogg files, the checksums of
    all pages are compared: libsndfile takes a damaged page for the end, too.
    """
    head = bytes(data[:16])
    if head[:4] == b"OggS":
        _check_ogg(data)
        return
    for part in _parts(head, data):
        if part.name and part.end > len(data):
            raise ValueError(
                f'the file is cut off: its part "{part.name}" at offset {part.start} ends at byte '
                f"{part.end}, the data at byte {len(data)}"
            )


class _Piece(NamedTuple):
    name: str  # empty for a part that does not matter
    start: int
    end: int


_ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_ASF_DATA = bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c")
_BOXES = (b"moov", b"mdat", b"moof")
_MATROSKA_SEGMENT = 0x18538067


def _parts(head: bytes, data: Data) -> Iterator[_Piece]:
    read: Callable[[Data, int], _Piece | None]
    start, alignment = 0, 1
    if head[:4] == b"RIFF":
        read, start, alignment = partial(_chunk, "<4sI", (b"LIST", b"data", b"RIFF")), 12, 2
    elif head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        read, start, alignment = partial(_chunk, ">4sI", (b"SSND",)), 12, 2
    elif head[4:8] in (b"ftyp", b"free", b"skip", b"wide", *_BOXES):
        read = _box
    elif head[:4] == b"\x1aE\xdf\xa3":
        read = _ebml_element
    elif head == _ASF_HEADER:
        read = _asf_object
    else:
        if head[:3] == b"ID3" or (head[:1] == b"\xff" and head[1:2] >= b"\xe0"):
            _, size = mp3_length(data)
            if size is not None:  # some encoders include the tags, some do not
                yield _Piece("MPEG", 0, size)
        elif head[:4] == b".SoX" and len(data) >= 16:
            header, samples = struct.unpack_from("<IQ", data, 4)
            yield _Piece("samples", 4 + header, 4 + header + 4 * samples)
        return
    while (part := read(data, start)) is not None:
        yield part
        start = part.end + part.end % alignment


def _chunk(layout: str, known: tuple[bytes, ...], data: Data, start: int) -> _Piece | None:
    if start + 8 > len(data):
        return None
    name, size = struct.unpack_from(layout, data, start)
    # Programs that write to a pipe leave 0 or about the largest number as the size.
    if not name.isascii() or (name in known and not 0 < size < 0x7FFF0000):
        return None
    return _Piece(name.decode("ascii") if name in known else "", start, start + 8 + size)


def _box(data: Data, start: int) -> _Piece | None:
    if start + 8 > len(data):
        return None
    size, name = struct.unpack_from(">I4s", data, start)
    if size == 1 and start + 16 <= len(data):
        (size,) = struct.unpack_from(">Q", data, start + 8)
    if size < 8:  # 0 is "up to the end"
        return None
    return _Piece(name.decode("ascii") if name in _BOXES else "", start, start + size)


def _asf_object(data: Data, start: int) -> _Piece | None:
    if start + 24 > len(data):
        return None
    name, size = struct.unpack_from("<16sQ", data, start)
    if size < 24:
        return None
    return _Piece({_ASF_HEADER: "header", _ASF_DATA: "data"}.get(name, ""), start, start + size)


def _ebml_element(data: Data, start: int) -> _Piece | None:
    identifier_length = _ebml_length(data, start)
    size_length = _ebml_length(data, start + identifier_length)
    body = start + identifier_length + size_length
    if body > len(data):
        return None
    identifier = int.from_bytes(data[start : start + identifier_length], "big")
    unknown = (1 << 7 * size_length) - 1
    size = int.from_bytes(data[start + identifier_length : body], "big") & unknown
    if size == unknown:
        return None
    return _Piece("Segment" if identifier == _MATROSKA_SEGMENT else "", start, body + size)


def _ebml_length(data: Data, start: int) -> int:
    """Length of the number at an offset; 0 if there is none."""
    return 9 - data[start].bit_length() if start < len(data) and data[start] else 0


def mp3_length(data: Data) -> tuple[int | None, int | None]:
    """The number of MPEG frames and of bytes that an MP3 file states; ``None`` for a number that it omits."""
    head = bytes(data[:10])
    start = 0
    if head[:3] == b"ID3" and len(head) == 10:  # its size is in four times seven bits
        start = 10 + (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9])
    frame = bytes(data[start : start + 4096])
    at = max(frame.find(b"Xing"), frame.find(b"Info"))
    if at < 0 or len(frame) < at + 16:
        return None, None
    flags, first, second = struct.unpack_from(">III", frame, at + 4)
    return first if flags & 1 else None, (second if flags & 1 else first) if flags & 2 else None


def _check_ogg(data: Data) -> None:
    start = flags = 0
    while start < len(data):
        header = bytes(data[start : start + 27])
        if header[:4] != b"OggS"[: len(header)]:
            if flags & _LAST_PAGE:  # what follows is not part of it
                return
            raise ValueError(f"the file is damaged: no Ogg page at offset {start}, where one should be")
        lacing = bytes(data[start + 27 : start + 27 + header[26]]) if len(header) == 27 else b""
        end = start + 27 + len(lacing) + sum(lacing)
        if len(header) < 27 or len(lacing) < header[26] or end > len(data):
            raise ValueError(f"the file is cut off: its Ogg page at offset {start} ends after the data")
        if _ogg_checksum(header[:22] + bytes(4) + bytes(data[start + 26 : end])) != header[22:26]:
            raise ValueError(f"the file is damaged: its Ogg page at offset {start} has the wrong checksum")
        start, flags = end, header[5]
    if not flags & _LAST_PAGE:
        raise ValueError("the file is cut off: its last Ogg page does not end the stream")


_LAST_PAGE = 4
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _ogg_checksum(page: bytes) -> bytes:
    """Computes a page's checksum: that of zlib with all bits mirrored, without its inversions."""
    checksum = zlib.crc32(page.translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return checksum.to_bytes(4, "big").translate(_MIRRORED)
