"""The options of webdataset's first releases for samples, their stages, and their decoders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.decoding.audio import torch_audio
from mpwds.pipeline.decoding.decoders import Decoder as SampleDecoder
from mpwds.pipeline.decoding.decoders import handle_extension
from mpwds.pipeline.decoding.fields import (
    AUDIO_EXTENSIONS,
    IMAGE_EXTENSIONS,
    LOADS,
    VIDEO_EXTENSIONS,
    extension_of,
)
from mpwds.pipeline.decoding.images import ImageDecoder, imagespecs
from mpwds.pipeline.decoding.video import torch_video
from mpwds.pipeline.handlers import Handler, ignore_and_continue, reraise_exception, warn_and_continue
from mpwds.pipeline.stages.decode import decode
from mpwds.pipeline.stages.fields import associate, to_tuple
from mpwds.pipeline.stages.map import map
from mpwds.pipeline.stages.shuffle import shuffle
from mpwds.suggestions import shown

_BY_EXTENSIONS = "with extensions"


@dataclass(frozen=True)
class SampleOptions:
    """Options of a dataset that say what to do with its samples, in this order.

    Args:
        container: Extension of members that are whole samples: ``"mp"``, ``"json"``, ``"ten"`` or ``"pyd"``.
        decoder: An image specification such as ``"rgb8"``, or ``True`` for ``"rgb"``: decodes every field of
            a known extension. A dict of functions by extension decodes those; a function makes a sample from
            a sample; ``None`` and ``False`` decode nothing. The default is ``"rgb"`` with ``extensions``, and
            nothing without.
        associate: A function from a key to fields to add to the sample, or a dict of them by key.
        extensions: Fields to make tuples of: ``"png;jpg cls"``, or ``[["png", "jpg"], ["cls"]]``.
        shuffle: Above 1, samples are shuffled, through a buffer of that size.
        transforms: A function, or several, for the fields of a tuple in turn.
        pipeline: A generator function of an iterator of samples.
        errors: ``True`` raises, ``"warn"`` warns and continues, ``False`` continues.
        verbose: Without effect.
        allow_pickle: Whether pickles may be decoded, which runs any code that a shard contains.
    """

    container: str | None = None
    decoder: Any = _BY_EXTENSIONS
    associate: Any = None
    extensions: str | Sequence[str | Sequence[str]] | None = None
    shuffle: int = 0
    transforms: Any = None
    pipeline: Callable[[Iterator[Any]], Iterator[Any]] | None = None
    errors: bool | str | None = None
    verbose: bool = False
    allow_pickle: bool = False

    def handler(self, given: Handler) -> Handler:
        """The error handler that ``errors`` selects, or ``given``."""
        named = {None: given, "warn": warn_and_continue, True: reraise_exception, False: ignore_and_continue}
        if self.errors not in named:
            raise ValueError(f"Dataset: errors must be True, False or 'warn', got {shown(self.errors)}")
        return named[self.errors]

    def specs(self) -> list[str]:
        """The fields that ``extensions`` names, one spec for each."""
        if self.extensions is None:
            return []
        fields = self.extensions.split() if isinstance(self.extensions, str) else self.extensions
        return [field if isinstance(field, str) else ";".join(field) for field in fields]

    def suffixes(self) -> set[str] | None:
        """The fields to read, if ``extensions`` names them; otherwise ``None``."""
        if self.extensions is None or self.container is not None:
            return None
        return {name for spec in self.specs() for name in spec.split(";")}

    def stages(self, handler: Handler) -> list[Any]:
        """The stages that the options stand for."""
        stages: list[Any] = []
        if self.container is not None:
            stages.append(map(partial(_unpacked, self.container, self.allow_pickle), handler))
        spec = self.extensions is not None if self.decoder is _BY_EXTENSIONS else self.decoder
        if self.container != "ten":
            is_partial = self.container is not None
            stages += decoding(spec, handler, partial=is_partial, allow_pickle=self.allow_pickle)
        if self.associate is not None:
            stages.append(associate(self.associate, handler))
        if self.extensions is not None:
            stages.append(to_tuple(*self.specs(), handler=handler))
        if self.shuffle > 1:
            stages.append(shuffle(int(self.shuffle)))
        if self.transforms is not None:
            stages.append(map(partial(_transformed, self.transforms), handler))
        if self.pipeline is not None:
            stages.append(self.pipeline)
        return stages


def decoding(spec: Any, handler: Handler, **options: Any) -> list[Any]:
    """The stage, if any, that decodes samples as ``decoder=spec`` says, with ``options`` of ``decode``."""
    if spec is None or spec is False:
        return []
    if callable(spec):
        return [map(spec, handler)]
    if isinstance(spec, dict):
        handlers = [handle_extension(extension, function) for extension, function in spec.items()]
        return [decode(*handlers, pre=[], post=[], handler=handler)]
    image = "rgb" if spec is True else spec
    return [decode(TableDecoder(image), handler=handler, **options)]


def _transformed(functions: Any, sample: Any) -> Any:
    turns = cycle(functions if isinstance(functions, (list, tuple)) else [functions])
    return tuple(value if f is None else f(value) for value, f in zip(sample, turns, strict=False))


def _unpacked(extension: str, allow_pickle: bool, sample: dict[str, Any]) -> Any:
    """The content of a sample's one member with an extension; ``None``, which is dropped, without one."""
    fields = [field for field in sample if f".{field}".endswith(f".{extension}")]
    if not fields:
        return None
    if len(fields) > 1:
        raise ValueError(
            f"container={extension!r}: expected one such member in a sample, got {', '.join(fields)}"
        )
    (field,) = fields
    decoder = SampleDecoder([], allow_pickle=allow_pickle)
    content = decoder({"__key__": sample["__key__"], field: sample[field]})[field]
    if isinstance(content, dict):
        return {"__key__": f"{sample['__key__']}.{field}", **content}
    return tuple(content) if isinstance(content, list) else content


class DatasetDecoder(SampleDecoder):
    """A decoder of samples that, called with a dataset, returns the dataset of its decoded samples.

    Example:
        >>> decode = DatasetDecoder(handle_extension(".mask", len))
        >>> decode({"__key__": "a", "mask": b"abc"})
        {'__key__': 'a', 'mask': 3}
        >>> list(decode(DataPipeline([{"__key__": "a", "cls": b"7"}])))
        [{'__key__': 'a', 'cls': 7}]
    """

    def __call__(self, source: Any) -> Any:
        if isinstance(source, Iterable) and not isinstance(source, (dict, tuple, str, bytes)):
            return DataPipeline(source, map(self.decode))
        return self.decode(source)


Decoder = DatasetDecoder
"""``DatasetDecoder`` under webdataset's name."""


def _int_or_bytes(data: bytes) -> Any:
    try:
        return int(data)
    except ValueError:
        return data


def _handlers(spec: str) -> dict[str, Callable[[Any], Any]]:
    return {
        **LOADS,
        **dict.fromkeys((*IMAGE_EXTENSIONS, "img", "image"), ImageDecoder(spec).decode),
        **dict.fromkeys(("class", "count"), _int_or_bytes),
        **{each: partial(torch_video, f".{each}") for each in VIDEO_EXTENSIONS},
        **{each: partial(torch_audio, f".{each}") for each in AUDIO_EXTENSIONS},
    }


# By image specification, the function for each extension, of the first releases. A program may add functions
# for Dataset(decoder=spec) and Dataset.decode(spec): default_handlers["rgb"]["mask"] = f.
default_handlers = {spec: _handlers(spec) for spec in imagespecs}


class TableDecoder:
    """Handler of ``decode`` for the entries of ``default_handlers``, but for those that ``decode`` has."""

    def __init__(self, imagespec: str) -> None:
        self.__name__ = repr(imagespec)  # it prints as it was written
        table = default_handlers[ImageDecoder(imagespec).imagespec]
        self._functions = {name: f for name, f in table.items() if LOADS.get(name) is not f}

    def __call__(self, key: str, data: Any) -> Any:
        function = self._functions.get(extension_of(key))
        return None if function is None else function(data)
