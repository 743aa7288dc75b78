"""webdataset.autodecode: decoding the fields of samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.decoding.audio import AUDIO_EXTENSIONS
from mpwds.pipeline.decoding.audio import torch_audio as torch_audio
from mpwds.pipeline.decoding.decoders import Continue as Continue
from mpwds.pipeline.decoding.decoders import Decoder as SampleDecoder
from mpwds.pipeline.decoding.decoders import DecodingError as DecodingError
from mpwds.pipeline.decoding.decoders import basichandlers as basichandlers
from mpwds.pipeline.decoding.decoders import decoders as decoders
from mpwds.pipeline.decoding.decoders import gzfilter as gzfilter
from mpwds.pipeline.decoding.decoders import handle_extension as handle_extension
from mpwds.pipeline.decoding.images import IMAGE_EXTENSIONS as IMAGE_EXTENSIONS
from mpwds.pipeline.decoding.images import ImageDecoder
from mpwds.pipeline.decoding.images import ImageHandler as ImageHandler
from mpwds.pipeline.decoding.images import imagehandler as imagehandler
from mpwds.pipeline.decoding.images import imagespecs as imagespecs
from mpwds.pipeline.decoding.loads import cbor_loads as cbor_loads
from mpwds.pipeline.decoding.loads import msgpack_loads as msgpack_loads
from mpwds.pipeline.decoding.loads import npy_loads as npy_loads
from mpwds.pipeline.decoding.loads import npz_loads as npz_loads
from mpwds.pipeline.decoding.loads import pytorch_weights_only as pytorch_weights_only
from mpwds.pipeline.decoding.loads import torch_loads as torch_loads
from mpwds.pipeline.decoding.loads import unpickle_loads as unpickle_loads
from mpwds.pipeline.decoding.video import VIDEO_EXTENSIONS
from mpwds.pipeline.decoding.video import torch_video as torch_video
from mpwds.pipeline.stages.map import map


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


def _int_or_bytes(data: bytes) -> Any:
    try:
        return int(data)
    except ValueError:
        return data


def _handlers(spec: str) -> dict[str, Callable[[Any], Any]]:
    return {
        **decoders,
        **dict.fromkeys((*IMAGE_EXTENSIONS, "img", "image"), ImageDecoder(spec).decode),
        **dict.fromkeys(("class", "count"), _int_or_bytes),
        **{each: functools.partial(torch_video, f".{each}") for each in VIDEO_EXTENSIONS},
        **{each: functools.partial(torch_audio, f".{each}") for each in AUDIO_EXTENSIONS},
    }


# By image specification, the function for each extension, of the first releases. A program may add functions
# for Dataset(decoder=spec) and Dataset.decode(spec): default_handlers["rgb"]["mask"] = f.
default_handlers = {spec: _handlers(spec) for spec in imagespecs}


_DECODED = {
    spec: {extension: table[extension] for extension in (*decoders, *IMAGE_EXTENSIONS)}
    for spec, table in default_handlers.items()
}


class TableDecoder(ImageDecoder):
    """``ImageDecoder`` that also decodes by the entries of ``default_handlers`` that ``decode`` lacks.

    Example:
        >>> default_handlers["rgb"]["mask"] = len
        >>> TableDecoder("rgb")(".mask", b"abc")
        3
        >>> del default_handlers["rgb"]["mask"]
    """

    takes_views = False

    def __init__(self, imagespec: str) -> None:
        super().__init__(imagespec)
        self.__name__ = repr(imagespec)  # it prints as it was written
        decoded = _DECODED[self.imagespec]
        table = default_handlers[self.imagespec]
        self._functions = {name: f for name, f in table.items() if decoded.get(name) is not f}

    def __call__(self, key: str, data: Any) -> Any:
        function = self._functions.get(key.rpartition(".")[2].lower())
        return super().__call__(key, data) if function is None else function(data)
