"""Datasets of another length, by webdataset's module name."""

from __future__ import annotations

from mpwds.pipeline.sources.mock import MockDataset
from mpwds.pipeline.sources.resized import repeatedly, with_epoch, with_length

__all__ = ["MockDataset", "repeatedly", "with_epoch", "with_length"]
