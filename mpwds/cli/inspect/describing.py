"""Describes fields and sums up shards. Images, sound and video are described without decoding."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpwds.cli.inspect.shards import Problem, Sample, Shard, read_or_report
from mpwds.pipeline.decoding.decoders import Decoder
from mpwds.pipeline.decoding.fields import medium_of
from mpwds.pipeline.decoding.images import open_image
from mpwds.pipeline.decoding.media import Media

_CHANNELS = {"L": (), "1": (), "P": (), "I;16": (), "I": (), "F": (), "LA": (2,), "CMYK": (4,), "RGBA": (4,)}
_MOST_KINDS = 20
_MOST_KEYS = 6
_MOST_PROBLEMS = 100
_MOST_FIELDS = 1000
_OTHERS = "(others)"
_UNREADABLE = "unreadable"
_decode = Decoder(partial=True)

Shape = tuple[int, ...]


def describe(name: str, data: bytes) -> tuple[str, Shape | None, float | None]:
    """The kind of a field's content, its shape if it has one, and its value if it is a number.

    A field that cannot be read has the kind ``unreadable``; one of an unknown extension is ``bytes``.

    Example:
        >>> describe("cls", b"7"), describe("json", b'{"width": 640, "url": ""}')
        (('int', None, 7), ('object with width, url', None, None))
    """
    extension = name.rpartition(".")[2]
    try:
        if medium := medium_of(extension):
            return {"image": _image, "sound": _audio, "video": _video}[medium](data)
        value = _decode({name: data})[name]
    except ImportError as error:
        return f"({error.name or 'a package'} is missing)", None, None
    except Exception:  # decoders raise many kinds
        return _UNREADABLE, None, None
    return _value(value)


def as_json_value(field: str, data: bytes) -> Any:
    """A field's value, if JSON can hold it; else its bytes, as ``{"base64": ...}``."""
    with contextlib.suppress(Exception):  # decoders raise many kinds
        value = _decode({field: data})[field]
        if isinstance(value, np.ndarray):
            value = value.tolist()
        json.dumps(value, allow_nan=False)
        return value
    return {"base64": base64.b64encode(data).decode()}


def _image(data: bytes) -> tuple[str, Shape | None, None]:
    with open_image(data) as image:
        channels = _CHANNELS.get(image.mode, (len(image.getbands()),))
        return f"{image.format} image, {image.mode}", (image.height, image.width, *channels), None


def _audio(data: bytes) -> tuple[str, Shape | None, None]:
    import soundfile

    try:
        info = soundfile.info(io.BytesIO(data))
    except soundfile.LibsndfileError:
        return "audio", None, None  # what FFmpeg alone can read
    return f"{info.format} sound, {info.samplerate} Hz", (info.channels, info.frames), None


def _video(data: bytes) -> tuple[str, Shape | None, None]:
    with Media(data) as media:
        video, sound = media.video, media.audio
        heard = f", {sound.codec_context.name} sound" if sound is not None else ""
        if video is None:
            return heard.removeprefix(", "), None, None
        rate = float(video.average_rate or 0)
        frames = video.frames or round(rate * float((video.duration or 0) * (video.time_base or 0)))
        kind = f"{video.codec_context.name} video, {rate:g} frames/s{heard}"
        return kind, (frames, video.height, video.width, 3), None


def _value(value: Any) -> tuple[str, Shape | None, float | None]:
    if isinstance(value, (int, float)):
        return type(value).__name__, None, value
    if isinstance(value, str):
        return "text", (len(value),), None
    if isinstance(value, bytes):
        return "bytes", (len(value),), None
    if isinstance(value, np.ndarray):
        return f"array of {value.dtype}", value.shape, None
    if isinstance(value, Mapping):
        names = list(map(str, value))
        more = ", ..." if len(names) > _MOST_KEYS else ""
        return f"object with {', '.join(names[:_MOST_KEYS])}{more}", None, None
    if isinstance(value, (list, tuple)):
        kinds = dict.fromkeys(_value(each)[0] for each in value)
        return f"{type(value).__name__} of {' or '.join(kinds) or 'nothing'}", (len(value),), None
    return type(value).__name__, None, None


@dataclass
class FieldFigures:
    """Figures of a field over samples. They can be pickled, and added to those of other samples."""

    samples: int = 0
    total: int = 0  # bytes
    least: int = 0
    largest: int = 0
    looked_into: int = 0  # fields whose data was looked at, for what follows
    kinds: Counter[str] = field(default_factory=Counter)
    shapes: dict[int, tuple[Shape, Shape]] = field(default_factory=dict)  # least and largest, by dimensions
    low: float | None = None
    high: float | None = None

    @property
    def mean(self) -> float:
        return self.total / max(self.samples, 1)

    def add(self, name: str, size: int, data: bytes | None) -> None:
        one = FieldFigures(1, size, size, size)
        if data is not None:
            kind, shape, number = describe(name, data)
            one.looked_into, one.low, one.high = 1, number, number
            one.kinds[kind] = 1
            if shape is not None:
                one.shapes[len(shape)] = shape, shape
        self.merge(one)

    def merge(self, other: FieldFigures) -> None:
        self.least = min((each.least for each in (self, other) if each.samples), default=0)
        self.largest = max(self.largest, other.largest)
        self.samples += other.samples
        self.total += other.total
        self.looked_into += other.looked_into
        for kind, count in other.kinds.items():
            self.kinds[kind if kind in self.kinds or len(self.kinds) < _MOST_KINDS else "others"] += count
        for dimensions, (least, largest) in other.shapes.items():
            low, high = self.shapes.get(dimensions, (least, largest))
            self.shapes[dimensions] = tuple(map(min, low, least)), tuple(map(max, high, largest))
        numbers = [each for each in (self.low, self.high, other.low, other.high) if each is not None]
        self.low, self.high = min(numbers, default=None), max(numbers, default=None)

    @property
    def kind_text(self) -> str:
        """The kinds, the most frequent first: ``JPEG image, RGB; unreadable (3)``."""
        kinds = self.kinds.most_common(3)
        if len(kinds) < 2:
            return kinds[0][0] if kinds else ""
        return "; ".join(f"{kind} ({count:,})" for kind, count in kinds)

    @property
    def shape_text(self) -> str:
        """Shapes or values: ``48-96 x 48-128 x 3``, ``0 to 9``."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}" if self.low < self.high else f"{self.low:g}"
        return "; ".join(
            " x ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(low, high, strict=True))
            for low, high in self.shapes.values()
        )


@dataclass
class ShardFigures:
    """Figures of a shard, or of several."""

    name: str
    samples: int = 0
    nbytes: int = 0
    fields: dict[str, FieldFigures] = field(default_factory=dict)  # after a thousand, the others are one
    problems: list[Problem] = field(default_factory=list)  # the first ones
    problem_count: int = 0  # all

    def add(self, found: Sample | Problem) -> None:
        if isinstance(found, Problem):
            self.problem_count += 1
            if len(self.problems) < _MOST_PROBLEMS:
                self.problems.append(found)
            return
        self.samples += 1
        self.nbytes += found.size
        for name, member in found.members.items():
            self._field(name).add(name, member.size, member.data)

    def merge(self, other: ShardFigures) -> None:
        self.samples += other.samples
        self.nbytes += other.nbytes
        self.problem_count += other.problem_count
        self.problems += other.problems[: _MOST_PROBLEMS - len(self.problems)]
        for name, figures in other.fields.items():
            self._field(name).merge(figures)

    def as_dict(self) -> dict[str, Any]:
        """The figures that JSON shows, without the problems."""
        fields = {
            name: {
                "samples": each.samples,
                "bytes": {"total": each.total, "min": each.least, "mean": each.mean, "max": each.largest},
                "looked_into": each.looked_into,
                "kinds": dict(each.kinds.most_common()),
                "shapes": [{"min": low, "max": high} for low, high in each.shapes.values()],
                "values": None if each.low is None else {"min": each.low, "max": each.high},
            }
            for name, each in self.fields.items()
        }
        figures = {"samples": self.samples, "bytes": self.nbytes}
        return {**figures, "fields": fields, "problems": self.problem_count}

    def _field(self, name: str) -> FieldFigures:
        if name not in self.fields and len(self.fields) >= _MOST_FIELDS:
            name = _OTHERS
        return self.fields.setdefault(name, FieldFigures())


def sum_up(shard: Shard, looks: int) -> Iterator[ShardFigures]:
    """Yields the figures of a shard. Looks into the data of the first ``looks`` samples."""
    figures = ShardFigures(shard.name)

    def wants(number: int, key: str, name: str) -> bool:
        return bool(key) and number < looks

    with contextlib.closing(read_or_report(shard, wants)) as read:
        for found in read:
            if isinstance(found, (Sample, Problem)):
                figures.add(found)
    yield figures
