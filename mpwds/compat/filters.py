"""The stages, by webdataset's module name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mpwds.compat.utils import identity
from mpwds.pipeline.caching.lmdb_cached import LMDBCached
from mpwds.pipeline.caching.mcached import Cached
from mpwds.pipeline.collation.collate import default_collation_fn
from mpwds.pipeline.handlers import reraise_exception
from mpwds.pipeline.stages.batched import batched, listed
from mpwds.pipeline.stages.decode import decode
from mpwds.pipeline.stages.fields import getfirst, parse_field_spec, rename, to_tuple
from mpwds.pipeline.stages.info import info, log_keys
from mpwds.pipeline.stages.keys import extract_keys, rename_keys
from mpwds.pipeline.stages.map import associate, map, map_dict, map_tuple, transform_with
from mpwds.pipeline.stages.pipelinefilter import pipelinefilter
from mpwds.pipeline.stages.select import rsample, select, slice
from mpwds.pipeline.stages.shuffle import detshuffle, shuffle
from mpwds.pipeline.stages.unbatched import unbatched, unlisted
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


def __getattr__(name: str) -> Callable[..., Iterator[Any]]:
    """``_batched(source, 2)`` is ``batched(2)(source)``: programs import such names from webdataset too."""
    if name[:1] != "_" or name[1:] not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    make = globals()[name[1:]]

    def function(source: Iterable[Any], *args: Any, **keywords: Any) -> Iterator[Any]:
        made: Iterator[Any] = make(*args, **keywords)(source)
        return made

    return function
