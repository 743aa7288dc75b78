"""webdataset.writer: writing shards."""

from mpwds.storage.writing.encoders import cbor_dumps as cbor_dumps
from mpwds.storage.writing.encoders import default_handlers as default_handlers
from mpwds.storage.writing.encoders import encode_based_on_extension as encode_based_on_extension
from mpwds.storage.writing.encoders import imageencoder as imageencoder
from mpwds.storage.writing.encoders import make_encoder as make_encoder
from mpwds.storage.writing.encoders import make_handlers as make_handlers
from mpwds.storage.writing.encoders import mp_dumps as mp_dumps
from mpwds.storage.writing.encoders import numpy_dumps as numpy_dumps
from mpwds.storage.writing.encoders import numpy_npz_dumps as numpy_npz_dumps
from mpwds.storage.writing.encoders import tenbin_dumps as tenbin_dumps
from mpwds.storage.writing.encoders import torch_dumps as torch_dumps
from mpwds.storage.writing.tar_writer import TarWriter as TarWriter
from mpwds.storage.writing.writers import ShardWriter as ShardWriter
