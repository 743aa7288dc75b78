"""mosaicml-streaming's ``base``: its programs import the same names from it, and from modules below it."""

from __future__ import annotations

from typing import Any

from mpwds.compat.streaming.base import util as util
from mpwds.compat.streaming.base.dataset import LocalDataset as LocalDataset
from mpwds.compat.streaming.base.dataset import StreamingDataset as StreamingDataset
from mpwds.compat.streaming.base.format.mds.writer import MDSWriter as MDSWriter
from mpwds.compat.streaming.base.stream import Stream as Stream

_OTHER_FORMATS = ("CSVWriter", "JSONWriter", "TSVWriter", "XSVWriter")


def __getattr__(name: str) -> Any:
    if name == "StreamingDataLoader":  # imports torch
        from mpwds.compat.streaming.base.dataloader import StreamingDataLoader

        return StreamingDataLoader
    why = ": of its formats there is only MDS here, which MDSWriter writes" if name in _OTHER_FORMATS else ""
    raise AttributeError(f"module 'mpwds.streaming' has no attribute {name!r}{why}", name=name)
