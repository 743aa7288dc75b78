"""A loader's state as users save it: the facts that it depends on, and their check when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpwds.loader.resume.description import described
from mpwds.loader.resume.progress import field_of
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline

VERSION = 9


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
    if version is None:
        raise ValueError(
            f"this is no loader's state, which has a version: a dict of {', '.join(map(str, state))}"
        )
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
            how = '; a run with streams= may change it (guide "Elastic runs")' if elastic else ""
            how = '; the guide "Checkpoints and exact resume" tells what counts' if name == "dataset" else how
            raise ValueError(
                f"{name} of the loader changed since the state was saved ({_difference(before, now)}): load "
                f"it into a loader with the same arguments, or begin the epoch again{how}"
            )


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, list) and isinstance(now, list):
        for number, (old, new) in enumerate(zip(before, now, strict=False), 1):
            if old != new:
                return f"part {number} was {old}, is {new}"
    return f"it was {before!r}, is {now!r}"
