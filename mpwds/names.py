"""Finds public names, and those of peers' modules, where they are defined; imports them when they are used.

Type checkers read ``__init__.pyi``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
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
    "mpwds.pipeline.stages.collation": "padded",
    "mpwds.pipeline.dataset": "DataPipeline",
    "mpwds.pipeline.decoding.decoders": "handle_extension",
    "mpwds.pipeline.handlers": "ignore_and_continue reraise_exception warn_and_continue",
    "mpwds.pipeline.indexed.dataset": "IndexedDataset",
    "mpwds.pipeline.sources.mix": "RandomMix RoundRobin",
    "mpwds.pipeline.quarantine": "quarantine",
    "mpwds.pipeline.sources.directory_shards": "DirectoryShardList",
    "mpwds.pipeline.sources.shards": "ResampledShards ShardList split_by_node split_by_worker",
    "mpwds.pipeline.sources.specs": "load_spec",
    "mpwds.pipeline.sources.webdataset": "WebDataset",
    "mpwds.sharedmem.share": "share",
    "mpwds.storage.caches.shard_cache": "ShardCache",
    "mpwds.storage.streams.gopen": "gopen",
    "mpwds.storage.writing.tar_writer": "ShardWriter TarWriter",
}

# webdataset's further names, stages as functions, and classes that programs seldom name:
# docs/coming-from/webdataset.md and docs/coming-from/tensorcom.md list most of them.
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
        "EnvelopeError EvenEpochError QuarantineFull SecurityError SharedMemoryError SharedRandomError "
        "SpecError StreamError StreamNotFound TenbinError WorkerTraceback"
    ),
    "mpwds.stats.measures": "StageStats WorkerStats",
    "mpwds.loader.resume.streams": "merge_states",
    "mpwds.pipeline.caching.cached": "Cached DBCache LMDBCached lmdb_cached mcached",
    "mpwds.pipeline.stages.collation": "default_collation_fn",
    "mpwds.pipeline.decoding.audio": "AudioDecoder torch_audio",
    "mpwds.pipeline.decoding.decoders": "Continue DecodingError basichandlers gzfilter",
    "mpwds.pipeline.decoding.fields": (
        "AUDIO_EXTENSIONS IMAGE_EXTENSIONS VIDEO_EXTENSIONS pytorch_weights_only torch_loads"
    ),
    "mpwds.pipeline.decoding.images": "ImageHandler imagehandler",
    "mpwds.pipeline.decoding.resizing": "RandomResizedCrop ResizeCenterCrop Resized",
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
    "mpwds.pipeline.sources.shards": (
        "ResampledShardList SimpleShardList non_empty resampled single_node_only"
    ),
    "mpwds.pipeline.sources.specs": "MultiShardSample shardspec",
    "mpwds.pipeline.stages.batched": "batch batched bucketed listed",
    "mpwds.pipeline.stages.decode": "decode xdecode",
    "mpwds.pipeline.stages.fields": (
        "associate extract_keys getfirst map_dict parse_field_spec rename rename_keys to_tuple"
    ),
    "mpwds.pipeline.stages.info": "info log_keys",
    "mpwds.pipeline.stages.map": "map map_tuple transform_with",
    "mpwds.pipeline.stages.resized": "random_resized_crop resize_center_crop resized",
    "mpwds.pipeline.stages.select": "rsample select slice",
    "mpwds.pipeline.stages.shuffle": "detshuffle shuffle",
    "mpwds.pipeline.stages.unbatched": "flatmap unbatched unlisted",
    "mpwds.pipeline.sources.webdataset": "construct_dataset",
    "mpwds.pipeline.stream": "Count Source WrappedStream as_address fetch_held",
    "mpwds.sharedmem.share": "SharedList",
    "mpwds.storage.mds.writers": "MDSWriter StreamingDatasetWriter",
    "mpwds.storage.streams.gopen": "gopen_schemes",
    "mpwds.storage.streams.patterns": "expand_urls",
    "mpwds.storage.streams.urls": "enforce_security",
    "mpwds.storage.writing.encoders": "numpy_dumps torch_dumps",
}

HOMES = {name: home for names in (NAMES, FURTHER_NAMES) for home in names for name in names[home].split()}


# Functions of higher rooms for lower ones.
SERVICES = {
    "workers_of_servers": "mpwds.feed.client.remote_loader",
    "servers_in_ray": "mpwds.cluster.fleet",
}


def service(name: str) -> Any:
    """The function of a higher room that a lower one needs because a user asked for it."""
    return getattr(importlib.import_module(SERVICES[name]), name)


def find(name: str) -> Any:
    """The value of ``mpwds.<name>``; raises ``AttributeError`` if there is no such name."""
    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    if name in (*MODULES, "cluster", "compat") or f"mpwds.{name}" in sys.modules:
        return importlib.import_module(f"mpwds.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("mpwds")
    from mpwds.suggestions import did_you_mean

    similar = "" if name.startswith("_") else did_you_mean(name, HOMES)
    raise AttributeError(f"module 'mpwds' has no attribute {name!r}{similar}", name=name)


_CODECS = "mpwds.storage.writing.encoders"
_DECODERS = "mpwds.pipeline.decoding"
_HELPERS = "mpwds.compat.helpers"
_STREAMING = "mpwds.compat.streaming"

# Modules of webdataset, wids, tensorcom and mosaicml-streaming under their names: `mpwds.filters`, ...
# Each is an object in `sys.modules` that finds a name where it is defined, when a program asks for it. So
# `import mpwds` imports none of them, and no import is intercepted. `tools/stubs.py` writes `filters.pyi`
# and so on for type checkers. `gopen.py` is a file, because `mpwds.gopen` is also the function.
#
# `home:name,name` are names that `mpwds` itself lacks, or means in another way.
PEERS = {
    "autodecode": f"""
        AUDIO_EXTENSIONS Continue Decoder DecodingError IMAGE_EXTENSIONS ImageHandler VIDEO_EXTENSIONS
        basichandlers gzfilter handle_extension imagehandler pytorch_weights_only torch_audio torch_loads
        torch_video {_DECODERS}.decoders:decoders {_DECODERS}.images:imagespecs
        {_DECODERS}.fields:cbor_loads,msgpack_loads,npy_loads,npz_loads,unpickle_loads
        mpwds.compat.sample_options:default_handlers""",
    "cache": """
        FileCache LRUCleanup StreamingOpen pipe_cleaner mpwds.storage.streams.urls:url_to_cache_name
        mpwds.storage.tar.entries:check_tar_format""",
    "checks": f"{_HELPERS}:check,checkcallable,checkmember,checknotnone,checkrange,checktype",
    "dataset": """
        ChoppedDataset Dataset Processor ResizedDataset ShardList WebDataset all_urls base_plus_ext
        group_by_keys ignore_and_continue ignore_and_stop imagehandler reraise_exception split_by_worker
        valid_sample warn_and_continue warn_and_stop worker_urls mpwds.compat.dataset:UrlHook
        mpwds.compat.sample_options:default_handlers""",
    "extradatasets": f"""
        ChoppedDataset MockDataset ResizedDataset repeatedly with_epoch with_length
        {_HELPERS}:guess_batchsize""",
    "filters": f"""
        Cached LMDBCached associate batched decode default_collation_fn detshuffle extract_keys getfirst info
        listed log_keys map map_dict map_tuple parse_field_spec pipelinefilter rename rename_keys
        reraise_exception rsample select shuffle slice to_tuple transform_with unbatched unlisted xdecode
        {_HELPERS}:identity
        mpwds.pipeline.stages.decode:decode_bin,decode_pickle,decode_text,default_decoders""",
    "handlers": "ignore_and_continue ignore_and_stop reraise_exception warn_and_continue warn_and_stop",
    "mix": "RandomMix RoundRobin",
    "multi": """
        MultiDataset MultiDatasetIterator MultiLoader
        mpwds.compat.multi:D,copy_and_delete_tensors,maybe_copy,omp_warning,timeout,verbose""",
    "shardlists": """
        DirectoryShardList MultiShardSample ResampledShardList ResampledShards SimpleShardList expand_urls
        non_empty resampled shardspec single_node_only split_by_node split_by_worker""",
    "streaming": f"""
        {_STREAMING}.dataloader:StreamingDataLoader {_STREAMING}.dataset:LocalDataset,Stream,StreamingDataset
        {_STREAMING}.writing:MDSWriter""",
    "tariterators": """
        base_plus_ext group_by_keys tar_file_expander tar_file_iterator tarfile_samples tarfile_to_samples
        url_opener valid_sample""",
    "tensorcom": "Connection TensorcomDataset mpwds:tenbin mpwds.compat.tensorcom.feeding:send_batches",
    "utils": f"""
        PipelineStage repeatedly {_HELPERS}:identity
        mpwds.pipeline.context:pytorch_worker_info,pytorch_worker_seed""",
    "wids": """
        ChunkedSampler DistributedChunkedSampler ShardListDataset ShardListSampler
        mpwds.compat.wids:IndexedTarSamples,cache_localname,compute_file_md5sum,compute_num_samples
        mpwds.compat.wids:default_localname mpwds.pipeline.indexed.shard_list:default_decoder
        mpwds.pipeline.indexed.samplers:ShardedSampler""",
    "writer": f"""
        ShardWriter TarWriter numpy_dumps torch_dumps {_CODECS}:cbor_dumps,default_handlers,imageencoder
        {_CODECS}:encode_based_on_extension,make_encoder,make_handlers,mp_dumps,numpy_npz_dumps,tenbin_dumps""",
}
PEERS |= {
    "streaming.base": PEERS["streaming"],
    "streaming.base.dataloader": f"{_STREAMING}.dataloader:StreamingDataLoader",
    "streaming.base.dataset": f"{_STREAMING}.dataset:LocalDataset,StreamingDataset",
    "streaming.base.format": f"{_STREAMING}.writing:MDSWriter",
    "streaming.base.format.mds": f"{_STREAMING}.writing:MDSWriter",
    "streaming.base.format.mds.encodings": (
        f"{_STREAMING}.writing:Encoding,_encodings,get_mds_encoded_size,mds_decode,mds_encode"
    ),
    "streaming.base.format.mds.writer": f"{_STREAMING}.writing:MDSWriter",
    "streaming.base.stream": f"{_STREAMING}.dataset:Stream",
    "streaming.base.util": f"{_STREAMING}.writing:clean_stale_shared_memory,get_list_arg,merge_index",
    "tensorcom.zcom": """
        Connection mpwds.compat.tensorcom.zcom:schemes
        mpwds.compat.tensorcom.conversion:Statistics,converter_table,listify,tonumpy,totorch,transform_with""",
    "wids.wids": PEERS["wids"],
}
_WRITERS = ("CSVWriter", "JSONWriter", "TSVWriter", "XSVWriter")  # of streaming


def homes_of(module: str) -> dict[str, str]:
    """The module in which each name of a peer's module is defined."""
    homes: dict[str, str] = {}
    for word in PEERS[module].split():
        home, colon, names = word.rpartition(":")
        homes |= {name: home if colon else HOMES[name] for name in names.split(",")}
    return homes


class PeerModule(ModuleType):
    """A module whose names are defined elsewhere."""

    def __init__(self, module: str) -> None:
        super().__init__(f"mpwds.{module}", f"The names of the module {module} that programs use.")
        self.__spec__ = ModuleSpec(self.__name__, None)
        self._homes = homes_of(module)
        self.__all__ = [name for name in self._homes if not name.startswith("_")]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and name in self._homes:
            return getattr(importlib.import_module(self._homes[name]), name)
        if (inner := f"{self.__name__}.{name}") in sys.modules:
            return sys.modules[inner]
        why = ": of its formats there is only MDS here" if name in _WRITERS else ""
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{why}", name=name)

    def __dir__(self) -> list[str]:
        return self.__all__

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        return importlib.import_module, (self.__name__,)


class _Filters(PeerModule):
    def __getattr__(self, name: str) -> Any:
        """``_batched(source, 2)`` is ``batched(2)(source)``: programs import such names from webdataset."""
        if not name.startswith("_") or name[1:] not in self.__all__:
            return super().__getattr__(name)
        make = super().__getattr__(name[1:])
        return lambda source, *args, **keywords: make(*args, **keywords)(source)


class _Utils(PeerModule):
    @property
    def enforce_security(self) -> bool:
        """True in secure mode; a program can set it."""
        from mpwds.storage.streams.urls import security_enforced

        return security_enforced()

    @enforce_security.setter
    def enforce_security(self, on: bool) -> None:
        from mpwds.storage.streams.urls import enforce_security

        enforce_security(on)


def install() -> None:
    """Puts the modules into ``sys.modules``."""
    kinds = {"filters": _Filters, "utils": _Utils}
    for module in PEERS:
        peer = kinds.get(module, PeerModule)(module)
        sys.modules.setdefault(peer.__name__, peer)
