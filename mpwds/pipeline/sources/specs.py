"""Dataset specifications: which shards a dataset has, how many an epoch takes, how they are read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from mpwds.errors import SecurityError
from mpwds.pipeline import handlers
from mpwds.pipeline.handlers import Handler
from mpwds.pipeline.sources.spec_values import SpecValue, read_spec
from mpwds.storage.streams.secure import check_url
from mpwds.storage.streams.urls import MAX_NAMES, expand_braces, is_local

SpecLike: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | DatasetSpec"

_TOP = ("prefix", "buckets", "datasets", "dataset", "epoch", "stop")
_SOURCE = (
    *("name", "shards", "buckets"),
    *("choose", "perepoch", "resample", "probability", "weight"),
    *("extensions", "scale", "scaleprob", "meta", "handler", "subsample", "shuffle", "epoch"),
)
_IN_BRACES = re.compile(r"\$\{(\w+)\}")
_STOP_RULES = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")
_PASSED_ON = ("scale", "scaleprob")
_HANDLERS = (
    *("reraise_exception", "ignore_and_continue", "warn_and_continue"),
    *("ignore_and_stop", "warn_and_stop"),
)


@dataclass(frozen=True)
class SpecSource:
    """One collection of shards of a specification.

    Attributes:
        name: What it is called.
        urls: Its shards.
        choose: Shards drawn without replacement for each epoch; all where ``None``.
        resample: Shards drawn with replacement for each epoch.
        weight: Share of its samples in a mix of samples; ``None`` where shards are mixed.
        extensions: New names of the members to read, by their extensions; all members where empty.
        meta: Fields that each of its samples gets.
        handler: What to do about a shard that cannot be read; the dataset's where ``None``.
        subsample: Share of its samples that is kept.
        shuffle: Samples in its shuffle buffer; 0 for none.
        epoch: Its samples in an epoch, in each worker; all where ``None``.
    """

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
        """Whether it asks for what only a mix of samples can give."""
        asks = self.subsample < 1 or self.shuffle > 0
        return asks or self.weight is not None or self.epoch is not None

    def of_shards(self) -> SpecSource:
        """The same shards, read the same way, without what only a mix of samples can give."""
        return replace(self, weight=None, subsample=1.0, shuffle=0, epoch=None)

    @property
    def options(self) -> dict[str, Any]:
        """What the reader of its shards has to know, as it rides on each shard; empty where nothing."""
        given = {"extensions": dict(self.extensions), "meta": dict(self.meta), "handler": self.handler}
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset specification, checked.

    Attributes:
        sources: The collections of shards.
        epoch: Samples in an epoch, in each worker; all where ``None``.
        stop: When a mix of samples without ``epoch`` ends: see ``mpwds.RandomMix``.
        file: Where it stands; ``None`` for a dict.
    """

    sources: tuple[SpecSource, ...]
    epoch: int | None = None
    stop: str | None = None
    file: str | None = None

    @property
    def mixes_samples(self) -> bool:
        """Whether samples are mixed, each source being read by itself, rather than shards."""
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
          - name: rendered
            buckets: synthetic/
            shards: rendered-{0..9}.tar
            resample: 20                      # 20 draws with replacement
            extensions: {jpg: nrm.jpg, txt: gt.txt}
            scale: [0.5, 2.0]

    At the top: ``datasets`` (or ``dataset``), a list; ``prefix``, put before all shards; ``buckets``, put
    between (one for each source); ``epoch``, samples in an epoch in each worker; ``stop``, a rule of
    :class:`mpwds.RandomMix`. ``~`` and environment variables are expanded in all of these. For each source:

    ==================  ================================================================================
    ``shards``          A pattern with braces, or a list of such
    ``name``            What it is called; nothing depends on it
    ``buckets``         In place of the one at the top
    ``choose``          Shards per epoch, drawn without replacement (``perepoch`` means the same)
    ``resample``        Shards per epoch, drawn with replacement
    ``weight``          Share of the *samples* (``probability`` means the same); see below
    ``extensions``      Members to read: extensions in a list, or separated by spaces or semicolons; or
                        a mapping of new names to extensions. Others are skipped. All by default
    ``scale``           Passed on in each sample as ``__scale__``
    ``scaleprob``       Passed on in each sample as ``__scaleprob__``
    ``meta``            A mapping of fields that each sample gets
    ``handler``         ``warn_and_continue`` and the like, for shards that cannot be read
    ``subsample``       Share of its samples that is kept at random
    ``shuffle``         Size of a shuffle buffer of its own
    ``epoch``           Its samples per epoch in each worker; it repeats as often as that takes
    ==================  ================================================================================

    As long as none has one of ``weight``, ``subsample``, ``shuffle`` and ``epoch``, *shards* are mixed: those
    of all sources are shuffled together and divided among nodes and workers, one is open at a time, and the
    proportions are those of the shards. Otherwise *samples* are mixed: each source is a dataset by itself,
    divided among the workers by itself, and :class:`mpwds.RandomMix` draws from them by weight (1 by
    default), till all are exhausted or ``stop`` says otherwise; with ``epoch`` at the top they repeat.

    Args:
        spec: Path or URL of a YAML file, or what YAML would make of one.
        trusted: Whether URLs may run commands (``pipe:``). By default those of a dict may, since it stands in
            your code, and those of a file may not. Nor may a file from another machine use your environment's
            variables and ``~``, which would tell them to the servers that it names.

    Raises:
        SpecError: It is wrong; the message gives file, line and key.
        SecurityError: A URL runs a command or, in a file from another machine, has a variable of the
            environment, and the specification is not trusted.
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
    top.mapping(*_TOP)
    if ("datasets" in top) == ("dataset" in top):
        top.fail("must have one key `datasets`, the list of sources")
    prefix = _expand(top.get("prefix", ""), trusted)
    sources: list[SpecSource] = []
    for each in top["datasets" if "datasets" in top else "dataset"].items():
        sources.append(_source(each, top, prefix, trusted))
        _check_count(sum(len(source.urls) for source in sources), each)
    stop = top["stop"].text() if "stop" in top else None
    if stop is not None and stop not in _STOP_RULES:
        top["stop"].fail(f"must be one of {', '.join(_STOP_RULES)}, got {stop!r}")
    result = DatasetSpec(tuple(sources), _optional(top, "epoch"), stop, top.file)
    if stop is not None and (result.epoch is not None or not result.mixes_samples):
        top["stop"].fail("has no meaning here: it is for sources with weights, and an epoch without a number")
    return result


def _source(source: SpecValue, top: SpecValue, prefix: str, trusted: bool) -> SpecSource:
    source.mapping(*_SOURCE)
    if "shards" not in source:
        source.fail("has no key `shards`")
    buckets = source["buckets"] if "buckets" in source else top.get("buckets", "")
    bucket = "" if buckets.value in ("", []) else _expand(_only(buckets), trusted)
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
            f"is {choose}, but there are only {len(urls)} shards: `resample` draws with replacement"
        )
    meta = dict(source["meta"].mapping().value) if "meta" in source else {}
    return SpecSource(
        name=source.get("name", f"@{bucket}").text(),
        urls=tuple(urls),
        choose=choose,
        resample=_optional(source, "resample"),
        weight=source[weights[0]].number() if weights else None,
        extensions=_extensions(source["extensions"]) if "extensions" in source else {},
        meta={**{f"__{key}__": source[key].value for key in _PASSED_ON if key in source}, **meta},
        handler=_handler(source["handler"]) if "handler" in source else None,
        subsample=source["subsample"].number(0.0, 1.0) if "subsample" in source else 1.0,
        shuffle=source["shuffle"].integer(0) if "shuffle" in source else 0,
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


def _only(buckets: SpecValue) -> SpecValue:
    strings = buckets.strings()
    if len(strings) > 1:
        strings[1].fail("is a second bucket: a source has one; write a source for each")
    return strings[0]


def _optional(value: SpecValue, key: str) -> int | None:
    return value[key].integer(1) if key in value else None


def _extensions(value: SpecValue) -> dict[str, str]:
    if isinstance(value.value, dict):
        return {new: value[new].text().lower() for new in value.mapping().value}
    extensions = [each for string in value.strings() for each in string.value.replace(";", " ").split()]
    return {extension.lower(): extension.lower() for extension in extensions}


def _handler(value: SpecValue) -> Handler:
    if value.value not in _HANDLERS:
        value.fail(f"must be one of {', '.join(_HANDLERS)}, got {value.value!r}")
    handler: Handler = getattr(handlers, value.value)
    return handler


def _expand(value: SpecValue, trusted: bool) -> str:
    text = value.text()
    expanded = os.path.expanduser(
        os.path.expandvars(_IN_BRACES.sub(lambda name: _variable(value, name), text))
    )
    if expanded != text and not trusted and value.file is not None and not is_local(value.file):
        raise SecurityError(
            f"{value.where}: {text!r} has a variable of your environment (or ~), which a file from "
            "another machine may not ask for; if you wrote it yourself, load it with trusted=True: "
            + _vouching(value)
        )
    return expanded


def _variable(value: SpecValue, name: re.Match[str]) -> str:
    set_here = [variable for variable in (f"WDS_{name[1]}", name[1]) if variable in os.environ]
    if not set_here:
        value.fail(
            f"needs the environment variable {name[1]} or WDS_{name[1]}; neither is set: {value.value!r}"
        )
    return os.environ[set_here[0]]


def _vouching(value: SpecValue) -> str:
    spec = "spec" if value.file is None else repr(value.file)
    return f"mpwds.WebDataset(mpwds.load_spec({spec}, trusted=True))"
