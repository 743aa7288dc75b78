"""What pipelines and their parts refuse, at once or while they run, and why."""

import random
from functools import partial

import numpy as np
import pytest

import mpwds
from mpwds import (
    AudioDecoder,
    DataPipeline,
    Decoder,
    IndexedDataset,
    RandomMix,
    RandomResizedCrop,
    ResizeCenterCrop,
    Resized,
    RoundRobin,
    ShardListDataset,
    VideoDecoder,
    WebDataset,
)
from mpwds.extradatasets import MockDataset, ResizedDataset
from mpwds.pipeline.coercion import Generator, PipelineFilter, Splitter
from mpwds.pipeline.indexed.samplers import ChunkedSampler, DistributedChunkedSampler
from mpwds.pipeline.iterable_sources import Iterated
from mpwds.pipeline.quarantine import quarantine
from mpwds.pipeline.rebatch.rebatched import Rebatched
from mpwds.pipeline.sources.specs import MultiShardSample
from mpwds.pipeline.stages.batched import Batched, batched, bucketed
from mpwds.pipeline.stages.decode import decode, xdecode
from mpwds.pipeline.stages.fields import (
    MapDict,
    Rename,
    ToTuple,
    alternatives,
    associate,
    extract_keys,
    getfirst,
    rename,
    rename_keys,
)
from mpwds.pipeline.stages.map import Map, MapTuple
from mpwds.pipeline.stages.resized import resize_center_crop
from mpwds.pipeline.stages.select import Select, rsample, slice
from mpwds.pipeline.stages.shuffle import Shuffle, detshuffle
from mpwds.pipeline.stages.unbatched import Unbatched, Unlisted, flatmap
from mpwds.pipeline.stream import collect
from mpwds.tariterators import tar_file_expander, url_opener

PNGS = [{"a.png": 1, "b.png": 2}]
SEVERAL = "x-{0..2}.tar"
NO_HANDLER = "decode: a handler must be a function .*, got "
NO_INDEX = r"whole number or a slice, got .*; select\(\[...\]\) takes several"


def refused(call, *wrong, why):
    """Rows for a call with several wrong arguments."""
    return [(partial(call, *arguments), why) for arguments in wrong]


REFUSED = {
    ValueError: [
        (lambda: Batched(0), "batched: "),
        (lambda: batched(by=len), "batched: "),
        (lambda: batched(max_total=3), "batched: "),
        (lambda: batched(max_bytes=3, by=len, max_total=3), "batched: "),
        (lambda: batched(max_bytes=3, max_total=3), "batched: "),
        (lambda: batched(max_bytes=3, by=len), "batched: "),
        (lambda: batched(include_padding=True), "batched: "),
        (lambda: batched(max_bytes=0), "batched: "),
        (lambda: batched(by=len, max_total=3, batchsize=0), "batched: "),
        (lambda: bucketed(len, edges=[3, 3]), "bucketed: "),
        (lambda: bucketed(len, edges=[3], batchsize=[1]), "bucketed: "),
        (lambda: bucketed(len, edges=[3], batchsize=0), "bucketed: "),
        (lambda: bucketed(len, edges=[3], include_padding=True), "bucketed: "),
        (lambda: bucketed(len, edges=[3], max_total=0), "bucketed: "),
        (lambda: decode("rgb17"), "rgb17"),
        (lambda: getfirst({"cls": 1}, "png;jpg"), "no field 'png' or 'jpg'; the sample has cls"),
        (lambda: alternatives("png cls"), None),
        (lambda: alternatives(";"), None),
        (lambda: alternatives([]), None),
        (lambda: ToTuple(()), "to_tuple: "),
        (lambda: ToTuple((" ",)), "to_tuple: "),
        (lambda: rename(image="png jpg"), None),
        (lambda: rename(image=""), None),
        (lambda: collect(extract_keys("*.gif;gif"), PNGS), r"no field matches '\*.gif' or 'gif'; the s"),
        (lambda: collect(extract_keys("*.png"), PNGS), r"extract_keys: '\*.png' matches a.png and b.png"),
        (lambda: collect(rename_keys(image="*.gif"), PNGS), r"rename_keys: no field matches '\*.gif'; the s"),
        (lambda: collect(rename_keys(image="*"), PNGS), "two fields get the name 'image'; the sample has"),
        (lambda: MapDict({}), "map_dict: "),
        (lambda: collect(MapTuple((int, int, int)), [("7", "8")]), "3 functions for a sample of 2 fields"),
        (lambda: collect(associate({}), [{"cls": 7}]), "no field '__key__'; the sample has cls"),
        *refused(rsample, (-0.1,), (1.1,), (float("nan"),), why="rsample: p is a probability"),
        *refused(slice, (-1,), (-1, 3), (0, 3, 0), why="slice: .* must be at least"),
        *refused(Shuffle, (0,), (5, 0), why="shuffle: "),
        (lambda: mpwds.shuffle(5, rng=random.Random(1), seed=1), "rng and seed both give the seed"),
        (lambda: mpwds.shuffle(bufsize=10, total=60), "bufsize and total both give the size"),
        (lambda: mpwds.shuffle(total=0), "size must be at least 1|total must be at least 1"),
        *(
            (partial(stage, str, threads=0), "threads must be at least 1, got 0")
            for stage in (mpwds.map, mpwds.decode, mpwds.map_tuple)
        ),
        (lambda: Rebatched(0), "rebatched: batchsize must be at least 1, got 0"),
        (lambda: Rebatched(4, drop_last="no"), "rebatched: drop_last must be True or False, got 'no'"),
        (lambda: Rebatched(4, shuffle=-1), "rebatched: shuffle must be at least 0, got -1"),
        (lambda: Rebatched(4, shuffle=5, initial=0), "rebatched: initial must be at least 1, got 0"),
        (lambda: Resized(0), "resized: a size is one or two integers of at least 1, got 0"),
        (lambda: Resized((1, 2, 3)), "resized: a size is one or two integers"),
        (lambda: ResizeCenterCrop(8, resize="40"), "resize_center_crop: a size is one or two integers"),
        (lambda: Resized((8, 2.5)), "resized: a size is"),
        (lambda: Resized(8, dtype="float64"), "dtype must be 'uint8' or 'float32', got 'float64'"),
        (lambda: Resized(8, layout="NCHW"), "layout must be 'HWC' or 'CHW', got 'NCHW'"),
        (lambda: Resized(8, mean=(0.5, 0.5, 0.5)), "mean needs dtype='float32'"),
        (lambda: Resized(8, "float32", std=(1, 2)), "std must be three numbers"),
        (lambda: Resized(8, "float32", std=(1, 2, 0)), "std must not be 0"),
        (lambda: RandomResizedCrop(8, scale=(0, 1)), "random_resized_crop: scale must be two numbers"),
        (lambda: RandomResizedCrop(8, ratio=(2, 1)), "ratio must be"),
        (lambda: RandomResizedCrop(8, flip=1.5), "flip is a probability, got 1.5"),
        (lambda: ResizeCenterCrop(size=257), "resize_center_crop: the crop, 257, must not be larger"),
        (lambda: list(DataPipeline()), "the pipeline is empty: append a source"),
        (lambda: WebDataset([]), "no shards"),
        (lambda: mpwds.ShardList(()), "no shards"),
        (lambda: mpwds.SimpleShardList(()), "no shards"),
        (lambda: mpwds.ResampledShards([]), "no shards"),
        (lambda: next(iter(mpwds.ResampledShards([], empty_check=False))), "no shards to draw from"),
        (lambda: WebDataset({"datasets": [{"shards": SEVERAL}]}, resampled=True), "cannot be combined with"),
        (lambda: WebDataset(mpwds.SimpleShardList(SEVERAL), resampled=True), "needs the names of shards"),
        (partial(MultiShardSample, {"datasets": [{"shards": "a", "weight": 2}]}), "samples are mixed, not"),
        (lambda: mpwds.Dataset("x.tar", errors="ignore"), "errors must be True, False or 'warn'"),
        (lambda: mpwds.padded(multiple_of=0), None),
        (lambda: AudioDecoder(output="list"), "AudioDecoder: output must be"),
        (lambda: AudioDecoder(dtype="uint8"), "dtype must be one of 'float32', .*, got 'uint8'"),
        (lambda: AudioDecoder(start=-1), "AudioDecoder: start must be at least 0"),
        (lambda: AudioDecoder(duration=0), "AudioDecoder: duration must be more than 0"),
        (lambda: VideoDecoder("list"), "VideoDecoder: output must be"),
        (lambda: VideoDecoder(start=-1), "VideoDecoder: start must be at least 0"),
        (lambda: VideoDecoder(start=float("nan")), "VideoDecoder: start must be at least 0"),
        (lambda: VideoDecoder(start=2, end=2), r"VideoDecoder: end must be after start \(2 s\), got 2"),
        (lambda: VideoDecoder(every=0), "VideoDecoder: every must be at least 1, got 0"),
        (lambda: VideoDecoder(max_frames=0), "VideoDecoder: max_frames must be at least 1"),
        (lambda: VideoDecoder(threads=0), "VideoDecoder: threads must be at least 1"),
        (lambda: Decoder("rgb9"), "unknown image format 'rgb9': the known ones are l8 rgb8"),
        (lambda: DataPipeline([]).decode(max_decompressed_bytes=0), "must be at least 1, got 0"),
        (lambda: DataPipeline("abc").with_epoch(0), "number of elements must be at least 1, got 0"),
        (lambda: DataPipeline("abc").repeat(nbatches=0), "elements must be at least 1, got 0"),
        (lambda: MockDataset("x", -1), "must not be negative"),
        (lambda: RandomMix([]), "at least one dataset"),
        (lambda: RandomMix(["a"], [1, 2]), "1 datasets are mixed, but 2 weights are given"),
        (lambda: RandomMix(["a"], [-1]), "not negative and not all 0"),
        (lambda: RandomMix(["a"], [0]), "not all 0"),
        (lambda: RandomMix(["a"], [float("nan")]), "must be finite"),
        (lambda: RandomMix(["a"], stop="never ever"), "a number of elements or one of 'first_exhausted'"),
        (lambda: RandomMix(["a"], stop=0), "at least 1 element"),
        (lambda: ShardListDataset([]), "there are no shards"),
        *(
            (lambda shard=shard: ShardListDataset([{"url": "x", "nsamples": 0}, shard]), r"shards\[1\] = ")
            for shard in (("x", 3), {"url": "x"}, *({"url": "x", "nsamples": count} for count in (-1, "250")))
        ),
        (lambda: ShardListDataset([{"url": 7, "nsamples": 3}]), r"shards\[0\] = .*7"),
        (lambda: IndexedDataset(range(3), "chunked", chunksize=0), "chunksize must be at least 1, got"),
        (lambda: IndexedDataset(range(3), threads=0), "threads must be at least 1, got 0"),
        *(
            (partial(IndexedDataset, range(3), wrong), "shuffle must be one of 'global', .*, False, got")
            for wrong in ("Global", True, None, 0, 100)
        ),
        (lambda: ChunkedSampler(range(3), chunksize=0), "chunksize must be at least 1, got 0"),
        (lambda: DistributedChunkedSampler(range(3), num_replicas=2, rank=2), "rank must be from 0 to 1"),
        (lambda: DistributedChunkedSampler(range(3), num_replicas=2, rank=-1), "rank must be from 0 to 1"),
        (lambda: IndexedDataset("https://host/x-{0..2}.tar")[0], "give a cache for copies, or remote=True"),
        (lambda: IndexedDataset("train.yaml"), "train.yaml is a specification, which mpwds.WebDataset reads"),
        (lambda: IndexedDataset("./"), "no shards in"),
    ],
    TypeError: [
        (lambda: Batched(2.5), "batched: "),
        (lambda: Batched(2, "stack"), "batched: "),
        (lambda: batched(by=3, max_total=3), "batched: "),
        (lambda: batched(by=len, max_total="3"), "batched: "),
        (lambda: batched(max_bytes=3, batchsize=1.5), "batched: "),
        (lambda: alternatives(3), None),
        (lambda: alternatives([3]), None),
        (lambda: collect(ToTuple(("png",)), [(1, 2)]), "to_tuple needs dict samples, got a tuple"),
        (lambda: IndexedDataset([(1, 2)]).to_tuple("png")[0], "to_tuple needs dict samples, got a tuple"),
        (lambda: ToTuple((3,)), "to_tuple: "),
        (lambda: rename(image=3), None),
        (lambda: collect(Rename({"a": "b"}), [(1, 2)]), "rename needs dict samples, got a tuple"),
        *(
            (lambda made=made: collect(flatmap(lambda _: made), [1]), "must return an iterable of elements")
            for made in ("abc", b"abc", {"a": 1}, 3)
        ),
        (lambda: flatmap(3), "flatmap: expected a function, got 3"),
        (lambda: extract_keys(3), "expected a field name"),
        *refused(rename_keys, ("ab",), (("a", 3),), (("a", "b", "c"),), why="rename_keys: expected a pair"),
        (lambda: Map(3), "map: expected a function, got 3"),
        (lambda: collect(MapDict({"png": len}), [(1, 2)]), "map_dict needs dict samples, got a tuple"),
        (lambda: MapDict({"cls": 3}), "map_dict: "),
        *refused(RandomMix, (WebDataset("a.tar"),), (IndexedDataset("ab"),), why="takes a list of datasets"),
        (lambda: RoundRobin(DataPipeline("ab"), True), "takes a list of datasets"),
        (lambda: collect(resize_center_crop("jpg"), [(b"",)]), "resize_center_crop needs dict samples"),
        (lambda: collect(MapTuple((int,)), [{"cls": 7}]), "map_tuple needs tuple samples, got a dict"),
        (lambda: MapTuple(("png",)), "map_tuple: expected functions or None, got 'png'"),
        (lambda: associate(3), "associate: expected a dict or a function of the key, got 3"),
        (lambda: Select(None), "select: expected a function, got None"),
        *refused(slice, ("a",), (None, 1.5), (), (1, 2, 3, 4), why="slice"),
        *refused(DataPipeline(()).shuffle, ("1000",), (2.5,), why="size must be a whole number, got "),
        *refused(DataPipeline(()).shuffle, (9, "1"), (9, None), (9, 2.5), why="initial must be a whole"),
        (lambda: DataPipeline(range(3)).shuffle(None), r"shuffle\(\) needs size, the elements"),
        (lambda: mpwds.shuffle(total="many"), "total must be a whole number"),
        (lambda: Rebatched(2.5), "rebatched: batchsize must be a whole number, got 2.5"),
        (lambda: Rebatched(4, shuffle=True), "rebatched: shuffle must be a whole number, got True"),
        (lambda: detshuffle(seed="a"), "detshuffle: seed must be a whole number, got 'a'"),
        *refused(partial(collect, Unbatched()), (["abc"],), ([3],), ([np.float64(3)],), why="needs batches"),
        (lambda: collect(Unlisted(), [{"a": [1]}]), "unlisted needs lists of samples, got a dict"),
        *refused(xdecode, ("txt",), (("*.txt", 3),), ((3, len),), why="xdecode: expected a"),
        (lambda: Iterated(iter([1, 2])), "list_iterator can be iterated only once"),
        (lambda: Iterated(3), r"a pipeline begins at .* got a int"),
        (lambda: DataPipeline(3), "a pipeline begins at"),
        (lambda: DataPipeline({}), "a dict cannot be the source of a pipeline: write mpwds.W"),
        (lambda: DataPipeline([1], DataPipeline([2])), "it can only be the first part"),
        (lambda: WebDataset(3), "shards are given as a string or an iterable"),
        (lambda: mpwds.tarfile_to_samples(select_files="png"), "select_files must be a function of a name"),
        (lambda: mpwds.Dataset("x.tar", colour=True), "colour"),
        (lambda: list(url_opener([1])), "a shard must be"),
        (lambda: list(tar_file_expander([{"url": "x.tar"}])), "put url_opener before it"),
        (lambda: DataPipeline([], seed="7"), "a dataset's seed must be a whole number"),
        (lambda: DataPipeline([], seed=1.5), "a dataset's seed must be a whole number"),
        (lambda: DataPipeline([], 3), "a stage is"),
        (lambda: WebDataset("x.tar", nodesplitter=3), "a splitter must be a function that takes"),
        (lambda: Generator(3), "a stage is an object with a method stream"),
        (lambda: PipelineFilter(3), "pipelinefilter: expected a function of a source, got 3"),
        (lambda: list(Splitter(lambda urls: iter([1]))(["x.tar"])), "a shard must be"),
        (lambda: mpwds.Processor(Shuffle(10), 3), r"shuffle\(10\) is a stage already"),
        (lambda: mpwds.Processor([1, 2], "x"), "a stage or a generator function of an iterator, got 'x'"),
        (lambda: mpwds.padded(multiple_of=1.5), None),
        (lambda: mpwds.padded(axes="a"), None),
        (lambda: mpwds.padded({"x": 0})([{"x": [1]}] * 2), "arrays or tensors in field 'x', got a list"),
        *refused(Decoder, (7,), ("rgb8", None), (["rgb8"], "rgb8"), (("jpg",),), why=NO_HANDLER),
        *refused(
            Decoder, (("jpg", 7),), ((len, "jpg"),), (("jpg", len, len),), (("jpg", "txt"),), why=NO_HANDLER
        ),
        *refused(DataPipeline("").with_epoch, (1.5,), ("3",), (None,), why="with_epoch: nsamples must be"),
        (lambda: DataPipeline("").with_epoch(nbatches=1.5), "nbatches must be a whole number, got 1.5"),
        (lambda: DataPipeline("").repeat("3"), "repeat: nepochs must be a whole number, got '3'"),
        (lambda: DataPipeline("").with_length(None), "with_length: n must be a whole number, got None"),
        *(
            (partial(DataPipeline([]).decode, max_decompressed_bytes=limit), "must be a whole number")
            for limit in (None, 1e9, "1GB")
        ),
        (lambda: ResizedDataset(DataPipeline("abc")), None),
        (lambda: RoundRobin([3]), "a pipeline begins at"),
        (
            partial(ShardListDataset, [{"url": "x", "nsamples": 1}], transformations="pil"),
            r'"numpy" or .*pil',
        ),
        *refused(IndexedDataset(range(4)).__getitem__, ("3",), (1.0,), (None,), ([1, 2],), why=NO_INDEX),
        (
            lambda: IndexedDataset(WebDataset(SEVERAL).shuffle(9)),
            r"shuffle\(9\) does not make one .*=\"global",
        ),
        (lambda: IndexedDataset(WebDataset(SEVERAL, select_files=str.isascii)), "without select_files and"),
        (lambda: IndexedDataset(WebDataset(SEVERAL, resampled=True)), "of ResampledShards.* have no numbers"),
        (lambda: IndexedDataset(DataPipeline([3]).repeat(2)), r"call repeat\(2\) after it"),
        (lambda: IndexedDataset({"datasets": []}), "elements of a dict have no numbers"),
        (lambda: IndexedDataset(n for n in range(3)), "elements of a generator have no numbers"),
    ],
    KeyError: [
        (lambda: collect(MapDict({"png": len}), [{"jpg": b""}]), "no field 'png'; the sample has jpg"),
    ],
    FileNotFoundError: [
        (lambda: quarantine("missing/bad.jsonl"), None),
        (lambda: IndexedDataset("x.tar")[0], "x.tar"),
    ],
}
# Rows of one shape that are refused with several errors.
WITH_THEIR_ERRORS = [
    *((partial(quarantine, "bad", budget), ValueError, "quarantine: ") for budget in (-1, 0.0, 1.5)),
    *((partial(quarantine, "bad", budget), TypeError, "quarantine: ") for budget in ("3", True)),
    *(
        (partial(IndexedDataset(range(4)).select, wrong), error, message)
        for wrong, error, message in (
            ([0, 4], IndexError, "no sample 4 among 4 samples"),
            ([-5], IndexError, "no sample -5"),
            ([True], IndexError, "a mask of 1 booleans for 4 samples"),
            ([0.5], TypeError, "select takes indices"),
            (["a"], TypeError, "select takes indices"),
            ([[0]], TypeError, "select takes indices"),
        )
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [*WITH_THEIR_ERRORS, *((call, error, message) for error in REFUSED for call, message in REFUSED[error])],
)
def test_what_makes_no_sense_is_refused_with_a_reason(tmp_path, monkeypatch, call, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        call()
