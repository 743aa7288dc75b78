"""Dataset specifications: which shards a dataset has, how many an epoch takes, how they are read."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from mpwds.errors import SecurityError
from mpwds.pipeline import handlers
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.handlers import Handler
from mpwds.pipeline.iterable_sources import IterableSource
from mpwds.pipeline.sources.shards import Shards, SimpleShardList, Urls
from mpwds.pipeline.sources.spec_values import SpecValue, read_spec
from mpwds.pipeline.stream import Address, Stream
from mpwds.storage.streams.patterns import MAX_NAMES, check_url, expand_braces
from mpwds.storage.streams.urls import is_local
from mpwds.suggestions import shown

SpecLike: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | DatasetSpec"

_SOURCE = (
    *("name", "shards", "buckets"),
    *("choose", "perepoch", "resample", "probability", "weight"),
    *("extensions", "scale", "scaleprob", "meta", "handler", "subsample", "shuffle", "epoch"),
)
_IN_BRACES = re.compile(r"\$\{(\w+)\}")
_STOP_RULES = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")
_HANDLERS = (
    *("reraise_exception", "ignore_and_continue", "warn_and_continue"),
    *("ignore_and_stop", "warn_and_stop"),
)


@dataclass(frozen=True)
class SpecSource:
    """One collection of shards of a specification; docs/specifications.md describes its options."""

    name: str
    urls: tuple[str, ...]
    choose: int | None = None
    resample: int | None = None
    weight: float | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    handler: Handler | None = None
    subsample: float = 1.0
    shuffle: int = 0
    epoch: int | None = None

    @property
    def mixes_samples(self) -> bool:
        """True if it has an option that only a mix of samples can honour."""
        return self != self.of_shards()

    def of_shards(self) -> SpecSource:
        """The same shards, without the options that need a mix of samples."""
        return replace(self, weight=None, subsample=1.0, shuffle=0, epoch=None)

    @property
    def options(self) -> dict[str, Any]:
        """The options for the reader of its shards, which travel on each shard; may be empty."""
        given = {"extensions": dict(self.extensions), "meta": dict(self.meta), "handler": self.handler}
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True)
class DatasetSpec:
    """A checked dataset specification.

    Attributes:
        epoch: Samples in an epoch, in each worker; all where ``None``.
        stop: When a mix of samples without ``epoch`` ends: see ``mpwds.RandomMix``.
        file: The file it was read from; ``None`` for a dict.
    """

    sources: tuple[SpecSource, ...]
    epoch: int | None = None
    stop: str | None = None
    file: str | None = None

    @property
    def mixes_samples(self) -> bool:
        """True if samples are mixed, so that each source is read on its own, rather than shards."""
        return any(source.mixes_samples for source in self.sources)

    def __str__(self) -> str:
        return repr(self.file) if self.file else f"<specification of {len(self.sources)} sources>"


def load_spec(spec: SpecLike, trusted: bool | None = None) -> DatasetSpec:
    """Reads and checks a dataset specification.

    ::

        prefix: https://host/data/
        datasets:
          - name: scans                       # all shards, in every epoch
            shards: scans-{000..131}.tar
          - name: books
            shards: [books-{000..999}.tar]
            choose: 50                        # 50 of them, others in every epoch

    docs/specifications.md lists all keys, and tells when shards are mixed and when samples are.

    Args:
        spec: Path or URL of a YAML file, or a dict of the same form.
        trusted: Whether URLs may run commands (``pipe:``). By default, they may in a dict, which is part of
            your code, and may not in a file. A file from another machine may not use your environment's
            variables and ``~`` either, which would reveal them to the servers that it names.

    Raises:
        SpecError: The specification is invalid; the message gives file, line and key.
        SecurityError: An untrusted specification does one of these.
        OSError: The file cannot be read.
        ImportError: PyYAML is missing: the extra ``mpwds[yaml]`` brings it.

    Source:
        webdataset's README, "Loadable Dataset Specifications", ``webdataset.shardlists.MultiShardSample``
        (1.0) and ``webdataset.dsspecs`` (0.1).

    Example:
        >>> spec = load_spec({"prefix": "gs://", "datasets": [{"shards": "a/{0..2}.tar", "choose": 2}]})
        >>> spec.sources[0].urls
        ('gs://a/0.tar', 'gs://a/1.tar', 'gs://a/2.tar')
    """
    if isinstance(spec, DatasetSpec):
        return spec
    top = read_spec(spec)
    trusted = top.file is None if trusted is None else trusted
    top.mapping("prefix", "buckets", "datasets", "dataset", "epoch", "stop")
    if ("datasets" in top) == ("dataset" in top):
        top.fail("must have one key `datasets`, the list of sources")
    prefix = _expand(top.get("prefix", ""), trusted)
    sources: list[SpecSource] = []
    for each in top["datasets" if "datasets" in top else "dataset"].items():
        sources.append(_source(each, top, prefix, trusted))
        _check_count(sum(len(source.urls) for source in sources), each)
    stop = top["stop"].text() if "stop" in top else None
    if stop is not None and stop not in _STOP_RULES:
        top["stop"].fail(f"must be one of {', '.join(_STOP_RULES)}, got {shown(stop)}")
    result = DatasetSpec(tuple(sources), _optional(top, "epoch"), stop, top.file)
    if stop is not None and (result.epoch is not None or not result.mixes_samples):
        top["stop"].fail("has no effect here: it needs sources with weights, and no `epoch` at the top")
    return result


def _source(source: SpecValue, top: SpecValue, prefix: str, trusted: bool) -> SpecSource:
    source.mapping(*_SOURCE)
    if "shards" not in source:
        source.fail("has no key `shards`")
    buckets = source["buckets"] if "buckets" in source else top.get("buckets", "")
    bucket = ""
    if buckets.value not in ("", []):
        given, *others = buckets.strings()
        if others:
            others[0].fail("is a second bucket; a source has one: write a source for each")
        bucket = _expand(given, trusted)
    urls: list[str] = []
    for pattern in source["shards"].strings():
        urls += _urls(pattern, prefix, bucket, trusted)
        _check_count(len(urls), pattern)
    counts = [key for key in ("choose", "perepoch", "resample") if key in source]
    if len(counts) > 1:
        source[counts[1]].fail(f"and {counts[0]} exclude each other")
    weights = [key for key in ("weight", "probability") if key in source]
    if len(weights) > 1:
        source[weights[1]].fail(f"and {weights[0]} mean the same: give one of them")
    choose = _optional(source, "choose" if "choose" in source else "perepoch")
    if choose is not None and choose > len(urls):
        source[counts[0]].fail(
            f"is {choose}, but there are only {len(urls)} shards; `resample` draws with replacement"
        )
    fields = {f"__{key}__": source[key].value for key in ("scale", "scaleprob") if key in source}
    return SpecSource(
        name=source.get("name", f"@{bucket}").text(),
        urls=tuple(urls),
        choose=choose,
        resample=_optional(source, "resample"),
        weight=source[weights[0]].number() if weights else None,
        extensions=_extensions(source["extensions"]) if "extensions" in source else {},
        meta={**fields, **source.get("meta", {}).mapping().value},
        handler=_handler(source["handler"]) if "handler" in source else None,
        subsample=source.get("subsample", 1.0).number(most=1.0),
        shuffle=source.get("shuffle", 0).integer(0),
        epoch=_optional(source, "epoch"),
    )


def _urls(pattern: SpecValue, prefix: str, bucket: str, trusted: bool) -> list[str]:
    parts = _expand(pattern, trusted).split("::")
    try:
        urls = [prefix + os.path.join(bucket, url) for url in expand_braces(*parts)]
    except ValueError as error:
        pattern.fail(f"is wrong: {error}")
    for url in urls:
        try:
            check_url(url, trusted, pattern.where)
        except SecurityError as error:
            raise SecurityError(f"{error}: {_vouching(pattern)}") from None
    return urls


def _check_count(shards: int, at: SpecValue) -> None:
    if shards > MAX_NAMES:
        at.fail(f"brings the shards to {shards}; {MAX_NAMES} are allowed")


def _optional(value: SpecValue, key: str) -> int | None:
    return value[key].integer(1) if key in value else None


def _extensions(value: SpecValue) -> dict[str, str]:
    if isinstance(value.value, dict):
        return {new: value[new].text().lower() for new in value.mapping().value}
    extensions = [each for string in value.strings() for each in string.value.replace(";", " ").split()]
    return {extension.lower(): extension.lower() for extension in extensions}


def _handler(value: SpecValue) -> Handler:
    if value.value not in _HANDLERS:
        value.fail(f"must be one of {', '.join(_HANDLERS)}, got {shown(value.value)}")
    handler: Handler = getattr(handlers, value.value)
    return handler


def _expand(value: SpecValue, trusted: bool) -> str:
    text = value.text()
    substituted = _IN_BRACES.sub(lambda name: _variable(value, name), text)
    expanded = os.path.expanduser(os.path.expandvars(substituted))
    if expanded != text and not trusted and value.file is not None and not is_local(value.file):
        raise SecurityError(
            f"{value.where}: {shown(text)} has a variable of your environment (or ~), which a file from "
            "another machine may not read; if you trust the file, load it with " + _vouching(value)
        )
    return expanded


def _variable(value: SpecValue, name: re.Match[str]) -> str:
    found = os.environ.get(f"WDS_{name[1]}", os.environ.get(name[1]))
    if found is None:
        value.fail(
            f"needs the environment variable {name[1]} or WDS_{name[1]}; neither is set: {shown(value.value)}"
        )
    return found


def _vouching(value: SpecValue) -> str:
    spec = "spec" if value.file is None else repr(value.file)
    return f"mpwds.WebDataset(mpwds.load_spec({spec}, trusted=True))"


class MultiShardSample(IterableSource):
    """Source of a pipeline: shards of several collections, shuffled together, as ``{"url": ...}``.

    From each collection an epoch takes all shards, or ``choose`` of them, or ``resample`` draws with
    replacement, as its specification says. All nodes and workers get the same shards in the same order, by
    seed and epoch: put ``split_by_node`` and ``split_by_worker`` behind it, as ``WebDataset(spec)`` does. An
    address is (shard's number, how often it occurred before in the epoch), so that random augmentation
    differs each time.

    Args:
        fname: A YAML file, a dict of the same form, or a result of ``mpwds.load_spec``.

    Raises:
        ValueError: The specification mixes samples rather than shards: only ``WebDataset(spec)`` does that.

    Source:
        ``webdataset.shardlists.MultiShardSample``, which draws differently in each process unless
        ``set_epoch`` is called.

    Example:
        >>> scans, books = {"shards": "a-{0..9}.tar", "choose": 2}, {"shards": "b-{0..9}.tar", "choose": 1}
        >>> spec = {"datasets": [scans, books]}
        >>> sorted(shard["url"][0] for shard in MultiShardSample(spec))
        ['a', 'a', 'b']
    """

    def __init__(self, fname: SpecLike) -> None:
        self.spec: DatasetSpec = load_spec(fname)
        if self.spec.mixes_samples:
            raise ValueError(
                f"{self.spec} has sources with weight, subsample, shuffle or epoch, so samples are mixed, "
                "not shards: use mpwds.WebDataset(spec)"
            )
        self._series = 0

    def __str__(self) -> str:
        return f"MultiShardSample({self.spec})"

    def set_epoch(self, epoch: int) -> None:
        """Selects other draws, the same in all processes that set the same number.

        There is no need to call it in a pipeline, which counts epochs itself.
        """
        self._series = epoch
        super().set_epoch(0)

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        rng = random.Random(f"sources/{context.seed or 0}/{context.epoch}/{self._series}")
        order: list[int] = []
        urls: list[str] = []
        shard_options: list[dict[str, Any]] = []
        for source in self.spec.sources:
            numbers = range(len(urls), len(urls) + len(source.urls))
            urls += source.urls
            shard_options += [source.options] * len(source.urls)
            if source.resample is not None:
                order += rng.choices(numbers, k=source.resample)
            elif source.choose is not None:
                order += rng.sample(numbers, source.choose)
            else:
                order += numbers
        rng.shuffle(order)
        times: Counter[int] = Counter()
        addresses: list[Address] = []
        for number in order:
            addresses.append((number, times[number]))
            times[number] += 1
        return Shards(urls, addresses, options=shard_options)


def shardspec(spec: Urls) -> SimpleShardList | MultiShardSample:
    """The list of shards for a pattern, an iterable of names, or the path of a YAML specification.

    Example:
        >>> len(shardspec("x-{0..9}.tar"))
        10
    """
    if isinstance(spec, (str, os.PathLike)) and os.fspath(spec).endswith((".yaml", ".yml")):
        return MultiShardSample(spec)
    return SimpleShardList(spec)
