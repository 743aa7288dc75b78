"""What pipelines and their parts refuse, at once or while they run, and why."""

import numpy as np
import pytest

import mpwds
from mpwds import (
    AudioDecoder,
    DataPipeline,
    Decoder,
    IndexedDataset,
    RandomMix,
    RoundRobin,
    ShardListDataset,
    VideoDecoder,
    WebDataset,
)
from mpwds.extradatasets import MockDataset, ResizedDataset
from mpwds.pipeline.coercion import Generator, PipelineFilter
from mpwds.pipeline.iterable_sources import Iterated
from mpwds.pipeline.quarantine import quarantine
from mpwds.pipeline.sources.specs import MultiShardSample
from mpwds.pipeline.splitting import Splitter
from mpwds.pipeline.stages.batched import Batched, batched, bucketed
from mpwds.pipeline.stages.decode import Decode, xdecode
from mpwds.pipeline.stages.fields import (
    Rename,
    ToTuple,
    alternatives,
    extract_keys,
    getfirst,
    rename,
    rename_keys,
)
from mpwds.pipeline.stages.map import Map, MapDict, MapTuple, associate
from mpwds.pipeline.stages.select import Select, rsample, slice
from mpwds.pipeline.stages.shuffle import Shuffle, detshuffle
from mpwds.pipeline.stages.unbatched import Unbatched, Unlisted, flatmap
from mpwds.pipeline.stream import collect
from mpwds.tariterators import tar_file_expander, url_opener

PNGS = [{"a.png": 1, "b.png": 2}]

REFUSED = [
    # batched
    (lambda: Batched(0), ValueError, "batched: "),
    (lambda: Batched(2.5), TypeError, "batched: "),
    (lambda: Batched(2, "stack"), TypeError, "batched: "),
    # batched_by_size
    (lambda: batched(by=len), ValueError, "batched: "),
    (lambda: batched(max_total=3), ValueError, "batched: "),
    (lambda: batched(max_bytes=3, by=len, max_total=3), ValueError, "batched: "),
    (lambda: batched(include_padding=True), ValueError, "batched: "),
    (lambda: batched(max_bytes=0), ValueError, "batched: "),
    (lambda: batched(by=len, max_total=3, batchsize=0), ValueError, "batched: "),
    (lambda: batched(by=3, max_total=3), TypeError, "batched: "),
    (lambda: batched(by=len, max_total="3"), TypeError, "batched: "),
    (lambda: batched(max_bytes=3, batchsize=1.5), TypeError, "batched: "),
    # bucketed
    (lambda: bucketed(len, edges=[3, 3]), ValueError, "bucketed: "),
    (lambda: bucketed(len, edges=[5, 3]), ValueError, "bucketed: "),
    (lambda: bucketed(len, edges=[3], batchsize=[1]), ValueError, "bucketed: "),
    (lambda: bucketed(len, edges=[3], batchsize=0), ValueError, "bucketed: "),
    (lambda: bucketed(len, edges=[3], include_padding=True), ValueError, "bucketed: "),
    (lambda: bucketed(len, edges=[3], max_total=0), ValueError, "bucketed: "),
    # decode
    (lambda: Decode(("rgb17",)), ValueError, "rgb17"),
    # fields
    (
        lambda: getfirst({"__key__": "a", "cls": 1}, "png;jpg"),
        ValueError,
        "no field 'png' or 'jpg'; the sample has __key__, cls",
    ),
    (lambda: alternatives(3), TypeError, None),
    (lambda: alternatives([3]), TypeError, None),
    (lambda: alternatives("png cls"), ValueError, None),
    (lambda: alternatives(";"), ValueError, None),
    (lambda: alternatives([]), ValueError, None),
    (lambda: collect(ToTuple(("png",)), [(1, 2)]), TypeError, "to_tuple needs dict samples, got a tuple"),
    (lambda: ToTuple(()), ValueError, "to_tuple: "),
    (lambda: ToTuple((" ",)), ValueError, "to_tuple: "),
    (lambda: ToTuple((3,)), TypeError, "to_tuple: "),
    (lambda: rename(image="png jpg"), ValueError, None),
    (lambda: rename(image=""), ValueError, None),
    (lambda: rename(image=3), TypeError, None),
    (lambda: collect(Rename({"a": "b"}), [(1, 2)]), TypeError, "rename needs dict samples, got a tuple"),
    # flatmap
    *(
        (
            lambda made=made: collect(flatmap(lambda element: made), [1]),
            TypeError,
            "flatmap: the function must return an iterable of elements",
        )
        for made in ("abc", b"abc", {"a": 1}, 3)
    ),
    (lambda: flatmap(3), TypeError, "flatmap: expected a function, got 3"),
    # keys
    (
        lambda: collect(extract_keys("*.gif;gif"), PNGS),
        ValueError,
        r"extract_keys: no field matches '\*.gif' or 'gif'; the sample has a.png, b.png",
    ),
    (
        lambda: collect(extract_keys("*.png"), PNGS),
        ValueError,
        r"extract_keys: '\*.png' matches a.png and b.png",
    ),
    (lambda: extract_keys(3), TypeError, "expected a field name"),
    (
        lambda: collect(rename_keys(image="*.gif"), PNGS),
        ValueError,
        r"rename_keys: no field matches '\*.gif'; the sample has a.png, b.png",
    ),
    (
        lambda: collect(rename_keys(image="*"), PNGS),
        ValueError,
        "rename_keys: two fields get the name 'image'; the sample has a.png, b.png",
    ),
    (lambda: rename_keys("ab"), TypeError, "rename_keys: expected a pair of a new name and a pattern"),
    (lambda: rename_keys(("a", 3)), TypeError, "rename_keys: expected a pair of a new name and a pattern"),
    (
        lambda: rename_keys(("a", "b", "c")),
        TypeError,
        "rename_keys: expected a pair of a new name and a pattern",
    ),
    # map
    (lambda: Map(3), TypeError, "map: expected a function, got 3"),
    (
        lambda: collect(MapDict({"png": len}), [{"jpg": b"", "cls": 7}]),
        KeyError,
        "no field 'png'; the sample has jpg, cls",
    ),
    (lambda: collect(MapDict({"png": len}), [(1, 2)]), TypeError, "map_dict needs dict samples, got a tuple"),
    (lambda: MapDict({}), ValueError, "map_dict: "),
    (lambda: MapDict({"cls": 3}), TypeError, "map_dict: "),
    (
        lambda: collect(MapTuple((int, int, int)), [("7", "8")]),
        ValueError,
        "3 functions for a sample of 2 fields",
    ),
    (
        lambda: collect(MapTuple((int,)), [{"cls": 7}]),
        TypeError,
        "map_tuple needs tuple samples, got a dict; put to_tuple",
    ),
    (lambda: MapTuple(("png",)), TypeError, "map_tuple: expected functions or None, got 'png'"),
    (lambda: collect(associate({}), [{"cls": 7}]), ValueError, "no field '__key__'; the sample has cls"),
    (lambda: associate(3), TypeError, "associate: expected a dict or a function of the key, got 3"),
    # select
    (lambda: Select(None), TypeError, "select: expected a function, got None"),
    (lambda: rsample(-0.1), ValueError, "rsample: p is a probability"),
    (lambda: rsample(1.1), ValueError, "rsample: p is a probability"),
    (lambda: rsample(float("nan")), ValueError, "rsample: p is a probability"),
    (lambda: slice("a"), TypeError, "slice"),
    (lambda: slice(None, 1.5), TypeError, "slice"),
    (lambda: slice(), TypeError, "slice"),
    (lambda: slice(1, 2, 3, 4), TypeError, "slice"),
    (lambda: slice(-1), ValueError, "slice: .* must be at least"),
    (lambda: slice(-1, 3), ValueError, "slice: .* must be at least"),
    (lambda: slice(0, 3, 0), ValueError, "slice: .* must be at least"),
    # shuffle
    (lambda: Shuffle(0), ValueError, "shuffle: "),
    (lambda: Shuffle(-3), ValueError, "shuffle: "),
    (lambda: Shuffle(5, 0), ValueError, "shuffle: "),
    *(
        (
            lambda given={"size": 10, name: value}: DataPipeline(range(3)).shuffle(**given),
            TypeError,
            f"shuffle: {name} must be a whole number, got {value!r}",
        )
        for name in ("size", "initial")
        for value in ("1000", None, 2.5)
    ),
    (lambda: detshuffle(seed="a"), TypeError, "detshuffle: seed must be a whole number, got 'a'"),
    # unbatched
    (lambda: collect(Unbatched(), ["abc"]), TypeError, "unbatched needs batches"),
    (lambda: collect(Unbatched(), [3]), TypeError, "unbatched needs batches"),
    (lambda: collect(Unbatched(), [np.float64(3)]), TypeError, "unbatched needs batches"),
    (lambda: collect(Unlisted(), [{"a": [1]}]), TypeError, "unlisted needs lists of samples, got a dict"),
    # xdecode
    (lambda: xdecode("txt"), TypeError, "xdecode: expected a"),
    (lambda: xdecode(("*.txt", 3)), TypeError, "xdecode: expected a"),
    (lambda: xdecode((3, len)), TypeError, "xdecode: expected a"),
]

SEVERAL = "x-{0..2}.tar"

REFUSED_BY_PIPELINES = [
    # sources
    (lambda: Iterated(iter([1, 2])), TypeError, "list_iterator can be iterated only once"),
    (lambda: Iterated(3), TypeError, r"a pipeline begins at .* got a int"),
    (lambda: DataPipeline(3), TypeError, "a pipeline begins at"),
    (
        lambda: DataPipeline({}),
        TypeError,
        "a dict cannot be the source of a pipeline: write mpwds.W",
    ),
    (lambda: DataPipeline([1], DataPipeline([2])), TypeError, "it can only be the first part"),
    (lambda: list(DataPipeline()), ValueError, "the pipeline is empty: append a source"),
    (lambda: WebDataset(3), TypeError, "shards are given as a string or an iterable"),
    (lambda: WebDataset([]), ValueError, "no shards"),
    (lambda: mpwds.ShardList(()), ValueError, "no shards"),
    (lambda: mpwds.SimpleShardList(()), ValueError, "no shards"),
    (lambda: mpwds.ResampledShards([]), ValueError, "no shards"),
    (lambda: next(iter(mpwds.ResampledShards([], empty_check=False))), ValueError, "no shards to draw from"),
    (
        lambda: WebDataset({"datasets": [{"shards": SEVERAL}]}, resampled=True),
        ValueError,
        "cannot be combined with a specification",
    ),
    (
        lambda: WebDataset(mpwds.SimpleShardList(SEVERAL), resampled=True),
        ValueError,
        "needs the names of shards",
    ),
    (
        lambda: mpwds.tarfile_to_samples(select_files="png"),
        TypeError,
        "select_files must be a function of a name, got 'png'",
    ),
    (
        lambda: MultiShardSample({"datasets": [{"shards": "a.tar", "weight": 2}]}),
        ValueError,
        "samples are mixed, not shards: use mpwds.WebDataset",
    ),
    (lambda: mpwds.Dataset("x.tar", colour=True), TypeError, "colour"),
    (
        lambda: mpwds.Dataset("x.tar", errors="ignore"),
        ValueError,
        "errors must be True, False or 'warn', got 'ignore'",
    ),
    (lambda: list(url_opener([1])), TypeError, "a shard must be"),
    (lambda: list(tar_file_expander([{"url": "x.tar"}])), TypeError, "put url_opener before it"),
    *(
        (lambda seed=seed: DataPipeline([], seed=seed), TypeError, "a dataset's seed must be a whole number")
        for seed in ("7", 1.5)
    ),
    # stages of functions
    (lambda: DataPipeline([], 3), TypeError, "a stage is"),
    (lambda: Generator(3), TypeError, "a stage is an object with a method stream"),
    (lambda: PipelineFilter(3), TypeError, "pipelinefilter: expected a function of a source, got 3"),
    (lambda: list(Splitter(lambda urls: iter([1]))(["x.tar"])), TypeError, "a splitter must yield shards"),
    (lambda: mpwds.Processor(Shuffle(10), 3), TypeError, r"shuffle\(10\) is a stage already"),
    (
        lambda: mpwds.Processor([1, 2], "x"),
        TypeError,
        "expected a stage or a generator function of an iterator, got 'x'",
    ),
    (lambda: mpwds.padded(multiple_of=0), ValueError, None),
    (lambda: mpwds.padded(multiple_of=1.5), TypeError, None),
    (lambda: mpwds.padded(axes="a"), TypeError, None),
    (
        lambda: mpwds.padded({"x": 0})([{"x": [1, 2]}, {"x": [1]}]),
        TypeError,
        "padded: expected arrays or tensors in field 'x', got a list",
    ),
    # decoders
    (lambda: AudioDecoder(output="list"), ValueError, "AudioDecoder: output must be"),
    (
        lambda: AudioDecoder(dtype="uint8"),
        ValueError,
        "AudioDecoder: dtype must be one of float32 float64 int16 int32, got 'uint8'",
    ),
    (lambda: AudioDecoder(start=-1), ValueError, "AudioDecoder: start must be at least 0"),
    (lambda: AudioDecoder(duration=0), ValueError, "AudioDecoder: duration must be more than 0"),
    (lambda: VideoDecoder("list"), ValueError, "VideoDecoder: output must be"),
    (lambda: VideoDecoder(start=-1), ValueError, "VideoDecoder: start must be at least 0"),
    (lambda: VideoDecoder(start=float("nan")), ValueError, "VideoDecoder: start must be at least 0"),
    (
        lambda: VideoDecoder(start=2, end=2),
        ValueError,
        r"VideoDecoder: end must be after start \(2 s\), got 2",
    ),
    (lambda: VideoDecoder(every=0), ValueError, "VideoDecoder: every must be at least 1, got 0"),
    (lambda: VideoDecoder(max_frames=0), ValueError, "VideoDecoder: max_frames must be at least 1"),
    (lambda: VideoDecoder(threads=0), ValueError, "VideoDecoder: threads must be at least 1"),
    *(
        (lambda handlers=handlers: Decoder(*handlers), TypeError, "must be a function")
        for handlers in ((7,), ("rgb8", None), (["rgb8"], "rgb8"), (("jpg", 7),), ((len, "jpg"),))
    ),
    (
        lambda: Decoder("rgb9"),
        ValueError,
        "unknown image format 'rgb9': the known ones are l8 rgb8",
    ),
    # quarantine
    *(
        (lambda budget=budget: quarantine("bad.jsonl", budget), error, "quarantine: ")
        for budget, error in (
            *((-1, ValueError), (0.0, ValueError), (1.5, ValueError)),
            *(("3", TypeError), (True, TypeError)),
        )
    ),
    (lambda: quarantine("missing/bad.jsonl"), FileNotFoundError, None),
    # epochs
    (lambda: DataPipeline("abc").with_epoch(0), ValueError, "number of elements must be at least 1, got 0"),
    (lambda: DataPipeline("abc").repeat(nbatches=0), ValueError, "elements must be at least 1, got 0"),
    *(
        (
            lambda method=method, given={name: value}: getattr(DataPipeline("abc"), method)(**given),
            TypeError,
            f"{method}: {name} must be a whole number, got {value!r}",
        )
        for method, name in (
            ("with_epoch", "nsamples"),
            ("with_epoch", "nbatches"),
            ("repeat", "nepochs"),
            ("with_length", "n"),
        )
        for value in (1.5, "3", None)
    ),
    (lambda: MockDataset("x", -1), ValueError, "must not be negative"),
    (lambda: ResizedDataset(DataPipeline("abc")), TypeError, None),
    # mixes
    (lambda: RandomMix([]), ValueError, "at least one dataset"),
    (lambda: RandomMix(["a"], [1, 2]), ValueError, "1 datasets are mixed, but 2 weights are given"),
    (lambda: RandomMix(["a"], [-1]), ValueError, "not negative and not all 0"),
    (lambda: RandomMix(["a"], [0]), ValueError, "not all 0"),
    (lambda: RandomMix(["a"], [float("nan")]), ValueError, "must be finite"),
    (
        lambda: RandomMix(["a"], stop="never ever"),
        ValueError,
        "a number of elements or one of 'first_exhausted'",
    ),
    (lambda: RandomMix(["a"], stop=0), ValueError, "at least 1 element"),
    (lambda: RoundRobin([3]), TypeError, "a pipeline begins at"),
    # indexed datasets
    *(
        (lambda shards=shards: ShardListDataset(shards), ValueError, message)
        for shards, message in (
            ([], "there are no shards"),
            ([("x.tar", 3)], r"shards\[0\] = \('x.tar', 3\)"),
            ([{"url": "x"}], "nsamples"),
            ([{"url": "x", "nsamples": -1}], r"shards\[0\] = .*-1"),
            ([{"url": "x", "nsamples": "250"}], r"shards\[0\] = .*'250'"),
        )
    ),
    (
        lambda: ShardListDataset([{"url": "x", "nsamples": 1}], transformations="pil"),
        TypeError,
        r'"PIL", "numpy" or a function of a sample, got \'pil\'',
    ),
    (lambda: IndexedDataset(range(3), True), ValueError, "shuffle must be one of 'global'"),
    (
        lambda: IndexedDataset(range(3), "chunked", chunksize=0),
        ValueError,
        "chunksize must be at least 1, got",
    ),
    (lambda: IndexedDataset(range(3), threads=0), ValueError, "threads must be at least 1, got 0"),
    *(
        (
            lambda wrong=wrong: IndexedDataset(range(4))[wrong],
            TypeError,
            r"whole number or a slice, got .*; select\(\[...\]\) takes several",
        )
        for wrong in ("3", 1.0, None, [1, 2])
    ),
    *(
        (lambda wrong=wrong: IndexedDataset(range(4)).select(wrong), error, message)
        for wrong, error, message in (
            ([0, 4], IndexError, "no sample 4 among 4 samples"),
            ([-5], IndexError, "no sample -5"),
            ([True], IndexError, "a mask of 1 booleans for 4 samples"),
            ([0.5], TypeError, "select takes indices"),
            (["a"], TypeError, "select takes indices"),
            ([[0]], TypeError, "select takes indices"),
        )
    ),
    (
        lambda: IndexedDataset(WebDataset(SEVERAL).shuffle(100).decode()),
        TypeError,
        r"shuffle\(100\) does not make one element of one.*shuffle=\"global\"",
    ),
    (
        lambda: IndexedDataset(WebDataset(SEVERAL, select_files=str.isascii)),
        TypeError,
        "without select_files and rename_files",
    ),
    (
        lambda: IndexedDataset(WebDataset(SEVERAL, resampled=True)),
        TypeError,
        "elements of ResampledShards.* have no numbers",
    ),
    (lambda: IndexedDataset(DataPipeline([3]).repeat(2)), TypeError, r"call repeat\(2\) behind it"),
    (
        lambda: IndexedDataset("https://host/x-{0..2}.tar")[0],
        ValueError,
        "give a cache for copies, or remote=True",
    ),
    (
        lambda: IndexedDataset("train.yaml"),
        ValueError,
        "train.yaml is a specification, which mpwds.WebDataset reads",
    ),
    (lambda: IndexedDataset({"datasets": []}), TypeError, "elements of a dict have no numbers"),
    (lambda: IndexedDataset(n for n in range(3)), TypeError, "elements of a generator have no numbers"),
    (lambda: IndexedDataset("x.tar")[0], FileNotFoundError, "x.tar"),
    (lambda: IndexedDataset("./"), ValueError, "no shards in"),
]


@pytest.mark.parametrize(("call", "error", "message"), [*REFUSED, *REFUSED_BY_PIPELINES])
def test_what_makes_no_sense_is_refused_with_a_reason(tmp_path, monkeypatch, call, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        call()
