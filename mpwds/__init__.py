"""Feeds deep-learning training from sharded datasets: worker processes, shared memory, a plain iterator."""

from __future__ import annotations

import importlib
from typing import Any

# Where each public name is defined; `__init__.pyi` says the same to type checkers.
_NAMES = {
    "mpwds.compat": "FluidInterface FluidWrapper",
    "mpwds.errors": (
        "DecodeError EnvelopeError EvenEpochError MpwdsError QuarantineFull SecurityError ShardError "
        "SharedMemoryError SpecError StreamError StreamNotFound TenbinError WorkerDied "
        "WorkerTimeout WorkerTraceback"
    ),
    "mpwds.loader.accelerated": "use_in_accelerate",
    "mpwds.loader.data_loader": "DataLoader",
    "mpwds.loader.multi_dataset": "MultiDataset MultiDatasetIterator",
    "mpwds.loader.multi_loader": "MultiLoader",
    "mpwds.loader.pool": "WorkerPool",
    "mpwds.loader.stats": "LoaderStats StageStats WorkerStats",
    "mpwds.loader.web_loader": "WebLoader",
    "mpwds.pipeline.caching.db_cache": "DBCache",
    "mpwds.pipeline.caching.lmdb_cached": "LMDBCached lmdb_cached",
    "mpwds.pipeline.caching.mcached": "Cached mcached",
    "mpwds.pipeline.collation.collate": "default_collation_fn",
    "mpwds.pipeline.collation.padded": "padded",
    "mpwds.pipeline.dataset": "DataPipeline",
    "mpwds.pipeline.decoding.audio": "AUDIO_EXTENSIONS AudioDecoder torch_audio",
    "mpwds.pipeline.decoding.decoders": (
        "Continue Decoder DecodingError basichandlers gzfilter handle_extension"
    ),
    "mpwds.pipeline.decoding.images": "IMAGE_EXTENSIONS ImageHandler imagehandler",
    "mpwds.pipeline.decoding.pickles": "pytorch_weights_only torch_loads",
    "mpwds.pipeline.decoding.video": "VIDEO_EXTENSIONS VideoDecoder torch_video",
    "mpwds.pipeline.earlier.legacy_dataset": "Dataset",
    "mpwds.pipeline.earlier.processor": "Processor",
    "mpwds.pipeline.earlier.shard_hooks": "all_urls worker_urls",
    "mpwds.pipeline.handlers": (
        "ignore_and_continue ignore_and_stop reraise_exception warn_and_continue warn_and_stop"
    ),
    "mpwds.pipeline.mixing.mix": "RandomMix RoundRobin",
    "mpwds.pipeline.notes": "Incident",
    "mpwds.pipeline.quarantine": "quarantine",
    "mpwds.pipeline.sources.directory_shards": "DirectoryShardList",
    "mpwds.pipeline.sources.mock": "MockDataset",
    "mpwds.pipeline.sources.multi_shard_sample": "MultiShardSample shardspec",
    "mpwds.pipeline.sources.opening": "FileCache StreamingOpen",
    "mpwds.pipeline.sources.records": "cbors2_to_samples cbors_to_samples msgpacks_to_samples",
    "mpwds.pipeline.sources.resampled": "ResampledShardList ResampledShards resampled",
    "mpwds.pipeline.sources.resized": "ChoppedDataset ResizedDataset repeatedly with_epoch with_length",
    "mpwds.pipeline.sources.samples": "tarfile_samples tarfile_to_samples",
    "mpwds.pipeline.sources.shards": "ShardList SimpleShardList",
    "mpwds.pipeline.sources.specs": "load_spec",
    "mpwds.pipeline.sources.splitting": "non_empty single_node_only split_by_node split_by_worker",
    "mpwds.pipeline.sources.tariterators": (
        "base_plus_ext group_by_keys tar_file_expander tar_file_iterator url_opener valid_sample"
    ),
    "mpwds.pipeline.stages.associate": "associate",
    "mpwds.pipeline.stages.batched": "batched",
    "mpwds.pipeline.stages.bucketed": "bucketed",
    "mpwds.pipeline.stages.decode": "decode",
    "mpwds.pipeline.stages.detshuffle": "detshuffle",
    "mpwds.pipeline.stages.extract_keys": "extract_keys",
    "mpwds.pipeline.stages.fields": "getfirst parse_field_spec",
    "mpwds.pipeline.stages.flatmap": "flatmap",
    "mpwds.pipeline.stages.info": "info",
    "mpwds.pipeline.stages.listed": "listed",
    "mpwds.pipeline.stages.log_keys": "log_keys",
    "mpwds.pipeline.stages.map": "map",
    "mpwds.pipeline.stages.map_dict": "map_dict",
    "mpwds.pipeline.stages.map_tuple": "map_tuple transform_with",
    "mpwds.pipeline.stages.pipelinefilter": "PipelineStage pipelinefilter",
    "mpwds.pipeline.stages.rename": "rename",
    "mpwds.pipeline.stages.rename_keys": "rename_keys",
    "mpwds.pipeline.stages.rsample": "rsample",
    "mpwds.pipeline.stages.select": "select",
    "mpwds.pipeline.stages.shuffle": "shuffle",
    "mpwds.pipeline.stages.slice": "slice",
    "mpwds.pipeline.stages.to_tuple": "to_tuple",
    "mpwds.pipeline.stages.unbatched": "unbatched",
    "mpwds.pipeline.stages.unlisted": "unlisted",
    "mpwds.pipeline.stages.xdecode": "xdecode",
    "mpwds.pipeline.webdataset": "WebDataset construct_dataset",
    "mpwds.sharedmem.share": "SharedList share",
    "mpwds.storage.caches.eviction": "LRUCleanup",
    "mpwds.storage.caches.names": "pipe_cleaner",
    "mpwds.storage.caches.shard_cache": "ShardCache",
    "mpwds.storage.streams.gopen": "gopen gopen_schemes",
    "mpwds.storage.streams.secure": "enforce_security",
    "mpwds.storage.streams.urls": "expand_urls",
    "mpwds.storage.writing.tar_writer": "TarWriter",
    "mpwds.storage.writing.writers": "ShardWriter numpy_dumps torch_dumps",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = frozenset(("nest", "tenbin"))
# Named as webdataset names its modules.
_FACES = frozenset(
    (
        "autodecode",
        "cache",
        "compat",
        "extradatasets",
        "filters",
        "handlers",
        "mix",
        "multi",
        "shardlists",
        "tariterators",
        "utils",
        "writer",
    )
)

__all__ = sorted(("__version__", *_HOMES, *_MODULES, *_FACES))


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES or name in _FACES:
        value = importlib.import_module(f"mpwds.{name}")
    elif name == "__version__":
        from importlib.metadata import version

        value = version("mpwds")
    else:
        from mpwds.mistakes import did_you_mean

        similar = "" if name.startswith("_") else did_you_mean(name, __all__)
        raise AttributeError(f"module 'mpwds' has no attribute {name!r}{similar}", name=name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
