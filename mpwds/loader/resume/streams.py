"""Logical streams: which of them a rank carries, and states that other ranks go on with.

With ``streams=K`` a dataset is dealt to K streams. What a stream gives depends on the dataset, the seed, the
epoch, its number and K. Rank r of W carries the streams r, r + W, ..., and batch n of the job comes from
stream n mod K, so the job's order is the same for every W that divides K. A state names its streams by their
numbers. Any ranks can go on with the states of others, and a stream whose state is missing is made again.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mpwds.loader.resume.held import by_streams
from mpwds.loader.resume.progress import (
    EpochProgress,
    StreamProgress,
    field_of,
    own_streams,
    pack_state,
    unpack_state,
    wrong,
)
from mpwds.pipeline.coercion import takes_any_order
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import is_pipeline


def check_streams(dataset: Any, streams: int, workers: int, even: str | None, in_order: bool) -> None:
    """Raises TypeError or ValueError if a dataset cannot be dealt to streams, or not on this rank."""
    if not is_pipeline(dataset):
        raise TypeError(
            f"streams={streams} needs a pipeline of mpwds, which can be dealt to streams, got {dataset!r}"
        )
    if (part := dataset.self_dividing_part) is not None:
        raise TypeError(
            f"streams={streams}: {part} divides itself among ranks and workers, which are not streams, so "
            "samples would come several times. Give the pipeline shards, a sequence or a map-style dataset"
        )
    if even is not None and (not in_order or takes_any_order(dataset)):
        raise ValueError(
            f"streams={streams} with even={even!r} makes rounds, in which each stream has its turn: use "
            "in_order=True, in the loader and its stages"
        )
    own_streams(streams, workers, Context.current())


def numbered(streams: Sequence[dict[str, Any]], numbers: Sequence[int], epoch: int) -> dict[str, str]:
    """The progress of streams by their names, each as text: tools that save states by key keep it whole."""
    return {
        f"stream{number}": base64.b64encode(pack_state({**stream, "epoch": epoch}, exactly=True)).decode()
        for number, stream in zip(numbers, streams, strict=True)
    }


def with_stages(state: dict[str, Any], names: list[str], numbers: range) -> dict[str, Any]:
    """A state of stages after a loader as it is saved: with each stream goes what the stages hold of it.

    The first stream's entry has all of the stages' state, too, for the rank that saved it. ``names`` are
    those of the stages.
    """
    place = [state["facts"]["rank"], state["facts"]["world_size"]]
    own = {name: value for name, value in state.items() if name in _OF_STAGES}
    saved = {name: value for name, value in state.items() if name not in ("stages", "replay", "held")}
    entries: list[dict[str, Any]] = [StreamProgress(before=0).to_dict() for _ in numbers]
    stages, held, why_not = own.get("stages"), own.get("held"), own.get("replay", "")
    if stages is not None and held is None:
        try:
            entries, held = by_streams(stages, names)
        except LookupError as error:
            why_not = str(error)
    elif stages is not None:  # it was loaded, and nothing has begun
        entries = stages["streams"]
    parts = zip(entries, held or [[]] * len(entries), strict=True)
    entries = [{**entry, "held": part, "why_not": why_not} for entry, part in parts]
    entries[0] |= {"place": place, "own": own}
    return {**saved, "streams": numbered(entries, numbers, state["epoch"])}


def stages_of_rank(state: Mapping[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Undoes :func:`with_stages`; ValueError if this rank's stages cannot go on with what others held."""
    streams, ranks = facts["streams"], facts["world_size"]
    numbers = own_streams(streams, 0, Context.current())
    entries = [_unpacked(state, number) for number in numbers]
    first = entries[0] or {}
    epoch, found = _found(state, streams)
    is_own = first.get("place") == [facts["rank"], ranks]
    if is_own and first["epoch"] == epoch:  # otherwise this rank had finished the epoch
        return {**state, "facts": facts, "epoch": epoch, **field_of(first, "own", dict)}
    if state["epoch"] == epoch and not (field_of(state, "delivered", int) or state.get("moved")):
        return {**state, "facts": facts}  # the epoch begins
    if not any(entries) and _ranks(state) == ranks and not state.get("moved"):
        return dict(state)  # another rank's, whose counts are of use
    for number, entry in zip(numbers, entries, strict=True):
        why_not = "it is not in the state: load those of all ranks (mpwds.merge_states)"
        if entry is None or (why_not := field_of(entry, "why_not", str)):
            raise ValueError(f"this rank cannot go on with stream {number}, which another had: {why_not}")
    progress = [stream for number in numbers if (stream := found[number]) is not None]
    held = [field_of(entry, "held", list) for entry in entries]
    loaded = {**EpochProgress(epoch, progress).state_dict(), "numbers": list(numbers)}
    moved = {"stages": loaded, "held": held, "moved": True}
    return {**state, "facts": facts, "epoch": epoch, "delivered": 0, "repeated": 0, **moved}


_OF_STAGES = ("delivered", "repeated", "stages", "replay", "moved", "held")


def of_rank(state: Mapping[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """The state of this rank's streams, of a state possibly of other ranks. ``facts`` are this loader's.

    Raises ValueError if these ranks cannot go on at this batch, or a stream cannot be made again.
    """
    streams, ranks = facts["streams"], facts["world_size"]
    epoch, saved = _found(state, streams)
    batches, ranks_then = _batches(state), _ranks(state)
    in_turn = _is_in_turn(state)
    if in_turn and batches % ranks:
        step = math.lcm(ranks_then, ranks)
        raise ValueError(
            f"the state was saved after {batches} batches of all ranks, and {ranks} ranks deliver so many "
            f"only in unequal parts: use as many ranks as then ({ranks_then}), or a state after "
            f"{-(-batches // step) * step} batches"
        )
    progress = []
    for number in own_streams(streams, 0, Context.current()):
        found = saved[number]
        if found is None and not in_turn:
            raise ValueError(
                f"the state holds nothing of stream {number}, and how far it was cannot be told, because "
                "streams are not in step: load the states of all ranks (mpwds.merge_states)"
            )
        missing = f"the state of stream {number} is missing"
        progress.append(found or StreamProgress(_turns_of(number, batches, streams), stateless=missing))
    own = EpochProgress(epoch, progress)
    return {**state, **own.state_dict(), "facts": facts, "repeated": field_of(state, "repeated", int)}


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Makes one state of those that ranks saved after the same step, for loaders with ``streams``.

    Any number of ranks that divides the number of streams can load it, each all of it.

    Args:
        states: What ``state_dict()`` of the ranks' loaders returned, in any order. Some may be missing: the
            streams of those ranks are made again from the start of the epoch.

    Raises:
        ValueError: The states are of different loaders, epochs or steps, or of a loader without ``streams``.

    Example:
        >>> import mpwds
        >>> loader = mpwds.MultiLoader(mpwds.DataPipeline(range(8)), workers=0, streams=4)
        >>> merged = mpwds.merge_states([loader.state_dict()])
        >>> sorted(merged["streams"])
        ['stream0', 'stream1', 'stream2', 'stream3']
    """
    if not states:
        raise ValueError("merge_states: no states")
    first, streams = states[0], dict[str, str]()
    for state in states:
        if not (isinstance(state, Mapping) and isinstance(state.get("streams"), Mapping)):
            raise ValueError("merge_states: a state is not that of a loader with streams=")
        for name in ("version", "kind", "facts"):
            if _compared(state, name) != _compared(first, name):
                raise ValueError(f"merge_states: {name} differs from state to state")
        streams.update(state["streams"])
    merged = {**first, "streams": dict(sorted(streams.items()))}
    number = field_of(first["facts"], "streams", int)
    epoch, found = _found(merged, number)
    epochs = {field_of(state, "epoch", int) for state in states}
    if not epochs <= {epoch, epoch + 1}:
        raise ValueError(f"merge_states: epoch differs from state to state: {sorted(epochs)}")
    counts = [field_of(state, "delivered", int) for state in states if state["epoch"] == epoch]
    # Ranks may have gone on from streams that were not in step: in any order, or after one had ended.
    has_ended = any(stream is not None and stream.total is not None for stream in found.values())
    may_differ = not first["facts"]["in_order"] or (has_ended and first["facts"]["even"] is None)
    of_loader = not first["facts"]["stages"]  # stages may take unequal numbers of its batches
    if len(set(counts)) > 1 and of_loader and not may_differ and all(map(_is_in_turn, states)):
        counts = sorted(set(counts))
        raise ValueError(f"merge_states: the ranks saved at different steps, after {counts} batches")
    delivered = max(counts) * _ranks(first)
    if of_loader and len(streams) == number:
        delivered = sum(stream.delivered for stream in found.values() if stream is not None)
    facts = {**first["facts"], "rank": 0, "world_size": 1}
    return {**merged, "epoch": epoch, "delivered": delivered, "facts": facts}


def _compared(state: Mapping[str, Any], name: str) -> Any:
    value = state.get(name)
    return {**value, "rank": None} if isinstance(value, Mapping) else value


def _ranks(state: Mapping[str, Any]) -> int:
    ranks: int = field_of(field_of(state, "facts", dict), "world_size", int)
    return ranks


def _batches(state: Mapping[str, Any]) -> int:
    """The batches of all ranks, which go in step, before the state."""
    delivered: int = field_of(state, "delivered", int)
    return delivered * _ranks(state)


def _turns_of(stream: int, batches: int, streams: int) -> int:
    """Counts those of the job's first batches that come from a stream, if none has ended."""
    return (batches - stream + streams - 1) // streams


def _is_in_turn(state: Mapping[str, Any]) -> bool:
    """True if all streams have delivered what their turns allow: none has ended before."""
    streams, batches = field_of(state["facts"], "streams", int), _batches(state)
    _, found = _found(state, streams)
    return all(
        stream is None or stream.delivered == _turns_of(number, batches, streams)
        for number, stream in found.items()
    )


def _found(state: Mapping[str, Any], streams: int) -> tuple[int, dict[int, StreamProgress | None]]:
    """The epoch of a state, and the progress in it of each stream whose state is there.

    Without ``even``, a rank may have finished an epoch that others are in: its streams are over in that one.
    """
    entries = {number: entry for number in range(streams) if (entry := _unpacked(state, number)) is not None}
    first = min((entry["epoch"] for entry in entries.values()), default=field_of(state, "epoch", int))
    found: dict[int, StreamProgress | None] = dict.fromkeys(range(streams))
    for number, entry in entries.items():
        progress, epoch = StreamProgress.from_dict(entry), entry["epoch"]
        if epoch != first:
            before = progress.before
            if epoch != first + 1 or progress.delivered or before is None:
                raise ValueError(
                    f"epoch differs from state to state: stream {number} is in {epoch}, others in {first}"
                )
            progress = StreamProgress(before, total=before)
        found[number] = progress
    return first, found


def _unpacked(state: Mapping[str, Any], number: int) -> dict[str, Any] | None:
    text = field_of(state, "streams", Mapping).get(f"stream{number}")
    if text is None:
        return None
    try:
        entry = unpack_state(base64.b64decode(text, validate=True))
        field_of(entry, "epoch", int)
        StreamProgress.from_dict(entry)
    except Exception as error:
        raise wrong(f"stream{number}", "what state_dict() gave", text) from error
    return dict(entry)
