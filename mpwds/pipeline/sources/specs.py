"""Dataset specifications: which shards a dataset has, how many an epoch takes, how they are read."""

from __future__ import annotations

import math
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NoReturn, TypeAlias

from mpwds.errors import SecurityError, SpecError
from mpwds.imports import require
from mpwds.pipeline import handlers
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.handlers import Handler
from mpwds.pipeline.iterable_sources import IterableSource
from mpwds.pipeline.randomness import Draws, Permutation
from mpwds.pipeline.sources.shards import Shards, SimpleShardList, Urls
from mpwds.pipeline.stream import Address, Stream
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.patterns import MAX_NAMES, Names, check_url
from mpwds.storage.streams.urls import is_local, without_credentials
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
    *("reraise_exception", "ignore_and_continue", "warn_and_continue", "ignore_and_stop", "warn_and_stop"),
)


@dataclass(frozen=True)
class SpecSource:
    """One collection of shards of a specification; docs/reference/specifications.md describes its options."""

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

    docs/reference/specifications.md lists all keys, and tells when shards are mixed and when samples are.

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
    stop = top["stop"].one_of(_STOP_RULES) if "stop" in top else None
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
        handler=getattr(handlers, source["handler"].one_of(_HANDLERS)) if "handler" in source else None,
        subsample=source.get("subsample", 1.0).number(most=1.0),
        shuffle=source.get("shuffle", 0).integer(0),
        epoch=_optional(source, "epoch"),
    )


def _urls(pattern: SpecValue, prefix: str, bucket: str, trusted: bool) -> list[str]:
    parts = _expand(pattern, trusted).split("::")
    try:
        urls = [prefix + os.path.join(bucket, url) for url in Names(*parts)]
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
        names = {new: value[new].text().lower() for new in value.mapping().value}
        if len(set(names.values())) < len(names):
            value.fail("gives one extension two names")
        return names
    extensions = [each for string in value.strings() for each in string.value.replace(";", " ").split()]
    return {extension.lower(): extension.lower() for extension in extensions}


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
    seed and epoch: put ``split_by_node`` and ``split_by_worker`` after it, as ``WebDataset(spec)`` does. An
    address is (shard's number, number of the draw), so that random augmentation differs each time a shard is
    drawn; without ``resample`` the latter is 0.

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
        sources = self.spec.sources
        self._urls = [url for source in sources for url in source.urls]
        self._options = [options for source in sources for options in [source.options] * len(source.urls)]
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
        moment = context.alike_on_ranks().moment
        order = _ChosenShards(self.spec.sources, context.seed or 0, moment, self._series)
        return Shards(self._urls, order, self._options)


class _ChosenShards(Sequence[Address]):
    """The addresses of an epoch's shards, of which each is computed from its place."""

    def __init__(self, sources: Sequence[SpecSource], *facts: object) -> None:
        self._sources = sources
        self._draws = [Draws("sources", number, *facts) for number in range(len(sources))]
        sizes = [len(source.urls) for source in sources]
        self._orders = [Permutation(size, "sources", number, *facts) for number, size in enumerate(sizes)]
        counts = [source.resample or source.choose or len(source.urls) for source in sources]
        self._places = [0, *accumulate(counts)]
        self._numbers = [0, *accumulate(sizes)]
        self._order = Permutation(self._places[-1], "shards", *facts)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: Any) -> Any:
        chosen = self._order[place]
        source = bisect_right(self._places, chosen) - 1
        draw = chosen - self._places[source]
        if self._sources[source].resample is None:
            return self._numbers[source] + self._orders[source][draw], 0
        shards = len(self._orders[source])
        return self._numbers[source] + self._draws[source].index(draw, shards), draw


def shardspec(spec: Urls) -> SimpleShardList | MultiShardSample:
    """The list of shards for a pattern, an iterable of names, or the path of a YAML specification.

    Example:
        >>> len(shardspec("x-{0..9}.tar"))
        10
    """
    if isinstance(spec, (str, os.PathLike)) and os.fspath(spec).endswith((".yaml", ".yml")):
        return MultiShardSample(spec)
    return SimpleShardList(spec)


Path = tuple["str | int", ...]


class SpecValue:
    """A value of a specification that knows its file, its line and the keys that lead to it."""

    def __init__(
        self, value: Any, file: str | None = None, lines: Mapping[Path, int] | None = None, path: Path = ()
    ) -> None:
        self.value = value
        self.file = file
        self._lines = lines or {}
        self._path = path
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        self._key = steps.removeprefix(".")

    @property
    def where(self) -> str:
        """The place, for messages: ``words.yaml, line 7, datasets[1].choose``."""
        if self.file is None:
            return f"{self._key} of the specification" if self._key else "the specification"
        line = self._lines.get(self._path)
        return ", ".join(filter(None, [self.file, f"line {line}" if line else "", self._key]))

    def fail(self, problem: str) -> NoReturn:
        """Raises ``SpecError`` about this value."""
        raise SpecError(f"{self.where} {problem}", self.file, self._lines.get(self._path), self._key)

    def __contains__(self, key: str) -> bool:
        return key in self.value

    def __getitem__(self, key: str | int) -> SpecValue:
        return SpecValue(self.value[key], self.file, self._lines, (*self._path, key))

    def get(self, key: str, default: Any) -> SpecValue:
        """The value under ``key``, or ``default`` at its place."""
        return SpecValue(self.value.get(key, default), self.file, self._lines, (*self._path, key))

    def check(self, is_right: bool, expected: str) -> None:
        """Raises ``SpecError`` unless the value ``is_right``."""
        if not is_right:
            self.fail(f"must be {expected}, got {shown(self.value)}")

    def mapping(self, *allowed: str) -> SpecValue:
        """This value, which must be a mapping; with ``allowed``, one without other keys."""
        self.check(isinstance(self.value, dict), "a mapping")
        for key in self.value:
            if not isinstance(key, str):
                self.fail(f"has the key {shown(key)}, which is not a string")
            if allowed and key not in allowed:
                self[key].fail(f"is unknown: allowed here are {', '.join(allowed)}")
        return self

    def items(self) -> list[SpecValue]:
        """The items of this value, which must be a non-empty list."""
        self.check(isinstance(self.value, list) and bool(self.value), "a list of at least one item")
        return [self[index] for index in range(len(self.value))]

    def strings(self) -> list[SpecValue]:
        """The strings of this value, a string or a list of strings."""
        values = [self] if isinstance(self.value, str) else self.items()
        for value in values:
            value.check(isinstance(value.value, str) and bool(value.value), "a string")
        return values

    def text(self) -> str:
        """This value, which must be a string."""
        self.check(isinstance(self.value, str), "a string")
        text: str = self.value
        return text

    def one_of(self, choices: Sequence[str]) -> str:
        """This value, which must be one of ``choices``."""
        self.check(self.value in choices, f"one of {', '.join(choices)}")
        text: str = self.value
        return text

    def integer(self, least: int) -> int:
        """This value, which must be a whole number and at least ``least``."""
        is_whole = isinstance(self.value, int) and not isinstance(self.value, bool)
        self.check(is_whole and self.value >= least, f"a whole number, {least} or more")
        return int(self.value)

    def number(self, most: float = math.inf) -> float:
        """This value, which must be a number from 0 to ``most``."""
        is_number = isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        bounds = "0 or more" if most == math.inf else f"from 0 to {most:g}"
        self.check(is_number and 0 <= self.value <= most, f"a number, {bounds}")
        if math.isinf(self.value):
            self.fail("must be finite")
        return float(self.value)


def read_spec(spec: str | os.PathLike[str] | Mapping[str, Any]) -> SpecValue:
    """Parses a specification: a YAML file by path or URL, or a dict. Raises what ``load_spec`` does."""
    if isinstance(spec, Mapping):
        return SpecValue(dict(spec))
    file = os.fspath(spec)
    yaml = require("yaml", f"reading the specification {file} needs PyYAML: pip install 'mpwds[yaml]'")
    with open_at(file) as stream:
        content = stream.read()
    file = without_credentials(file)
    try:
        text = content.decode()
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except UnicodeDecodeError as error:
        raise SpecError(f"{file} is not YAML: it is not UTF-8 text ({error})", file) from None
    except yaml.YAMLError as error:
        marked = isinstance(error, yaml.MarkedYAMLError)
        line = error.problem_mark.line + 1 if marked and error.problem_mark else None
        at = file if line is None else f"{file}, line {line}"
        raise SpecError(f"{at} is not YAML: {(marked and error.problem) or error}", file, line) from None
    lines: dict[Path, int] = {}
    for path, line in _lines(node, (), set()):
        if path in lines:
            raise SpecError(
                f"{file}, line {line}: the key {shown(path[-1])} is already in line {lines[path]}", file, line
            )
        lines[path] = line
    return SpecValue(value, file, lines)


def _lines(node: Any, path: Path, seen: set[int]) -> Iterator[tuple[Path, int]]:
    """The line of each value below a YAML node; for a mapping's value, the line of its key.

    A value that aliases repeat is visited once: it may contain itself, or be too large to visit each time.
    """
    if node is not None and isinstance(node.value, list) and id(node) not in seen:
        seen.add(id(node))
        for number, item in enumerate(node.value):
            key_node, value_node = item if isinstance(item, tuple) else (item, item)
            step = key_node.value if isinstance(item, tuple) else number
            if isinstance(step, (str, int)):
                yield (*path, step), key_node.start_mark.line + 1
                yield from _lines(value_node, (*path, step), seen)
