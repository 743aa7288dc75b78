"""A loader's state as users save it: the facts that it depends on, and their check when it is loaded."""

from __future__ import annotations

import copy
import functools
import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from mpwds.loader.resume.progress import field_of
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import ONCE, Epochs
from mpwds.pipeline.handlers import reraise_exception
from mpwds.pipeline.iterable_sources import iterates_itself

VERSION = 7

_DEPTH, _MOST_PARTS = 5, 100  # what is deeper or larger is data
_MOST_TEXT = 80
_PLAIN = (bool, int, float, str, bytes, type(None))
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})

_IDENTITY = re.compile(r" at 0x[0-9a-f]+")
_PATH = re.compile(r"(['\"])[^'\"]*/[^'\"]*\1")


def keeps_order(loader: Any) -> bool:
    """True if the loader delivers in the same order each time: one worker does, if it has one stream."""
    return bool(loader.in_order) or (loader.workers < 2 and loader.streams is None)


def facts_of(loader: Any, stages: list[str] | None) -> dict[str, Any]:
    """The facts that a state depends on: under others, samples would be lost or repeated."""
    here = Context.current()
    # No worker delivers the same as one, and streams the same on any workers.
    carriers: dict[str, Any] = {"workers": max(loader.workers, 1)}
    if loader.streams is not None:
        carriers = {"even": loader.even}
    return {
        "streams": loader.streams,
        **carriers,
        "in_order": keeps_order(loader),
        "rank": here.rank,
        "world_size": here.world_size,
        "seed": seed_of(loader),
        "dataset": described(loader.dataset),
        "stages": stages or [],
    }


def seed_of(loader: Any) -> int | None:
    """The seed that was given to the loader, or else to its pipeline."""
    dataset, seed = loader.dataset, loader.seed
    return dataset.given_seed if seed is None and isinstance(dataset, DataPipeline) else seed


def check(state: Any, kind: str, facts: Mapping[str, Any]) -> None:
    """Raises ValueError unless a state belongs to a loader of this kind, under these facts."""
    if not isinstance(state, Mapping):
        raise ValueError(f"a loader's state is the dict that state_dict() gave, got {state!r}")
    version = state.get("version")
    if version != VERSION:
        raise ValueError(
            f"a loader's state of version {version!r}, but this mpwds reads version {VERSION}: load it "
            "with the mpwds that saved it"
        )
    if state.get("kind") != kind:
        raise ValueError(f"the state of a {state.get('kind')}, loaded into a {kind}")
    saved = field_of(state, "facts", dict)
    for name, now in facts.items():
        before = saved.get(name)
        if before != now:
            elastic = name in ("workers", "world_size") and facts.get("streams", 0) is None
            how = "; a run with streams= may change it (docs/guides/training/elastic.md)" if elastic else ""
            raise ValueError(
                f"{name} of the loader changed since the state was saved ({_difference(before, now)}): load "
                f"it into a loader with the same arguments, or begin the epoch again{how}"
            )


def described(dataset: Any) -> list[str]:
    """A pipeline's source, with its number of shards or elements, and its stages.

    It is the same in another process, and has no paths: shards may have moved. A function is described by its
    name, so that it can be mended, and a lambda by its code. With both go the values that they hold:
    arguments of ``functools.partial``, variables of an outer function, public attributes of an object.
    """
    if not isinstance(dataset, DataPipeline) or iterates_itself(dataset):
        name = getattr(dataset, "__qualname__", type(dataset).__name__)  # of a function that makes iterators
        return [_counted(name + _held(dataset), dataset)]
    origin, *stages = dataset.parts
    return _origin(origin) + described_stages(stages, dataset.given_epochs)


def described_stages(stages: Sequence[Any], epochs: Epochs = ONCE) -> list[str]:
    """Stages as they print, without what differs between processes, and how often they run.

    Handlers do not count: a run that met a bad sample may go on with one that skips it.
    """
    alike = map(_without_handler, stages)
    parts = [_lasting(str(stage)) + _held(*stage.configuration.values()) for stage in alike]
    return parts if epochs == ONCE else [*parts, str(epochs)]


def _without_handler(stage: Any) -> Any:
    if "handler" in stage.configuration:
        stage = copy.copy(stage)
        object.__setattr__(stage, "handler", reraise_exception)  # stages are frozen
    return stage


def _origin(origin: Any) -> list[str]:
    if hasattr(origin, "description"):  # of a dataset elsewhere
        return list(origin.description)
    if isinstance(origin, DataPipeline):
        return described(origin)
    if not origin.parts:
        elements = getattr(origin, "elements", origin)
        return [_counted(type(elements).__name__, getattr(origin, "urls", elements))]
    mixed = ["; ".join(_origin(part)) for part in origin.parts]
    rules = [f"{name}={getattr(origin, name, None)!r}" for name in ("weights", "stop", "order", "seed")]
    return [_lasting(f"{type(origin).__name__}({', '.join(rules)}) of {mixed}")]


def _counted(name: str, elements: Any) -> str:
    try:
        return f"{name} ({len(elements)})"
    except (TypeError, NotImplementedError):
        return name


def _held(*arguments: Any) -> str:
    """What a stage's arguments hold, as far as they do not print it; a long text becomes a digest."""
    told = ", ".join(text for each in arguments if not isinstance(each, _PLAIN) for text in _told("", each))
    return f" [{told if len(told) <= _MOST_TEXT else f'values {_digest(told)}'}]" if told else ""


def _told(name: str, value: Any, depth: int = _DEPTH) -> Iterator[str]:
    """Texts for each lambda and each plain value in a function, or in an object of the user's own class."""
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, _PLAIN):
        if not (isinstance(value, str) and "/" in value):  # shards may have moved
            yield f"{name}={value!r}" if name else repr(value)
    elif isinstance(value, FunctionType):
        if value.__name__ == "<lambda>":
            yield f"code {_digest(repr(_facts_of_code(value.__code__)))}"
        parts = zip(value.__code__.co_freevars, map(_content, value.__closure__ or ()), strict=True)
    elif isinstance(value, functools.partial):
        parts = [("", part) for part in (value.func, *value.args)] + list(value.keywords.items())
    elif isinstance(value, MethodType):
        parts = [("", value.__self__)]
    elif isinstance(value, (list, tuple)):  # data, unless there are functions in it
        parts = [(name, part) for part in value[: _MOST_PARTS + 1] if not isinstance(part, _PLAIN)]
    elif isinstance(value, dict):
        parts = [(str(key), part) for key, part in value.items() if not isinstance(part, _PLAIN)]
    elif is_dataclass(value) or _is_own(value):
        attributes = getattr(value, "__dict__", {})
        parts = [(key, part) for key, part in attributes.items() if not key.startswith("_")]
    if depth and len(parts := list(parts)) <= _MOST_PARTS:
        for name, part in parts:
            yield from _told(name, part, depth - 1)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is assigned later
        return None


def _is_own(value: Any) -> bool:
    """True for a stage or a function object of a class that belongs to no installed package."""
    if isinstance(value, type) or not (callable(value) or hasattr(value, "stream")):
        return False
    module = type(value).__module__
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] not in ("builtins", "mpwds") and not file.startswith(_INSTALLED)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _facts_of_code(code: CodeType) -> tuple[Any, ...]:
    """Describes the code of a function, without where it was written."""
    constants: list[Any] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_facts_of_code(constant))
        else:
            constants.append(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
    return code.co_code, code.co_names, constants


def _lasting(text: str) -> str:
    return _PATH.sub("'...'", _IDENTITY.sub("", text))


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, list) and isinstance(now, list):
        for number, (old, new) in enumerate(zip(before, now, strict=False), 1):
            if old != new:
                return f"part {number} was {old}, is {new}"
    return f"it was {before!r}, is {now!r}"
