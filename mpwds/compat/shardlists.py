"""webdataset.shardlists: lists of shards."""

from mpwds.pipeline.sources.directory_shards import DirectoryShardList as DirectoryShardList
from mpwds.pipeline.sources.resampled import ResampledShardList as ResampledShardList
from mpwds.pipeline.sources.resampled import ResampledShards as ResampledShards
from mpwds.pipeline.sources.resampled import resampled as resampled
from mpwds.pipeline.sources.shards import SimpleShardList as SimpleShardList
from mpwds.pipeline.sources.shards import non_empty as non_empty
from mpwds.pipeline.sources.shards import single_node_only as single_node_only
from mpwds.pipeline.sources.shards import split_by_node as split_by_node
from mpwds.pipeline.sources.shards import split_by_worker as split_by_worker
from mpwds.pipeline.sources.specs import MultiShardSample as MultiShardSample
from mpwds.pipeline.sources.specs import shardspec as shardspec
from mpwds.storage.streams.patterns import expand_urls as expand_urls
