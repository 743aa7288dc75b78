"""Where each public name is defined; it is imported when it is first used. See also ``__init__.pyi``."""

from __future__ import annotations

import importlib
import sys
from typing import Any

MODULES = ("nest", "tenbin")

# The names that most programs need: `dir(mpwds)` shows these.
NAMES = {
    "mpwds.errors": "DecodeError MpwdsError ServerLost ShardError WorkerDied WorkerTimeout",
    "mpwds.feed.metrics": "serve_metrics",
    "mpwds.feed.server.server": "Server",
    "mpwds.feed.client.remote_loader": "RemoteLoader",
    "mpwds.loader.dataloader.data_loader": "DataLoader use_in_accelerate",
    "mpwds.loader.multi_loader": "MultiLoader",
    "mpwds.stats.report": "LoaderStats",
    "mpwds.loader.dataloader.web_loader": "WebLoader",
    "mpwds.pipeline.collation": "padded",
    "mpwds.pipeline.dataset": "DataPipeline",
    "mpwds.pipeline.decoding.decoders": "handle_extension",
    "mpwds.pipeline.handlers": "ignore_and_continue reraise_exception warn_and_continue",
    "mpwds.pipeline.indexed.dataset": "IndexedDataset",
    "mpwds.pipeline.mix": "RandomMix RoundRobin",
    "mpwds.pipeline.quarantine": "quarantine",
    "mpwds.pipeline.sources.directory_shards": "DirectoryShardList",
    "mpwds.pipeline.sources.shards": "ResampledShards ShardList",
    "mpwds.pipeline.splitting": "split_by_node split_by_worker",
    "mpwds.pipeline.sources.specs": "load_spec",
    "mpwds.pipeline.sources.webdataset": "WebDataset",
    "mpwds.sharedmem.share": "share",
    "mpwds.storage.caches.shard_cache": "ShardCache",
    "mpwds.storage.streams.gopen": "gopen",
    "mpwds.storage.writing.tar_writer": "ShardWriter TarWriter",
}

# webdataset's further names, stages as functions, and classes that programs seldom name:
# docs/coming-from-webdataset.md and docs/coming-from-tensorcom.md list most of them.
FURTHER_NAMES = {
    "mpwds.compat": "FluidInterface FluidWrapper",
    "mpwds.compat.sample_options": "Decoder",
    "mpwds.compat.helpers": "ChoppedDataset MockDataset ResizedDataset repeatedly with_epoch with_length",
    "mpwds.compat.multi": "MultiDataset MultiDatasetIterator",
    "mpwds.compat.tar_stages": (
        "FileCache LRUCleanup StreamingOpen base_plus_ext group_by_keys pipe_cleaner tar_file_expander "
        "tar_file_iterator url_opener valid_sample"
    ),
    "mpwds.compat.tensorcom.feeding": "TensorcomDataset",
    "mpwds.compat.tensorcom.zcom": "Connection",
    "mpwds.compat.dataset": "Dataset Processor all_urls worker_urls",
    "mpwds.errors": (
        "EnvelopeError EvenEpochError QuarantineFull SecurityError SharedMemoryError SpecError "
        "StreamError StreamNotFound TenbinError WorkerTraceback"
    ),
    "mpwds.stats.measures": "StageStats WorkerStats",
    "mpwds.pipeline.caching.disk_cached": "DBCache LMDBCached lmdb_cached",
    "mpwds.pipeline.caching.mcached": "Cached mcached",
    "mpwds.pipeline.collation": "default_collation_fn",
    "mpwds.pipeline.decoding.audio": "AudioDecoder torch_audio",
    "mpwds.pipeline.decoding.decoders": "Continue DecodingError basichandlers gzfilter",
    "mpwds.pipeline.decoding.fields": "AUDIO_EXTENSIONS IMAGE_EXTENSIONS VIDEO_EXTENSIONS",
    "mpwds.pipeline.decoding.images": "ImageHandler imagehandler",
    "mpwds.pipeline.decoding.loads": "pytorch_weights_only torch_loads",
    "mpwds.pipeline.decoding.video": "VideoDecoder torch_video",
    "mpwds.pipeline.handlers": "ignore_and_stop warn_and_stop",
    "mpwds.pipeline.indexed.mds_datasets": "MDSDataset StreamingDataset",
    "mpwds.pipeline.indexed.samplers": "ChunkedSampler DistributedChunkedSampler ShardListSampler",
    "mpwds.pipeline.indexed.shard_list": "ShardListDataset",
    "mpwds.pipeline.error_context": "Incident",
    "mpwds.pipeline.coercion": "PipelineStage pipelinefilter",
    "mpwds.pipeline.sources.samples": (
        "cbors2_to_samples cbors_to_samples msgpacks_to_samples tarfile_samples tarfile_to_samples"
    ),
    "mpwds.pipeline.sources.shards": "ResampledShardList SimpleShardList resampled",
    "mpwds.pipeline.splitting": "non_empty single_node_only",
    "mpwds.pipeline.sources.specs": "MultiShardSample shardspec",
    "mpwds.pipeline.stages.batched": "batch batched bucketed listed",
    "mpwds.pipeline.stages.decode": "decode xdecode",
    "mpwds.pipeline.stages.fields": "extract_keys getfirst parse_field_spec rename rename_keys to_tuple",
    "mpwds.pipeline.stages.info": "info log_keys",
    "mpwds.pipeline.stages.map": "associate map map_dict map_tuple transform_with",
    "mpwds.pipeline.stages.select": "rsample select slice",
    "mpwds.pipeline.stages.shuffle": "detshuffle shuffle",
    "mpwds.pipeline.stages.unbatched": "flatmap unbatched unlisted",
    "mpwds.pipeline.sources.webdataset": "construct_dataset",
    "mpwds.sharedmem.share": "SharedList",
    "mpwds.storage.mds.writers": "MDSWriter StreamingDatasetWriter",
    "mpwds.storage.streams.gopen": "gopen_schemes",
    "mpwds.storage.streams.patterns": "expand_urls",
    "mpwds.storage.streams.urls": "enforce_security",
    "mpwds.storage.writing.encoders": "numpy_dumps torch_dumps",
}

HOMES = {name: home for names in (NAMES, FURTHER_NAMES) for home in names for name in names[home].split()}


# Functions of higher rooms for lower ones.
SERVICES = {"workers_of_servers": "mpwds.feed.client.remote_loader"}


def service(name: str) -> Any:
    """The function of a higher room that a lower one needs because a user asked for it."""
    return getattr(importlib.import_module(SERVICES[name]), name)


def find(name: str) -> Any:
    """The value of ``mpwds.<name>``; raises ``AttributeError`` if there is no such name."""
    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    if name in MODULES or name == "compat" or f"mpwds.{name}" in sys.modules:
        return importlib.import_module(f"mpwds.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("mpwds")
    from mpwds.suggestions import did_you_mean

    similar = "" if name.startswith("_") else did_you_mean(name, HOMES)
    raise AttributeError(f"module 'mpwds' has no attribute {name!r}{similar}", name=name)
