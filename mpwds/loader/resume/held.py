"""The batches that stages after a loader hold, in their state: which are needed, and whose they are.

A state of stages is nested: ``"source"`` is the state of the stage before, and the innermost that of the
loader's batches. ``"held"`` lists addresses of elements that a stage has taken from the one before. Each is
composed of addresses of batches, ``("batch", stream, number)``. A stage whose state has ``"unused"``, too,
may begin with what others held: it gives the same elements then, in another order. So held elements can go
with their streams to other ranks. ``"unused"`` is what is left of each element, or ``None`` for all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from mpwds.loader.resume.progress import unpack_state

BATCH = "batch"
"""Begins the address of a loader's batch, which stages put into theirs."""

Batch: TypeAlias = "tuple[int, int]"
"""The stream, and the batch's number among that stream's."""

Held: TypeAlias = "list[list[tuple[Any, Any]]]"
"""For each stage, the last one first, the addresses that it holds, and what is left of their elements."""


def reduced_to_needed(state: Any) -> Any:
    """The state of the last stage after a loader, reduced to what resuming needs.

    Of each stream, the last state before all batches that stages hold parts of. It names these batches, so
    that they can be fetched while it is loaded. LookupError if a stage lacks the state of the one before it.
    """
    loaded = _needed(state)
    for progress in loaded["streams"]:
        progress["states"] = [[at, unpack_state(packed)] for at, packed in progress["states"]]
    return _with_loaded(state, loaded)


def _with_loaded(state: Mapping[str, Any], loaded: Any) -> dict[str, Any]:
    if "source" in state:
        return {**state, "source": _with_loaded(state["source"], loaded)}
    return {"loaded": loaded}


def _needed(state: Any) -> Any:
    *stages, batches = _levels(state)
    if "loaded" not in batches:
        raise LookupError('the state of a stage lacks that of the stage before it, as "source"')
    held = Counter(batch for stage in stages for batch in _batches_in(stage.get("held", ())))
    loaded, firsts = batches["loaded"], dict[int, int]()
    for stream, number in held:
        firsts[stream] = min(number, firsts.get(stream, number))
    streams = []
    for stream, progress in zip(loaded["numbers"], loaded["streams"], strict=True):
        first = firsts.get(stream, progress["delivered"])
        states = [entry for entry in progress["states"] if entry[0] <= first]
        streams.append({**progress, "states": states[-1:]})
    return {**loaded, "streams": streams, "held": [[*batch, count] for batch, count in sorted(held.items())]}


def by_streams(state: Any, names: Sequence[str]) -> tuple[list[Any], list[Held]]:
    """The progress of each stream that a rank carries, and the elements that stages hold of it.

    Raises LookupError if other ranks cannot go on with it: a stage, one of ``names``, has other state, or
    holds an element that was made of several streams, or of a batch that cannot be made again.
    """
    *stages, batches = _levels(state)
    loaded = batches["loaded"]
    held: dict[int, Held] = {stream: [[] for _ in stages] for stream in loaded["numbers"]}
    for depth, stage in enumerate(stages):
        name = names[-1 - depth] if len(names) == len(stages) else f"one of {', '.join(names)}"
        if "unused" not in stage and len(stage) > 1:
            raise LookupError(f"{name} counts elements of its rank, or does not say that it takes others'")
        addresses = stage.get("held", ())
        for entry in zip(addresses, stage.get("unused") or [None] * len(addresses), strict=True):
            streams = {stream for stream, _ in _batches_in(entry[:1])}
            if len(streams) != 1:
                raise LookupError(f"{name} holds elements that cannot be traced to one stream")
            held[streams.pop()][depth].append(entry)
    return loaded["streams"], list(held.values())


def begun_with(state: Any, held: Sequence[Held], loaded: Any) -> Any:
    """The state of stages at their start, but with what others held of streams that are ``loaded``."""
    *stages, _ = _levels(state)
    for depth, stage in enumerate(stages):
        if entries := [entry for stream in held for part in stream[depth : depth + 1] for entry in part]:
            stage["held"] = [address for address, _ in entries]
            stage["unused"] = [left for _, left in entries]
    state = _with_loaded(state, loaded)
    return _with_loaded(state, _needed(state))


def _levels(state: Mapping[str, Any]) -> list[Any]:
    levels = [state]
    while "source" in levels[-1]:
        levels.append(levels[-1]["source"])
    return levels


def _batches_in(addresses: Any) -> Iterator[Batch]:
    """The batches in addresses that stages composed of theirs."""
    if isinstance(addresses, (list, tuple)):
        if len(addresses) == 3 and addresses[0] == BATCH and isinstance(addresses[1], int):
            yield addresses[1], addresses[2]
        else:
            for address in addresses:
                yield from _batches_in(address)
