"""Serves programs for webdataset, wids, tensorcom and mosaicml-streaming; nothing else in mpwds needs it.

``mpwds/names.py`` gives all this the names of the peers' modules. ``dataset``, ``sample_options`` and
``multi`` are webdataset's first generations, ``tar_stages`` its stages for pipelines of small parts. This
module itself is ``webdataset.compat``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpwds.loader.dataloader.web_loader import WebLoader
    from mpwds.pipeline.dataset import DataPipeline as FluidWrapper
    from mpwds.pipeline.fluent import Fluent as FluidInterface
    from mpwds.pipeline.sources.webdataset import WebDataset

__all__ = ["FluidInterface", "FluidWrapper", "WebDataset", "WebLoader"]

_HOMES = {
    "FluidInterface": ("mpwds.pipeline.fluent", "Fluent"),
    "FluidWrapper": ("mpwds.pipeline.dataset", "DataPipeline"),
    "WebDataset": ("mpwds.pipeline.sources.webdataset", "WebDataset"),
    "WebLoader": ("mpwds.loader.dataloader.web_loader", "WebLoader"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mpwds.compat' has no attribute {name!r}")
    home, known_as = _HOMES[name]
    return getattr(importlib.import_module(home), known_as)
