"""webdataset.writer: writing shards."""

from mpwds.storage.writing.writers import ShardWriter as ShardWriter
from mpwds.storage.writing.writers import TarWriter as TarWriter
from mpwds.storage.writing.writers import cbor_dumps as cbor_dumps
from mpwds.storage.writing.writers import default_handlers as default_handlers
from mpwds.storage.writing.writers import encode_based_on_extension as encode_based_on_extension
from mpwds.storage.writing.writers import imageencoder as imageencoder
from mpwds.storage.writing.writers import make_encoder as make_encoder
from mpwds.storage.writing.writers import make_handlers as make_handlers
from mpwds.storage.writing.writers import mp_dumps as mp_dumps
from mpwds.storage.writing.writers import numpy_dumps as numpy_dumps
from mpwds.storage.writing.writers import numpy_npz_dumps as numpy_npz_dumps
from mpwds.storage.writing.writers import tenbin_dumps as tenbin_dumps
from mpwds.storage.writing.writers import torch_dumps as torch_dumps
