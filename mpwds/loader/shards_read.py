"""Which shards a worker reads in an epoch, without running the worker's pipeline."""

from __future__ import annotations

import warnings
from typing import NamedTuple

from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import ONCE
from mpwds.pipeline.handlers import reraise_exception
from mpwds.pipeline.sources.samples import TarfileSamples, TarSamples
from mpwds.pipeline.sources.shard_stream import url_of
from mpwds.pipeline.sources.shards import ShardList, SimpleShardList
from mpwds.pipeline.sources.splitting import SplitByNode, SplitByWorker, split_by_node, split_by_worker
from mpwds.pipeline.stages.detshuffle import Detshuffle
from mpwds.pipeline.stages.shuffle import Shuffle
from mpwds.pipeline.stages.slice import Slice
from mpwds.pipeline.stream import Stage

_CHOOSE_AMONG_SHARDS = (Detshuffle, Shuffle, Slice, SplitByNode, SplitByWorker)


class ShardsRead(NamedTuple):
    """The shards that a worker reads, and what it makes of their samples.

    Attributes:
        urls: The shards.
        stages_behind: The stages behind the one that reads them.
    """

    urls: list[str]
    stages_behind: list[Stage]


def shards_read(pipeline: DataPipeline, context: Context) -> ShardsRead | None:
    """The shards that a pipeline of tar shards reads in a context.

    Args:
        pipeline: Begins at a list of shards, of which stages of ours choose, and reads all samples of these.
        context: Epoch, seed, rank and worker.

    Returns:
        ``None`` for any other pipeline: it might choose by what only the worker knows, claim shards, or read
        some of their samples only.

    Example:
        >>> from mpwds.pipeline.webdataset import WebDataset
        >>> shards_read(WebDataset("x-{0..4}.tar"), Context(worker=1, workers=2)).urls
        ['x-1.tar', 'x-3.tar']
    """
    origin, *stages = pipeline.parts
    if pipeline._epochs != ONCE or type(origin) not in (ShardList, SimpleShardList):
        return None
    if isinstance(origin, ShardList) and not (
        origin.nodesplitter in (None, split_by_node) and origin.splitter in (None, split_by_worker)
    ):
        return None
    for position, stage in enumerate(stages, 1):
        if _reads_whole_shards(stage):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of fewer shards than workers: the workers say so
                urls = [url_of(shard) for _, shard in pipeline.before(position, context)]
            return ShardsRead(urls, stages[position:])
        if not isinstance(stage, _CHOOSE_AMONG_SHARDS):
            break
    return None


def _reads_whole_shards(stage: Stage) -> bool:
    if isinstance(stage, TarfileSamples):
        return True
    return (
        isinstance(stage, TarSamples)
        and stage.handler is reraise_exception
        and stage.select_files is None
        and stage.rename_files is None
    )
