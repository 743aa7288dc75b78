"""Datasets, by webdataset's module name."""

from __future__ import annotations

from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.fluent import Fluent as FluidInterface
from mpwds.pipeline.webdataset import WebDataset

__all__ = ["FluidInterface", "FluidWrapper", "WebDataset"]

FluidWrapper = DataPipeline
