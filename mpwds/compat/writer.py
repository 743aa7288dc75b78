"""Writing shards, by webdataset's module name."""

from __future__ import annotations

from mpwds.storage.writing.encoders import (
    cbor_dumps,
    default_handlers,
    encode_based_on_extension,
    imageencoder,
    make_encoder,
    make_handlers,
    mp_dumps,
    numpy_dumps,
    numpy_npz_dumps,
    tenbin_dumps,
    torch_dumps,
)
from mpwds.storage.writing.tar_writer import TarWriter
from mpwds.storage.writing.writers import ShardWriter

__all__ = [
    "ShardWriter",
    "TarWriter",
    "cbor_dumps",
    "default_handlers",
    "encode_based_on_extension",
    "imageencoder",
    "make_encoder",
    "make_handlers",
    "mp_dumps",
    "numpy_dumps",
    "numpy_npz_dumps",
    "tenbin_dumps",
    "torch_dumps",
]
