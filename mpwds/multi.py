"""The loader, by webdataset's module name."""

from __future__ import annotations

from mpwds.loader.multi_loader import MultiLoader

__all__ = ["MultiLoader"]
