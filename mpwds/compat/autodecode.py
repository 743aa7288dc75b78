"""Decoding, by webdataset's module name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.decoding.audio import AUDIO_EXTENSIONS, torch_audio
from mpwds.pipeline.decoding.decoders import (
    Continue,
    DecodingError,
    basichandlers,
    cbor_loads,
    decoders,
    gzfilter,
    handle_extension,
    msgpack_loads,
)
from mpwds.pipeline.decoding.decoders import Decoder as SampleDecoder
from mpwds.pipeline.decoding.images import (
    IMAGE_EXTENSIONS,
    ImageDecoder,
    ImageHandler,
    imagehandler,
    imagespecs,
)
from mpwds.pipeline.decoding.npy import npy_loads, npz_loads
from mpwds.pipeline.decoding.pickles import pytorch_weights_only, torch_loads, unpickle_loads
from mpwds.pipeline.decoding.video import VIDEO_EXTENSIONS, torch_video
from mpwds.pipeline.stages.map import map

__all__ = [
    "IMAGE_EXTENSIONS",
    "Continue",
    "Decoder",
    "DecodingError",
    "ImageHandler",
    "basichandlers",
    "cbor_loads",
    "decoders",
    "default_handlers",
    "gzfilter",
    "handle_extension",
    "imagehandler",
    "imagespecs",
    "msgpack_loads",
    "npy_loads",
    "npz_loads",
    "pytorch_weights_only",
    "torch_audio",
    "torch_loads",
    "torch_video",
    "unpickle_loads",
]


class Decoder(SampleDecoder):
    """A ``Decoder`` that, called with a dataset, returns the dataset of its decoded samples.

    Example:
        >>> decode = Decoder(handle_extension(".mask", len))
        >>> decode({"__key__": "a", "mask": b"abc"})
        {'__key__': 'a', 'mask': 3}
        >>> list(decode(DataPipeline([{"__key__": "a", "cls": b"7"}])))
        [{'__key__': 'a', 'cls': 7}]
    """

    def __call__(self, source: Any) -> Any:
        if isinstance(source, Iterable) and not isinstance(source, (dict, tuple, str, bytes)):
            return DataPipeline(source, map(self.decode))
        return self.decode(source)


def _handlers(spec: str) -> dict[str, Callable[[Any], Any]]:
    return {
        **decoders,
        **dict.fromkeys(IMAGE_EXTENSIONS, ImageDecoder(spec).decode),
        **{each: functools.partial(torch_video, f".{each}") for each in VIDEO_EXTENSIONS},
        **{each: functools.partial(torch_audio, f".{each}") for each in AUDIO_EXTENSIONS},
    }


default_handlers = {spec: _handlers(spec) for spec in imagespecs}
"""By image specification, the function for each extension. ``Dataset(decoder=spec)`` uses what a program puts
here: ``default_handlers["rgb"]["mask"] = f``."""

_AS_MADE = {spec: dict(handlers) for spec, handlers in default_handlers.items()}


def added_handlers(spec: str) -> list[Any]:
    """Handlers for the entries of ``default_handlers[spec]`` that the program added or changed.

    Example:
        >>> default_handlers["rgb"]["mask"] = len
        >>> added_handlers("rgb")
        [handle_extension('mask', len)]
        >>> del default_handlers["rgb"]["mask"]
    """
    made = _AS_MADE.get(spec, {})
    given = default_handlers.get(spec, {})
    return [handle_extension(name, f) for name, f in given.items() if made.get(name) is not f]
