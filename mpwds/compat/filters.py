"""The stages, by webdataset's module name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mpwds.compat.utils import identity
from mpwds.pipeline.caching.lmdb_cached import LMDBCached
from mpwds.pipeline.caching.mcached import Cached
from mpwds.pipeline.collation.collate import default_collation_fn
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handlers import reraise_exception
from mpwds.pipeline.stages.associate import associate
from mpwds.pipeline.stages.batched import batched, listed
from mpwds.pipeline.stages.decode import decode
from mpwds.pipeline.stages.detshuffle import detshuffle
from mpwds.pipeline.stages.extract_keys import extract_keys
from mpwds.pipeline.stages.fields import getfirst, parse_field_spec
from mpwds.pipeline.stages.info import info
from mpwds.pipeline.stages.log_keys import log_keys
from mpwds.pipeline.stages.map import map
from mpwds.pipeline.stages.map_dict import map_dict
from mpwds.pipeline.stages.map_tuple import map_tuple, transform_with
from mpwds.pipeline.stages.pipelinefilter import pipelinefilter
from mpwds.pipeline.stages.rename import rename
from mpwds.pipeline.stages.rename_keys import rename_keys
from mpwds.pipeline.stages.rsample import rsample
from mpwds.pipeline.stages.select import select
from mpwds.pipeline.stages.shuffle import shuffle
from mpwds.pipeline.stages.slice import slice
from mpwds.pipeline.stages.to_tuple import to_tuple
from mpwds.pipeline.stages.unbatched import unbatched
from mpwds.pipeline.stages.unlisted import unlisted
from mpwds.pipeline.stages.xdecode import decode_bin, decode_pickle, decode_text, default_decoders, xdecode

__all__ = [
    "Cached",
    "LMDBCached",
    "associate",
    "batched",
    "decode",
    "decode_bin",
    "decode_pickle",
    "decode_text",
    "default_collation_fn",
    "default_decoders",
    "detshuffle",
    "extract_keys",
    "getfirst",
    "identity",
    "info",
    "listed",
    "log_keys",
    "map",
    "map_dict",
    "map_tuple",
    "parse_field_spec",
    "pipelinefilter",
    "rename",
    "rename_keys",
    "reraise_exception",
    "rsample",
    "select",
    "shuffle",
    "slice",
    "to_tuple",
    "transform_with",
    "unbatched",
    "unlisted",
    "xdecode",
]


def _of_source(make: Callable[..., Filter]) -> Callable[..., Iterator[Any]]:
    """``f(source, *args)`` from ``f(*args)(source)``."""

    def function(source: Iterable[Any], *args: Any, **keywords: Any) -> Iterator[Any]:
        return make(*args, **keywords)(source)

    return function


# Plain functions of a source: programs take them from webdataset's module in spite of the underscore.
_associate = _of_source(associate)
_batched = _of_source(batched)
_decode = _of_source(decode)
_extract_keys = _of_source(extract_keys)
_info = _of_source(info)
_log_keys = _of_source(log_keys)
_map = _of_source(map)
_map_dict = _of_source(map_dict)
_map_tuple = _of_source(map_tuple)
_rename = _of_source(rename)
_rename_keys = _of_source(rename_keys)
_rsample = _of_source(rsample)
_select = _of_source(select)
_shuffle = _of_source(shuffle)
_to_tuple = _of_source(to_tuple)
_unbatched = _of_source(unbatched)
_unlisted = _of_source(unlisted)
_xdecode = _of_source(xdecode)
