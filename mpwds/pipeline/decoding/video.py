"""Decode video into frames and sound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mpwds.pipeline.decoding.fields import VIDEO_EXTENSIONS, as_tensor
from mpwds.pipeline.decoding.media import ROUNDING, Data, Media, MediaDecoder, Sound, check_timed, seeking

if TYPE_CHECKING:
    from av import VideoFrame


@dataclass(frozen=True)
class VideoDecoder(MediaDecoder):
    """Handler for ``Decoder`` that decodes video to ``(frames, sound, info)``.

    - ``frames``: uint8, shape (T, H, W, 3), RGB by FFmpeg's libswscale; (0, 1, 1, 3) without video;
    - ``sound``: float32, shape (channels, samples), in [-1, 1]; (1, 0) without sound;
    - ``info``: ``"video_fps"``, a float, and ``"audio_fps"``, an int in Hz; each only with such a stream.

    Every stored frame appears once, in display order. With a variable frame rate no frame is repeated or left
    out, and ``video_fps`` is the average. Sound is as stored: nothing is inserted where it starts later than
    the video or has gaps. Only the first video stream and the first audio stream are decoded.

    FFmpeg decodes, through PyAV (``av``), whose wheels include it. A file is decoded from memory.

    A damaged or truncated file is an error where the damage can be detected. Raw streams (``h264``,
    ``mjpeg``) and MPEG program streams (``mpg``) do not state their length, and decoders accept some damage
    that is merely visible.

    Args:
        output: ``"torch"`` for tensors, ``"numpy"`` for arrays, for which torch is not imported.
        start: Where to begin, in seconds from the file's start; the decoder seeks to a key frame before it.
        end: Where to stop, in seconds; ``None`` for the end of the file. Damage after it is not detected.
        every: Take the first frame and each ``every``-th after it. ``video_fps`` is the rate of the frames
            taken.
        max_frames: Stop after that many frames. The sound still extends to ``end``.
        audio: Decode the sound; otherwise it is treated as missing.
        rotate: Turn frames upright as the file says (phones write such files). By default they are as stored,
            as with torchvision.
        threads: Threads for decoding; 1 is best in a loader, which has a worker for each core.
        allow_partial: Return what can be decoded of a damaged file, as torchvision does, instead of an error.
        extensions: Extensions of the fields to decode; case is ignored.

    Raises:
        ValueError: An option is out of range or unknown; or, when called, the data is not video, damaged, or
            truncated, or its frames change their size.
        ImportError: When called, PyAV or torch is missing.

    Source:
        ``webdataset.autodecode.torch_video`` and ``torchvision.io.read_video``.

    Example:
        >>> import av, io
        >>> with av.open(file := io.BytesIO(), "w", format="avi") as container:
        ...     stream = container.add_stream("mjpeg", rate=5, width=32, height=16, pix_fmt="yuvj420p")
        ...     for grey in range(0, 250, 50):
        ...         pixels = np.full((16, 32, 3), grey, np.uint8)
        ...         container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        >>> frames, sound, info = VideoDecoder("numpy", every=2)(".avi", file.getvalue())
        >>> frames.shape, sound.shape, info
        ((3, 16, 32, 3), (1, 0), {'video_fps': 2.5})
    """

    output: str = "torch"
    start: float = 0.0
    end: float | None = None
    every: int = 1
    max_frames: int | None = None
    audio: bool = True
    rotate: bool = False
    threads: int = 1
    allow_partial: bool = False
    extensions: Iterable[str] = field(default=VIDEO_EXTENSIONS, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.end is not None and not self.end > self.start:
            raise ValueError(f"VideoDecoder: end must be after start ({self.start} s), got {self.end}")
        for name in ("every", "max_frames", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"VideoDecoder: {name} must be at least 1, got {value}")

    def decode(self, data: Data) -> tuple[Any, Any, dict[str, Any]]:
        frames, sound, info = seeking(partial(self._decoded, data))
        if self.output == "torch":
            return as_tensor(frames), as_tensor(sound), info
        return frames, sound, info

    def _decoded(
        self, data: Data, *, seek: bool
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]:
        with Media(data, threads=self.threads, allow_partial=self.allow_partial) as media:
            if media.video is None and media.audio is None:
                raise ValueError("the file has no video or audio stream")
            sound = Sound(self.start, self.end)
            pixels = _Pixels(self.rotate)
            wanted = {"video", "audio"} if self.audio else {"video"}
            shown = 0
            for kind, time, frame in media.frames(wanted, self.start if seek else 0.0):
                if kind == "audio":
                    if not sound.add(time, frame):
                        wanted.discard("audio")
                elif self.start > 0 and check_timed("video", time) < self.start - ROUNDING:
                    continue
                elif self.end is not None and check_timed("video", time) >= self.end - ROUNDING:
                    wanted.discard("video")
                else:
                    if shown % self.every == 0:
                        pixels.add(frame)
                    shown += 1
                    if len(pixels) == self.max_frames:
                        wanted.discard("video")
            return pixels.stacked(), sound.joined(), self._info(media)

    def _info(self, media: Media) -> dict[str, Any]:
        info: dict[str, Any] = {}
        if media.video is not None and media.video.average_rate is not None:
            info["video_fps"] = float(media.video.average_rate / self.every)
        if media.audio is not None and self.audio:
            info["audio_fps"] = media.audio.rate
        return info


class _Pixels:
    """Collects frames as RGB in one array, which grows."""

    def __init__(self, rotate: bool) -> None:
        import av
        from av.video.reformatter import VideoReformatter

        self._rotate = rotate
        self._error = av.FFmpegError
        self._reformatter = VideoReformatter()
        # Since release 17 it uses all processors by default; before, it uses one.
        self._options: dict[str, Any] = {"threads": 1} if int(av.__version__.split(".")[0]) >= 17 else {}
        self._array = np.empty((0, 1, 1, 3), np.uint8)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, frame: VideoFrame) -> None:
        try:
            rgb = self._reformatter.reformat(frame, format="rgb24", **self._options)
        except self._error as error:
            raise ValueError(
                f"a frame cannot be converted to RGB, or is damaged: {error.strerror}"
            ) from error
        plane: Any = rgb.planes[0]
        lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        pixels = lines[: rgb.height, : 3 * rgb.width].reshape(rgb.height, rgb.width, 3)
        if self._rotate:
            pixels = np.rot90(pixels, _quarters(frame))
        if not self._count:
            self._array = np.empty((1, *pixels.shape), np.uint8)
        shape = self._array.shape[1:]
        if pixels.shape != shape:
            raise ValueError(
                f"the frames change their size from {_size(shape)} to {_size(pixels.shape)}, so "
                "they do not fit into one array"
            )
        if self._count == len(self._array):
            self._resize(2 * self._count)
        self._array[self._count] = pixels
        self._count += 1

    def stacked(self) -> np.ndarray[Any, Any]:
        self._resize(self._count)
        return self._array

    def _resize(self, count: int) -> None:
        """Makes the array shorter or longer in place, which moves pages instead of bytes."""
        # No view of it exists here, but a debugger may hold the array.
        self._array.resize((count, *self._array.shape[1:]), refcheck=False)


def _quarters(frame: VideoFrame) -> int:
    """The quarter turns, counterclockwise, that the file asks for."""
    angle = getattr(frame, "rotation", None)
    if angle is None:
        raise ImportError("turning frames upright needs PyAV 14 or later: pip install -U av")
    if angle % 90:
        raise ValueError(
            f"the file asks to turn its frames by {angle} degrees; only multiples of 90 are supported"
        )
    return int(angle) // 90


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[0]}"


torch_video = VideoDecoder()
"""``VideoDecoder`` without options: two tensors and a dictionary."""
