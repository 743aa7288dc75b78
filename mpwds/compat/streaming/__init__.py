"""mosaicml-streaming's names: ``from mpwds import streaming`` in place of ``import streaming``.

See docs/mds.md for what its programs find here, and what not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mpwds.compat.streaming.dataset import LocalDataset as LocalDataset
from mpwds.compat.streaming.dataset import StreamingDataset as StreamingDataset
from mpwds.compat.streaming.stream import Stream as Stream
from mpwds.storage.mds import writer_v2

if TYPE_CHECKING:
    from mpwds.compat.streaming.dataloader import StreamingDataLoader as StreamingDataLoader

__all__ = ["LocalDataset", "MDSWriter", "Stream", "StreamingDataLoader", "StreamingDataset"]

_OTHER_FORMATS = ("CSVWriter", "JSONWriter", "TSVWriter", "XSVWriter")


class MDSWriter(writer_v2.MDSWriter):
    """``mpwds.MDSWriter``, which writes columns of pickles without being asked: only to read them is unsafe.

    Source:
        ``streaming.MDSWriter`` (mosaicml-streaming 0.13).
    """

    def __init__(self, *, allow_pickle: bool = True, **options: Any) -> None:
        super().__init__(allow_pickle=allow_pickle, **options)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "StreamingDataLoader":  # imports torch
        from mpwds.compat.streaming.dataloader import StreamingDataLoader

        return StreamingDataLoader
    if name == "base":
        return importlib.import_module(f"{__name__}.base")
    why = ": of its formats there is only MDS here, which MDSWriter writes" if name in _OTHER_FORMATS else ""
    raise AttributeError(f"module 'mpwds.streaming' has no attribute {name!r}{why}", name=name)
