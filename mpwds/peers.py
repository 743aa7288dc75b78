"""The modules of webdataset, wids, tensorcom and mosaicml-streaming under their names: ``mpwds.filters``, ...

Each is an object in ``sys.modules`` that finds a name where that is defined, when a program asks for it. So
``import mpwds`` imports none of them, and no import is intercepted. ``tools/stubs.py`` writes ``filters.pyi``
and so on for type checkers. ``gopen.py`` is a file, because ``mpwds.gopen`` is also the function.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from mpwds.names import HOMES

_CODECS = "mpwds.storage.writing.encoders"
_DECODERS = "mpwds.pipeline.decoding"
_HELPERS = "mpwds.compat.helpers"
_STREAMING = "mpwds.compat.streaming"

# The names of each module. `home:name,name` are names that `mpwds` itself lacks, or means in another way.
PEERS = {
    "autodecode": f"""
        AUDIO_EXTENSIONS Continue Decoder DecodingError IMAGE_EXTENSIONS ImageHandler VIDEO_EXTENSIONS
        basichandlers gzfilter handle_extension imagehandler pytorch_weights_only torch_audio torch_loads
        torch_video {_DECODERS}.decoders:decoders {_DECODERS}.images:imagespecs
        {_DECODERS}.loads:cbor_loads,msgpack_loads,npy_loads,npz_loads,unpickle_loads
        mpwds.compat.sample_options:default_handlers""",
    "cache": """
        FileCache LRUCleanup StreamingOpen pipe_cleaner mpwds.storage.caches.directory:url_to_cache_name
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
        {_STREAMING}.dataloader:StreamingDataLoader {_STREAMING}.dataset:LocalDataset,StreamingDataset
        {_STREAMING}.writing:MDSWriter {_STREAMING}.stream:Stream""",
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
        mpwds.compat.wids:default_localname mpwds.pipeline.indexed.field_streams:default_decoder
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
    "streaming.base.stream": f"{_STREAMING}.stream:Stream",
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


def stub(module: str) -> str:
    """The file that tells type checkers the names of a module."""
    lines = sorted(f"from {home} import {name} as {name}\n" for name, home in homes_of(module).items())
    return "".join(lines) + ("\nenforce_security: bool\n" if module == "utils" else "")


def install() -> None:
    """Puts the modules into ``sys.modules``."""
    kinds = {"filters": _Filters, "utils": _Utils}
    for module in PEERS:
        peer = kinds.get(module, PeerModule)(module)
        sys.modules.setdefault(peer.__name__, peer)
