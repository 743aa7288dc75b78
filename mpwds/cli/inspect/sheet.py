"""Draws shards: the first samples as pictures, waveforms and texts, and histograms over more."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpwds.cli.console import progress
from mpwds.cli.inspect.selection import SampleSelection
from mpwds.cli.inspect.shards import Problem, Sample
from mpwds.cli.outputs import beside_shard, is_stream
from mpwds.errors import DecodeError
from mpwds.pipeline.decoding.audio import AudioDecoder
from mpwds.pipeline.decoding.decoders import Decoder
from mpwds.pipeline.decoding.fields import medium_of
from mpwds.pipeline.decoding.images import open_image
from mpwds.pipeline.decoding.video import VideoDecoder
from mpwds.storage.streams.gopen import gopen
from mpwds.viewing.pictures import LEAST_SIDE, LEAST_WAVE, Pictures, SamplePicture, pictures
from mpwds.viewing.tensors import TensorFigures, TensorStatistics
from mpwds.viewing.wording import counted

_MOST = {"image": 48, "video": 16, "sound": 16, "text": 8}
_TEXTS = frozenset(["txt", "text", "transcript", "html", "htm", "md"])
_LABELS = frozenset(["cls", "cls2", "id", "index", "inx"])

_SIDE = 256  # pixels of a picture, at most
_SOUND_S = 30.0


def draw(samples: SampleSelection) -> tuple[list[tuple[str, Pictures]], list[TensorFigures]]:
    """Draws samples, and counts the fields in them that cannot be decoded as problems of the selection.

    Returns pictures of the first samples' fields, each with a title; and histograms over all samples: bytes
    of each field, and labels.
    """
    first: list[Sample] = []
    columns: dict[str, list[int]] = {}

    def wants(number: int, key: str, name: str) -> bool:
        is_shown = len(first) < _MOST["image"] and _kind(name) != ""
        return (is_shown or _is_label(name)) and samples.takes(number, key, name)

    with progress(samples.limit) as advance:
        for sample in samples.read(wants):
            for name, member in sample.members.items():
                columns.setdefault(f"bytes of {name}", []).append(member.size)
                if _is_label(name) and member.data is not None:
                    with contextlib.suppress(ValueError):
                        columns.setdefault(name, []).append(int(member.data))
            if sample.is_whole and len(first) < _MOST["image"]:
                first.append(sample)
            advance(1, "reading samples")
    fields = dict.fromkeys(name for sample in first for name in sample.members)
    sections = []
    for name in sorted(filter(_kind, fields), key=lambda name: list(_MOST).index(_kind(name))):
        if (shown := _section(name, first, samples.report)).samples:
            sections.append((f"{name} of the first {counted(len(shown.samples), 'sample')}", shown))
    return sections, _figures(columns)


def _figures(columns: dict[str, list[int]]) -> list[TensorFigures]:
    """The figures of labels, and then those of bytes."""
    statistics = TensorStatistics()
    statistics.add({name: np.asarray(column) for name, column in columns.items() if column})
    found = [dataclasses.replace(figures, path=figures.path[2:-2]) for figures in statistics.read()]
    return sorted(found, key=lambda figures: figures.path.startswith("bytes of"))


def _kind(name: str) -> str:
    """The kind of picture for a field; empty if it is not shown."""
    extension = name.rpartition(".")[2]
    return medium_of(extension) or ("text" if extension in _TEXTS else "")


def _is_label(name: str) -> bool:
    return name.rpartition(".")[2] in _LABELS


def _section(name: str, samples: Sequence[Sample], report: Callable[[Problem], None]) -> Pictures:
    """Pictures of a field of those samples that have it, with their labels, or else their keys."""
    values: list[Any] = []
    labels: list[str] = []
    for sample in samples:
        data = sample.data()
        if name not in data or len(values) == _MOST[_kind(name)]:
            continue
        try:
            value = _decode({name: data[name]})[name]
        except (DecodeError, ImportError) as error:
            report(Problem(sample.shard, sample.offset, sample.key, name, str(error)))
            if isinstance(error, ImportError):  # which concerns every sample
                break
            continue
        if isinstance(value, tuple):  # sound comes with its rate
            sound = value[0]
            missing = max(0, LEAST_WAVE - sound.shape[-1])
            value = np.pad(sound, [(0, 0)] * (sound.ndim - 1) + [(0, missing)])
        values.append(value)
        texts = [_label(sample.shard, field, data[field]) for field in data if _is_label(field)]
        labels.append(" ".join(texts) or sample.key.rpartition("/")[2])
    return _alike(values, labels)


def _alike(values: Sequence[Any], labels: Sequence[str]) -> Pictures:
    """Pictures of values of one field, where those of one type of numbers have the same scale."""
    places: dict[Any, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(getattr(value, "dtype", None), []).append(place)
    samples: dict[int, SamplePicture] = {}
    whole = Pictures("", "", "", (), len(values))
    for group in places.values():
        batch = {"shown": [values[place] for place in group], "labels": [labels[place] for place in group]}
        shown = pictures(batch, len(group))
        samples.update(zip(group, shown.samples, strict=False))
        whole = dataclasses.replace(shown, note=whole.note or shown.note, total=len(values))
    return dataclasses.replace(whole, samples=tuple(samples[place] for place in sorted(samples)))


def _label(shard: str, field: str, data: bytes) -> str:
    """A label, as the name of the class whose number it is where ``mpwds create`` has left the names."""
    text = data.decode("utf-8", "replace").strip()
    names = [] if is_stream(shard) else _class_names(shard, field)
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else text


def _class_names(shard: str, field: str) -> list[str]:
    if field.rpartition(".")[2] != "cls":
        return []
    begin = [*beside_shard(shard, "."), shard[: shard.rfind("/") + 1]]
    files = (each + name for each in begin for name in (f"{field}.classes.json", "classes.json"))
    return next(filter(None, map(_list_in, files)), [])


@functools.cache
def _list_in(name: str) -> list[str]:
    with contextlib.suppress(OSError, ValueError), gopen(name) as file:
        names = json.load(file)
        return list(map(str, names)) if isinstance(names, list) else []
    return []


def _thumbnail(name: str, data: bytes) -> npt.NDArray[Any] | None:
    """A small picture of an image, so that photographs take no memory: colours, or values of a grey scale.

    Of a video, that of its first frame. One of a few pixels is enlarged, or it would not count as a picture.
    """
    small = _small(name, data)
    if small is None or min(small.shape[:2]) >= LEAST_SIDE:
        return small
    return small.repeat(LEAST_SIDE, 0).repeat(LEAST_SIDE, 1)


def _small(name: str, data: bytes) -> npt.NDArray[Any] | None:
    if decoded := _first_frame(name, data):
        if not len(decoded[0]):
            raise ValueError("the file has no pictures")
        step = -(-max(decoded[0].shape[1:3]) // _SIDE)
        return np.asarray(decoded[0][0, ::step, ::step])
    if _kind(name) != "image":
        return None
    with open_image(data) as image:
        image.draft("RGB", (_SIDE, _SIDE))  # JPEG images are decoded no larger than that needs
        if image.mode[0] in "IF":
            step = -(-max(image.size) // _SIDE)
            return np.asarray(image)[::step, ::step, None].astype(np.float32)
        small = image.convert("RGBA" if image.has_transparency_data else "RGB")
        small.thumbnail((_SIDE, _SIDE))
        return np.asarray(small)


_first_frame = VideoDecoder("numpy", max_frames=1, audio=False)
_decode = Decoder(
    _thumbnail,
    AudioDecoder("numpy", mono=True, duration=_SOUND_S),
    ("html htm md", bytes.decode),
    partial=True,
)
