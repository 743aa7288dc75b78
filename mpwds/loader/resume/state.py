"""A loader's state as users save it: the facts that it depends on, and their check when it is loaded."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from types import CodeType, FunctionType
from typing import Any

from mpwds.loader.resume.progress import field_of
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import ONCE, Epochs
from mpwds.pipeline.iterable_sources import iterates_itself

VERSION = 7

_DEPTH, _MOST_PARTS = 5, 100  # what is deeper or larger is data

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
    name, so that it can be mended, and a lambda by its code.
    """
    if not isinstance(dataset, DataPipeline) or iterates_itself(dataset):
        name = getattr(dataset, "__qualname__", type(dataset).__name__)  # of a function that makes iterators
        return [_counted(name + _lambdas_in(dataset), dataset)]
    origin, *stages = dataset.parts
    return _origin(origin) + described_stages(stages, dataset.given_epochs)


def described_stages(stages: Sequence[Any], epochs: Epochs = ONCE) -> list[str]:
    """Stages as they print, without what differs between processes, and how often they run."""
    parts = [_lasting(str(stage)) + _lambdas_in(stage.configuration) for stage in stages]
    return parts if epochs == ONCE else [*parts, str(epochs)]


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


def _lambdas_in(value: Any, depth: int = _DEPTH) -> str:
    """The digest of each lambda in a stage's attributes, which all print alike."""
    if isinstance(value, FunctionType):
        digest = hashlib.blake2b(repr(_facts_of_code(value.__code__)).encode(), digest_size=4)
        return f" [code {digest.hexdigest()}]" if value.__name__ == "<lambda>" else ""
    if isinstance(value, functools.partial):
        value = [value.func, *value.args, *value.keywords.values()]
    elif is_dataclass(value):
        value = getattr(value, "__dict__", {})
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return ""
    if depth == 0 or len(value) > _MOST_PARTS:
        return ""
    return "".join(_lambdas_in(part, depth - 1) for part in value)


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
