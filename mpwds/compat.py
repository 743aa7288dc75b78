"""Datasets, by webdataset's module name."""

from __future__ import annotations

from mpwds.loader.web_loader import WebLoader
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.fluent import Fluent as FluidInterface
from mpwds.pipeline.webdataset import WebDataset

__all__ = ["FluidInterface", "FluidWrapper", "WebDataset", "WebLoader"]

FluidWrapper = DataPipeline
