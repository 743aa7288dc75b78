"""webdataset.filters: the stages."""

from typing import Any as _Any

from mpwds.compat.utils import identity as identity
from mpwds.pipeline.caching.lmdb_cached import LMDBCached as LMDBCached
from mpwds.pipeline.caching.mcached import Cached as Cached
from mpwds.pipeline.collation.collate import default_collation_fn as default_collation_fn
from mpwds.pipeline.handlers import reraise_exception as reraise_exception
from mpwds.pipeline.parts import pipelinefilter as pipelinefilter
from mpwds.pipeline.stages.batched import batched as batched
from mpwds.pipeline.stages.batched import listed as listed
from mpwds.pipeline.stages.decode import decode as decode
from mpwds.pipeline.stages.decode import decode_bin as decode_bin
from mpwds.pipeline.stages.decode import decode_pickle as decode_pickle
from mpwds.pipeline.stages.decode import decode_text as decode_text
from mpwds.pipeline.stages.decode import default_decoders as default_decoders
from mpwds.pipeline.stages.decode import xdecode as xdecode
from mpwds.pipeline.stages.fields import getfirst as getfirst
from mpwds.pipeline.stages.fields import parse_field_spec as parse_field_spec
from mpwds.pipeline.stages.fields import rename as rename
from mpwds.pipeline.stages.fields import to_tuple as to_tuple
from mpwds.pipeline.stages.info import info as info
from mpwds.pipeline.stages.info import log_keys as log_keys
from mpwds.pipeline.stages.keys import extract_keys as extract_keys
from mpwds.pipeline.stages.keys import rename_keys as rename_keys
from mpwds.pipeline.stages.map import associate as associate
from mpwds.pipeline.stages.map import map as map
from mpwds.pipeline.stages.map import map_dict as map_dict
from mpwds.pipeline.stages.map import map_tuple as map_tuple
from mpwds.pipeline.stages.map import transform_with as transform_with
from mpwds.pipeline.stages.select import rsample as rsample
from mpwds.pipeline.stages.select import select as select
from mpwds.pipeline.stages.select import slice as slice
from mpwds.pipeline.stages.shuffle import detshuffle as detshuffle
from mpwds.pipeline.stages.shuffle import shuffle as shuffle
from mpwds.pipeline.stages.unbatched import unbatched as unbatched
from mpwds.pipeline.stages.unbatched import unlisted as unlisted


def __getattr__(name: str) -> _Any:
    """``_batched(source, 2)`` is ``batched(2)(source)``: programs import such names from webdataset."""
    make = globals().get(name[1:]) if name[:1] == "_" else None
    if not callable(make):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return lambda source, *args, **keywords: make(*args, **keywords)(source)
