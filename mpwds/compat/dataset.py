"""Datasets and error handlers, by the name of their module in webdataset 0.0 and 0.1."""

from __future__ import annotations

from mpwds.compat.autodecode import default_handlers
from mpwds.compat.extradatasets import ChoppedDataset, ResizedDataset
from mpwds.compat.tariterators import base_plus_ext, group_by_keys, valid_sample
from mpwds.compat.webdataset_v0.dataset import Dataset
from mpwds.compat.webdataset_v0.processor import Processor
from mpwds.compat.webdataset_v0.shard_hooks import all_urls, worker_urls
from mpwds.pipeline.decoding.images import imagehandler
from mpwds.pipeline.handlers import (
    ignore_and_continue,
    ignore_and_stop,
    reraise_exception,
    warn_and_continue,
    warn_and_stop,
)
from mpwds.pipeline.sources.shards import ShardList
from mpwds.pipeline.sources.splitting import split_by_worker
from mpwds.pipeline.webdataset import WebDataset

__all__ = [
    "ChoppedDataset",
    "Dataset",
    "Processor",
    "ResizedDataset",
    "ShardList",
    "WebDataset",
    "all_urls",
    "base_plus_ext",
    "default_handlers",
    "group_by_keys",
    "ignore_and_continue",
    "ignore_and_stop",
    "imagehandler",
    "reraise_exception",
    "split_by_worker",
    "valid_sample",
    "warn_and_continue",
    "warn_and_stop",
    "worker_urls",
]
