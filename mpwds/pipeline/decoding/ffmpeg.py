"""Decode the frames of audio and video files that are held in memory, with PyAV."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpwds.pipeline.decoding.media_size import Data, check_complete

if TYPE_CHECKING:
    from av import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from av.video.stream import VideoStream

# Seconds before the asked start: a decoder needs the sound before a point to give what comes at it, and
# containers sort by decoding time, which for video is a little before the time of display.
_LEAD = 1.0
_SOUND_LEAD = 0.25
# What float arithmetic may do to a time, in seconds; far below any distance of frames or samples.
ROUNDING = 1e-6


class SeekFailed(Exception):
    """What follows a seek lacks frames or cannot be decoded: decode from the beginning instead."""


class Frame(NamedTuple):
    """A decoded frame: its kind ("video" or "audio"), its time in seconds from the file's start, it."""

    kind: str
    time: float | None
    frame: Any


class Media:
    """An opened audio or video file; a context manager.

    Only what lies in the data is read: a file that refers to others (a playlist, a list to concatenate, a
    description of a session) gets nothing from the disk or the network.

    Args:
        data: The whole file.
        threads: Threads for a decoder.
        allow_partial: Go on with what can be decoded where data is damaged or missing.
        purpose: What PyAV is needed for, for the error if it is missing.

    Raises:
        ValueError: The file is of no known kind, damaged, or cut off.
        ImportError: PyAV is missing.

    Example:
        >>> Media(b"no video")
        Traceback (most recent call last):
        ValueError: damaged, or no audio or video file (8 bytes): Invalid data found when processing input
    """

    def __init__(
        self, data: Data, *, threads: int = 1, allow_partial: bool = False, purpose: str = "video"
    ) -> None:
        try:
            import av
        except ImportError as error:
            raise ImportError(f"{purpose} is decoded with PyAV: pip install 'mpwds[video]'") from error
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
        self._sought = False

    def __enter__(self) -> Media:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._container.close()

    @property
    def seconds(self) -> float:
        """Length of the file, as far as it says; else 0."""
        return (self._container.duration or 0) / 1e6

    def frames(self, wanted: Collection[str], start: float = 0.0) -> Iterator[Frame]:
        """The frames of the first video stream and the first audio stream, as they come in the file.

        Args:
            wanted: Kinds of frames, looked at again for every packet: take out what is no longer needed.
            start: Seconds; frames before it may be left out.

        Raises:
            ValueError: A frame is damaged.
            SeekFailed: Frames from ``start`` on may be missing; another ``Media`` gives them with a
                ``start`` of 0.
        """
        streams = [stream for stream in (self.video, self.audio) if stream and stream.type in wanted]
        self._sought = start > _LEAD
        if self._sought:
            self._seek(start - _LEAD)
        unseen = {stream.type for stream in streams}
        tried = set()
        for packet in self._packets(streams, start):
            kind = packet.stream.type
            tried.add(kind)
            for frame in self._decoded(packet) if kind in wanted else ():
                if kind not in wanted:  # since the frame before, which came in the same packet
                    break
                time = self._time(frame)
                if kind in unseen:
                    unseen.remove(kind)
                    lead = _SOUND_LEAD if kind == "audio" else -ROUNDING
                    if self._sought and (time is None or time > start - lead):
                        raise SeekFailed
                if frame.is_corrupt:
                    self._complain(kind, time, start, "a frame of it has errors")
                yield Frame(kind, time, frame)
            if not wanted:
                return
        if self._sought and unseen:
            raise SeekFailed
        for kind in unseen & tried:
            self._complain(kind, None, start, "nothing of it can be decoded")

    def _packets(self, streams: list[Any], start: float) -> Iterator[Any]:
        import av

        packets = self._container.demux(*streams) if streams else iter(())
        while True:
            try:
                packet = next(packets, None)
            except av.FFmpegError as error:
                self._complain("file", None, start, error.strerror)
                return
            except IndexError:  # PyAV stumbles, after the end, over streams that turned up on the way
                return
            if packet is None:
                return
            if packet.is_corrupt:
                self._complain(packet.stream.type, self._time(packet), start, "a packet of it is not whole")
            yield packet

    def _decoded(self, packet: Any) -> list[Any]:
        import av

        try:
            return list(packet.decode())
        except av.FFmpegError as error:
            # What comes before the start is decoded as well, and counts: what follows is built on it.
            self._complain(packet.stream.type, self._time(packet), 0.0, error.strerror)
            return []

    def _complain(self, what: str, time: float | None, start: float, reason: str | None) -> None:
        """Raise an error, unless it is about what comes before the start, or partial files are welcome."""
        if self._allow_partial or (time is not None and time < start):
            return
        if self._sought:  # perhaps into the midst of something
            raise SeekFailed
        where = "" if time is None else f" at {time:.3f} s"
        raise ValueError(f"the {what} is damaged or cut off{where}: {reason}; allow_partial=True goes on")

    def _time(self, timed: Any) -> float | None:
        """Seconds from the file's start at which a frame or packet is due."""
        if timed.pts is None or timed.time_base is None:
            return None
        return float(timed.pts * timed.time_base) - self._origin / 1e6

    def _seek(self, seconds: float) -> None:
        import av

        try:
            self._container.seek(int(seconds * 1e6) + self._origin)
        except av.FFmpegError as error:  # the position may be any by now
            raise SeekFailed from error


class Sound:
    """Collects the samples of audio frames that lie in a span of time.

    Args:
        start: Seconds from the file's start.
        end: Seconds; ``None`` for the end of the file.
        dtype: float32 or float64; samples of any format become numbers in [-1, 1).
    """

    def __init__(self, start: float, end: float | None, dtype: Any = np.float32) -> None:
        self._start = start
        self._end = end
        self._dtype = np.dtype(dtype)
        self._pieces: list[np.ndarray[Any, Any]] = []
        self._rate: int | None = None
        self._next: float | None = None

    def add(self, time: float | None, frame: AudioFrame) -> bool:
        """Takes a frame in; whether more is needed.

        Raises:
            ValueError: The rate or the number of channels is not that of the frames before, or the frame has
                no time and the span is not the whole file.
        """
        samples = _as_float(frame, self._dtype)
        if self._rate is None:
            self._rate = frame.sample_rate
        if frame.sample_rate != self._rate or (self._pieces and len(samples) != len(self._pieces[0])):
            raise ValueError("the audio changes its sampling rate or its number of channels on the way")
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
        """All samples, of shape (channels, samples); (1, 0) if there was no frame."""
        return np.concatenate(self._pieces, axis=1) if self._pieces else np.empty((1, 0), self._dtype)


def check_timed(kind: str, time: float | None) -> float:
    """A frame's time; an error if it has none, where a span of time is asked for."""
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
