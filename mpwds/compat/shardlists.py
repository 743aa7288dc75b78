"""Lists of shards, by webdataset's module name."""

from __future__ import annotations

from mpwds.pipeline.sources.directory_shards import DirectoryShardList
from mpwds.pipeline.sources.multi_shard_sample import MultiShardSample, shardspec
from mpwds.pipeline.sources.resampled import ResampledShardList, ResampledShards, resampled
from mpwds.pipeline.sources.shards import SimpleShardList
from mpwds.pipeline.sources.splitting import non_empty, single_node_only, split_by_node, split_by_worker
from mpwds.storage.streams.urls import expand_urls

__all__ = [
    "DirectoryShardList",
    "MultiShardSample",
    "ResampledShardList",
    "ResampledShards",
    "SimpleShardList",
    "expand_urls",
    "non_empty",
    "resampled",
    "shardspec",
    "single_node_only",
    "split_by_node",
    "split_by_worker",
]
