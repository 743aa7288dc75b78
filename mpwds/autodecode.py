"""Decoding, by webdataset's module name."""

from __future__ import annotations

from mpwds.pipeline.decoding.audio import torch_audio
from mpwds.pipeline.decoding.decoders import (
    Continue,
    Decoder,
    DecodingError,
    basichandlers,
    cbor_loads,
    decoders,
    gzfilter,
    handle_extension,
    msgpack_loads,
)
from mpwds.pipeline.decoding.images import IMAGE_EXTENSIONS, ImageHandler, imagehandler, imagespecs
from mpwds.pipeline.decoding.npy import npy_loads, npz_loads
from mpwds.pipeline.decoding.pickles import pytorch_weights_only, torch_loads, unpickle_loads
from mpwds.pipeline.decoding.video import torch_video

__all__ = [
    "IMAGE_EXTENSIONS",
    "Continue",
    "Decoder",
    "DecodingError",
    "ImageHandler",
    "basichandlers",
    "cbor_loads",
    "decoders",
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
