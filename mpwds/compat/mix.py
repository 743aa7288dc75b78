"""Mixing datasets, by webdataset's module name."""

from __future__ import annotations

from mpwds.pipeline.mix import RandomMix, RoundRobin

__all__ = ["RandomMix", "RoundRobin"]
