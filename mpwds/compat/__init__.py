"""webdataset's modules and its earlier generations, and tensorcom; also the module ``webdataset.compat``.

Each module of webdataset's has its name there as well: ``mpwds.filters`` is ``mpwds.compat.filters``. They
exist for programs that were written for webdataset or tensorcom; nothing else in mpwds needs them.
``dataset`` and ``multi`` have the classes of webdataset 0.0 and 0.1.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpwds.loader.dataloader.web_loader import WebLoader
    from mpwds.pipeline.dataset import DataPipeline as FluidWrapper
    from mpwds.pipeline.fluent import Fluent as FluidInterface
    from mpwds.pipeline.webdataset import WebDataset

__all__ = ["FluidInterface", "FluidWrapper", "WebDataset", "WebLoader"]

_HOMES = {
    "FluidInterface": ("mpwds.pipeline.fluent", "Fluent"),
    "FluidWrapper": ("mpwds.pipeline.dataset", "DataPipeline"),
    "WebDataset": ("mpwds.pipeline.webdataset", "WebDataset"),
    "WebLoader": ("mpwds.loader.dataloader.web_loader", "WebLoader"),
}


def __getattr__(name: str) -> Any:
    if name == "tensorcom":
        return importlib.import_module("mpwds.compat.tensorcom")
    if name not in _HOMES:
        raise AttributeError(f"module 'mpwds.compat' has no attribute {name!r}")
    home, known_as = _HOMES[name]
    return getattr(importlib.import_module(home), known_as)
