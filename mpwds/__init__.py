"""Feeds deep-learning training from sharded datasets: worker processes, shared memory, a plain iterator."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpwds import nest, tenbin
    from mpwds.errors import (
        DecodeError,
        EnvelopeError,
        MpwdsError,
        ShardError,
        SharedMemoryError,
        TenbinError,
        WorkerDied,
        WorkerTimeout,
        WorkerTraceback,
    )
    from mpwds.loader.multi_loader import MultiLoader
    from mpwds.pipeline.collate import default_collation_fn
    from mpwds.pipeline.dataset import DataPipeline, WebDataset
    from mpwds.storage.writers import ShardWriter, TarWriter

    __version__: str

__all__ = [
    "DataPipeline",
    "DecodeError",
    "EnvelopeError",
    "MpwdsError",
    "MultiLoader",
    "ShardError",
    "ShardWriter",
    "SharedMemoryError",
    "TarWriter",
    "TenbinError",
    "WebDataset",
    "WorkerDied",
    "WorkerTimeout",
    "WorkerTraceback",
    "__version__",
    "default_collation_fn",
    "nest",
    "tenbin",
]

_HOMES = {
    "DataPipeline": "mpwds.pipeline.dataset",
    "DecodeError": "mpwds.errors",
    "EnvelopeError": "mpwds.errors",
    "MpwdsError": "mpwds.errors",
    "MultiLoader": "mpwds.loader.multi_loader",
    "ShardError": "mpwds.errors",
    "ShardWriter": "mpwds.storage.writers",
    "SharedMemoryError": "mpwds.errors",
    "TarWriter": "mpwds.storage.writers",
    "TenbinError": "mpwds.errors",
    "WebDataset": "mpwds.pipeline.dataset",
    "WorkerDied": "mpwds.errors",
    "WorkerTimeout": "mpwds.errors",
    "WorkerTraceback": "mpwds.errors",
    "default_collation_fn": "mpwds.pipeline.collate",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in ("nest", "tenbin"):
        value = importlib.import_module(f"mpwds.{name}")
    elif name == "__version__":
        from importlib.metadata import version

        value = version("mpwds")
    else:
        raise AttributeError(f"module 'mpwds' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
