"""The public names: `tools/stubs.py` writes this file from `names.py`, which finds them."""

from mpwds import autodecode as autodecode
from mpwds import cache as cache
from mpwds import checks as checks
from mpwds import cluster as cluster
from mpwds import compat as compat
from mpwds import dataset as dataset
from mpwds import extradatasets as extradatasets
from mpwds import filters as filters
from mpwds import handlers as handlers
from mpwds import mix as mix
from mpwds import multi as multi
from mpwds import nest as nest
from mpwds import shardlists as shardlists
from mpwds import streaming as streaming
from mpwds import tariterators as tariterators
from mpwds import tenbin as tenbin
from mpwds import tensorcom as tensorcom
from mpwds import utils as utils
from mpwds import wids as wids
from mpwds import writer as writer
from mpwds.compat import FluidInterface as FluidInterface
from mpwds.compat import FluidWrapper as FluidWrapper
from mpwds.compat.dataset import Dataset as Dataset
from mpwds.compat.dataset import Processor as Processor
from mpwds.compat.dataset import all_urls as all_urls
from mpwds.compat.dataset import worker_urls as worker_urls
from mpwds.compat.helpers import ChoppedDataset as ChoppedDataset
from mpwds.compat.helpers import MockDataset as MockDataset
from mpwds.compat.helpers import ResizedDataset as ResizedDataset
from mpwds.compat.helpers import repeatedly as repeatedly
from mpwds.compat.helpers import with_epoch as with_epoch
from mpwds.compat.helpers import with_length as with_length
from mpwds.compat.multi import MultiDataset as MultiDataset
from mpwds.compat.multi import MultiDatasetIterator as MultiDatasetIterator
from mpwds.compat.sample_options import Decoder as Decoder
from mpwds.compat.tar_stages import FileCache as FileCache
from mpwds.compat.tar_stages import LRUCleanup as LRUCleanup
from mpwds.compat.tar_stages import StreamingOpen as StreamingOpen
from mpwds.compat.tar_stages import base_plus_ext as base_plus_ext
from mpwds.compat.tar_stages import group_by_keys as group_by_keys
from mpwds.compat.tar_stages import pipe_cleaner as pipe_cleaner
from mpwds.compat.tar_stages import tar_file_expander as tar_file_expander
from mpwds.compat.tar_stages import tar_file_iterator as tar_file_iterator
from mpwds.compat.tar_stages import url_opener as url_opener
from mpwds.compat.tar_stages import valid_sample as valid_sample
from mpwds.compat.tensorcom.feeding import TensorcomDataset as TensorcomDataset
from mpwds.compat.tensorcom.zcom import Connection as Connection
from mpwds.errors import DecodeError as DecodeError
from mpwds.errors import EnvelopeError as EnvelopeError
from mpwds.errors import EvenEpochError as EvenEpochError
from mpwds.errors import MpwdsError as MpwdsError
from mpwds.errors import QuarantineFull as QuarantineFull
from mpwds.errors import SecurityError as SecurityError
from mpwds.errors import ServerLost as ServerLost
from mpwds.errors import ShardError as ShardError
from mpwds.errors import SharedMemoryError as SharedMemoryError
from mpwds.errors import SharedRandomError as SharedRandomError
from mpwds.errors import SpecError as SpecError
from mpwds.errors import StreamError as StreamError
from mpwds.errors import StreamNotFound as StreamNotFound
from mpwds.errors import TenbinError as TenbinError
from mpwds.errors import WorkerDied as WorkerDied
from mpwds.errors import WorkerTimeout as WorkerTimeout
from mpwds.errors import WorkerTraceback as WorkerTraceback
from mpwds.feed.client.remote_loader import RemoteLoader as RemoteLoader
from mpwds.feed.metrics import serve_metrics as serve_metrics
from mpwds.feed.server.server import Server as Server
from mpwds.loader.dataloader.data_loader import DataLoader as DataLoader
from mpwds.loader.dataloader.data_loader import use_in_accelerate as use_in_accelerate
from mpwds.loader.dataloader.web_loader import WebLoader as WebLoader
from mpwds.loader.multi_loader import MultiLoader as MultiLoader
from mpwds.loader.resume.streams import merge_states as merge_states
from mpwds.pipeline.caching.cached import Cached as Cached
from mpwds.pipeline.caching.cached import DBCache as DBCache
from mpwds.pipeline.caching.cached import LMDBCached as LMDBCached
from mpwds.pipeline.caching.cached import lmdb_cached as lmdb_cached
from mpwds.pipeline.caching.cached import mcached as mcached
from mpwds.pipeline.coercion import PipelineStage as PipelineStage
from mpwds.pipeline.coercion import pipelinefilter as pipelinefilter
from mpwds.pipeline.dataset import DataPipeline as DataPipeline
from mpwds.pipeline.decoding.audio import AudioDecoder as AudioDecoder
from mpwds.pipeline.decoding.audio import torch_audio as torch_audio
from mpwds.pipeline.decoding.decoders import Continue as Continue
from mpwds.pipeline.decoding.decoders import DecodingError as DecodingError
from mpwds.pipeline.decoding.decoders import basichandlers as basichandlers
from mpwds.pipeline.decoding.decoders import gzfilter as gzfilter
from mpwds.pipeline.decoding.decoders import handle_extension as handle_extension
from mpwds.pipeline.decoding.fields import AUDIO_EXTENSIONS as AUDIO_EXTENSIONS
from mpwds.pipeline.decoding.fields import IMAGE_EXTENSIONS as IMAGE_EXTENSIONS
from mpwds.pipeline.decoding.fields import VIDEO_EXTENSIONS as VIDEO_EXTENSIONS
from mpwds.pipeline.decoding.fields import pytorch_weights_only as pytorch_weights_only
from mpwds.pipeline.decoding.fields import torch_loads as torch_loads
from mpwds.pipeline.decoding.images import ImageHandler as ImageHandler
from mpwds.pipeline.decoding.images import imagehandler as imagehandler
from mpwds.pipeline.decoding.resizing import RandomResizedCrop as RandomResizedCrop
from mpwds.pipeline.decoding.resizing import ResizeCenterCrop as ResizeCenterCrop
from mpwds.pipeline.decoding.resizing import Resized as Resized
from mpwds.pipeline.decoding.video import VideoDecoder as VideoDecoder
from mpwds.pipeline.decoding.video import torch_video as torch_video
from mpwds.pipeline.error_context import Incident as Incident
from mpwds.pipeline.handlers import ignore_and_continue as ignore_and_continue
from mpwds.pipeline.handlers import ignore_and_stop as ignore_and_stop
from mpwds.pipeline.handlers import reraise_exception as reraise_exception
from mpwds.pipeline.handlers import warn_and_continue as warn_and_continue
from mpwds.pipeline.handlers import warn_and_stop as warn_and_stop
from mpwds.pipeline.indexed.dataset import IndexedDataset as IndexedDataset
from mpwds.pipeline.indexed.mds_datasets import MDSDataset as MDSDataset
from mpwds.pipeline.indexed.mds_datasets import StreamingDataset as StreamingDataset
from mpwds.pipeline.indexed.samplers import ChunkedSampler as ChunkedSampler
from mpwds.pipeline.indexed.samplers import DistributedChunkedSampler as DistributedChunkedSampler
from mpwds.pipeline.indexed.samplers import ShardListSampler as ShardListSampler
from mpwds.pipeline.indexed.shard_list import ShardListDataset as ShardListDataset
from mpwds.pipeline.quarantine import quarantine as quarantine
from mpwds.pipeline.sources.directory_shards import DirectoryShardList as DirectoryShardList
from mpwds.pipeline.sources.mix import RandomMix as RandomMix
from mpwds.pipeline.sources.mix import RoundRobin as RoundRobin
from mpwds.pipeline.sources.samples import cbors2_to_samples as cbors2_to_samples
from mpwds.pipeline.sources.samples import cbors_to_samples as cbors_to_samples
from mpwds.pipeline.sources.samples import msgpacks_to_samples as msgpacks_to_samples
from mpwds.pipeline.sources.samples import tarfile_samples as tarfile_samples
from mpwds.pipeline.sources.samples import tarfile_to_samples as tarfile_to_samples
from mpwds.pipeline.sources.shards import ResampledShardList as ResampledShardList
from mpwds.pipeline.sources.shards import ResampledShards as ResampledShards
from mpwds.pipeline.sources.shards import ShardList as ShardList
from mpwds.pipeline.sources.shards import SimpleShardList as SimpleShardList
from mpwds.pipeline.sources.shards import non_empty as non_empty
from mpwds.pipeline.sources.shards import resampled as resampled
from mpwds.pipeline.sources.shards import single_node_only as single_node_only
from mpwds.pipeline.sources.shards import split_by_node as split_by_node
from mpwds.pipeline.sources.shards import split_by_worker as split_by_worker
from mpwds.pipeline.sources.specs import MultiShardSample as MultiShardSample
from mpwds.pipeline.sources.specs import load_spec as load_spec
from mpwds.pipeline.sources.specs import shardspec as shardspec
from mpwds.pipeline.sources.webdataset import WebDataset as WebDataset
from mpwds.pipeline.sources.webdataset import construct_dataset as construct_dataset
from mpwds.pipeline.stages.batched import batch as batch
from mpwds.pipeline.stages.batched import batched as batched
from mpwds.pipeline.stages.batched import bucketed as bucketed
from mpwds.pipeline.stages.batched import listed as listed
from mpwds.pipeline.stages.collation import default_collation_fn as default_collation_fn
from mpwds.pipeline.stages.collation import padded as padded
from mpwds.pipeline.stages.decode import decode as decode
from mpwds.pipeline.stages.decode import xdecode as xdecode
from mpwds.pipeline.stages.fields import associate as associate
from mpwds.pipeline.stages.fields import extract_keys as extract_keys
from mpwds.pipeline.stages.fields import getfirst as getfirst
from mpwds.pipeline.stages.fields import map_dict as map_dict
from mpwds.pipeline.stages.fields import parse_field_spec as parse_field_spec
from mpwds.pipeline.stages.fields import rename as rename
from mpwds.pipeline.stages.fields import rename_keys as rename_keys
from mpwds.pipeline.stages.fields import to_tuple as to_tuple
from mpwds.pipeline.stages.info import info as info
from mpwds.pipeline.stages.info import log_keys as log_keys
from mpwds.pipeline.stages.map import map as map
from mpwds.pipeline.stages.map import map_tuple as map_tuple
from mpwds.pipeline.stages.map import transform_with as transform_with
from mpwds.pipeline.stages.resized import random_resized_crop as random_resized_crop
from mpwds.pipeline.stages.resized import resize_center_crop as resize_center_crop
from mpwds.pipeline.stages.resized import resized as resized
from mpwds.pipeline.stages.select import rsample as rsample
from mpwds.pipeline.stages.select import select as select
from mpwds.pipeline.stages.select import slice as slice
from mpwds.pipeline.stages.shuffle import detshuffle as detshuffle
from mpwds.pipeline.stages.shuffle import shuffle as shuffle
from mpwds.pipeline.stages.unbatched import flatmap as flatmap
from mpwds.pipeline.stages.unbatched import unbatched as unbatched
from mpwds.pipeline.stages.unbatched import unlisted as unlisted
from mpwds.pipeline.stream import Count as Count
from mpwds.pipeline.stream import Source as Source
from mpwds.pipeline.stream import WrappedStream as WrappedStream
from mpwds.pipeline.stream import as_address as as_address
from mpwds.pipeline.stream import fetch_held as fetch_held
from mpwds.sharedmem.share import SharedList as SharedList
from mpwds.sharedmem.share import share as share
from mpwds.stats.measures import StageStats as StageStats
from mpwds.stats.measures import WorkerStats as WorkerStats
from mpwds.stats.report import LoaderStats as LoaderStats
from mpwds.storage.caches.shard_cache import ShardCache as ShardCache
from mpwds.storage.mds.writers import MDSWriter as MDSWriter
from mpwds.storage.mds.writers import StreamingDatasetWriter as StreamingDatasetWriter
from mpwds.storage.streams.gopen import gopen as gopen
from mpwds.storage.streams.gopen import gopen_schemes as gopen_schemes
from mpwds.storage.streams.patterns import expand_urls as expand_urls
from mpwds.storage.streams.urls import enforce_security as enforce_security
from mpwds.storage.writing.encoders import numpy_dumps as numpy_dumps
from mpwds.storage.writing.encoders import torch_dumps as torch_dumps
from mpwds.storage.writing.tar_writer import ShardWriter as ShardWriter
from mpwds.storage.writing.tar_writer import TarWriter as TarWriter

__all__ = [
    "DataLoader",
    "DataPipeline",
    "DecodeError",
    "DirectoryShardList",
    "IndexedDataset",
    "LoaderStats",
    "MpwdsError",
    "MultiLoader",
    "RandomMix",
    "RemoteLoader",
    "ResampledShards",
    "RoundRobin",
    "Server",
    "ServerLost",
    "ShardCache",
    "ShardError",
    "ShardList",
    "ShardWriter",
    "TarWriter",
    "WebDataset",
    "WebLoader",
    "WorkerDied",
    "WorkerTimeout",
    "__version__",
    "gopen",
    "handle_extension",
    "ignore_and_continue",
    "load_spec",
    "nest",
    "padded",
    "quarantine",
    "reraise_exception",
    "serve_metrics",
    "share",
    "split_by_node",
    "split_by_worker",
    "tenbin",
    "use_in_accelerate",
    "warn_and_continue",
]

__version__: str
