"""mosaicml-streaming's names: ``from mpwds import streaming`` in place of ``import streaming``.

See docs/mds.md for what its programs find here, and what not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpwds.compat.streaming import base as base
from mpwds.compat.streaming.base.dataset import LocalDataset as LocalDataset
from mpwds.compat.streaming.base.dataset import StreamingDataset as StreamingDataset
from mpwds.compat.streaming.base.format.mds.writer import MDSWriter as MDSWriter
from mpwds.compat.streaming.base.stream import Stream as Stream

if TYPE_CHECKING:
    from mpwds.compat.streaming.base.dataloader import StreamingDataLoader as StreamingDataLoader

__all__ = ["LocalDataset", "MDSWriter", "Stream", "StreamingDataLoader", "StreamingDataset"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return getattr(base, name)
