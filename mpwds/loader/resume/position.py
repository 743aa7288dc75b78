"""The position of a loader: how far its last epoch is, and where the next one begins.

Users save it as a state, with the facts that it depends on. They are checked when a state is loaded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from mpwds.loader.resume.progress import EpochProgress, field_of, own_streams, warn_of_empty_epoch, wrong
from mpwds.pipeline.coercion import takes_any_order
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline, is_pipeline
from mpwds.pipeline.epochs import is_repetition
from mpwds.warn import warn

VERSION = 12  # of states


class Resumable(Protocol):
    """The attributes of a loader that its position depends on; see ``MultiLoader``."""

    dataset: Any
    workers: int
    in_order: bool
    seed: int | None
    streams: int | None
    even: Any
    _epoch: int


class Epoch(Protocol):
    """An epoch that has begun: of a loader's workers (``EpochProgress``), or of stages after the loader."""

    epoch: int
    running: bool
    finished: bool

    @property
    def resumed(self) -> bool: ...

    def mark_delivered(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...


class LoaderPosition:
    """The last epoch of a loader or of stages after it, and a loaded state whose epoch has not begun yet.

    Methods take the loader rather than keep it: a loader that nothing else refers to ends its workers. With
    ``stages``, the descriptions of the stages after it, the position is theirs.
    """

    def __init__(self) -> None:
        self.last: Epoch = _nothing_begun()  # the epoch that began last
        self._loaded: dict[str, Any] | None = None

    def __reduce__(self) -> Any:
        return LoaderPosition, ()  # a copy of a pipeline begins again

    def begin(self, loader: Resumable, epoch: int, progress: EpochProgress | None) -> EpochProgress:
        """Begins an epoch of a loader at a progress: by default where a state was loaded, or at its start."""
        if progress is None:
            if is_repetition(epoch):  # another pass, to make an epoch even
                return _at_start(loader, epoch)
            loaded = self.take_loaded(epoch)
            progress = _at_start(loader, epoch) if loaded is None else EpochProgress.from_dict(loaded)
            progress.passed = 0 if loaded is None else loaded.get("passed", 0)
            progress.loaded = progress.delivered or progress.passed
        self._loaded, self.last = None, progress
        _warn_of_replay(loader, progress)
        return progress

    def delivered_before(self, epoch: int) -> int:
        """The number of an epoch's elements that the program got before it begins here."""
        loaded = self._loaded
        return 0 if loaded is None or loaded["epoch"] != epoch else loaded["delivered"] + loaded["repeated"]

    def has_moved(self, epoch: int) -> bool:
        """True if other ranks began the epoch, with what the stages after the loader held there."""
        return (
            self._loaded is not None and self._loaded["epoch"] == epoch and self._loaded.get("moved", False)
        )

    def set_epoch(self) -> None:
        """Forgets an epoch that was left: the next one was set."""
        if not (self.last.running or self.last.finished):
            self.last = _nothing_begun()

    def state_dict(self, loader: Resumable, stages: list[str] | None = None) -> dict[str, Any]:
        """The state after the last element that the program got, or at the start of the next epoch."""
        if self._loaded is not None and self._loaded["epoch"] == loader._epoch:
            return _named(loader, stages, self._loaded)
        last, epoch = self.last, loader._epoch
        if not last.finished:
            epoch = last.epoch
            state = last.state_dict()
        elif stages is None:
            start = _at_start(loader, epoch)
            if isinstance(last, EpochProgress) and last.epoch == epoch - 1:
                for stream, ended in zip(start.streams, last.streams, strict=False):
                    stream.before = ended.delivered
            state = start.state_dict()
        else:
            state = {"delivered": 0, "repeated": 0, "moved": False}
        kind = "MultiLoader" if stages is None else "LoaderPipeline"
        state = {"version": VERSION, "kind": kind, "facts": facts_of(loader, stages), **state, "epoch": epoch}
        return _named(loader, stages, state)

    def load(self, loader: Resumable, state: Any, stages: list[str] | None = None) -> int:
        """Loads a state, and returns the number of the epoch that it continues."""
        facts = facts_of(loader, stages)
        # Ranks that train together are at the same batch, and some trainers save the state of rank 0 for all.
        lasting = {name: fact for name, fact in facts.items() if name != "rank"}
        if loader.streams is not None:
            del lasting["world_size"]
            if stages is None:  # otherwise the epoch may run again
                del lasting["in_order"]
        check(state, "MultiLoader" if stages is None else "LoaderPipeline", lasting)
        if loader.streams is not None:
            from mpwds.loader.resume.streams import of_rank, stages_of_rank

            state = (of_rank if stages is None else stages_of_rank)(state, facts)
        epoch: int = field_of(state, "epoch", int)
        delivered, repeated = field_of(state, "delivered", int), field_of(state, "repeated", int)
        field_of({"passed": 0, **state}, "passed", int)
        streams = [] if stages is not None else EpochProgress.from_dict(state).streams
        if stages is None and loader.streams is None and len(streams) != facts["workers"]:
            raise wrong("streams", f"the progress of {facts['workers']} workers", len(streams))
        saved, here = state["facts"].get("rank"), facts["rank"]
        if saved != here:  # its counts are of use
            because = f"the state is that of rank {saved}, this is rank {here}"
            state = {**state, "facts": facts}
            if stages is not None:
                state |= {"delivered": delivered + repeated, "repeated": 0, "stages": None, "replay": because}
            elif delivered and (
                takes_any_order(loader.dataset) or (not loader.in_order and facts["workers"] > 1)
            ):
                raise ValueError(f"{because}: with in_order=False each rank saves and loads its own")
            else:  # how its workers shared the batches is of no use: this rank's streams have other lengths
                passed = delivered + repeated
                state |= {"delivered": passed, "repeated": 0, "passed": passed}
                state["streams"] = [{"delivered": 0, "states": [], "stateless": because} for _ in streams]
        self._loaded, self.last = dict(state), _nothing_begun()
        return epoch

    def take_loaded(self, epoch: int) -> dict[str, Any] | None:
        loaded, self._loaded = self._loaded, None
        if loaded is None or loaded["epoch"] == epoch:
            return loaded
        if loaded["delivered"] or loaded.get("moved"):
            warn(
                f"epoch {epoch} begins, which drops the rest of epoch {loaded['epoch']} that load_state_dict "
                "was to continue",
                UserWarning,
            )
        return None


@contextlib.contextmanager
def beginning(loader: Resumable, *positions: LoaderPosition) -> Iterator[int]:
    """Inside, the loader's next epoch begins, whose number this yields; it counts once it has begun.

    An exception leaves the positions as they were: the next attempt begins the same epoch at the same place.
    """
    epoch, before = loader._epoch, [dict(vars(position)) for position in positions]
    loader._epoch = epoch + 1
    try:
        yield epoch
    except BaseException:
        loader._epoch = epoch
        for position, attributes in zip(positions, before, strict=True):
            vars(position).update(attributes)
        raise


class DeliveredCounter(Iterator[Any]):
    """The last step of an epoch whose earlier steps take batches ahead: counts a batch when it is yielded."""

    def __init__(self, source: Iterator[Any], epoch: Epoch) -> None:
        self._source = source
        self._epoch = epoch
        self._failed = False
        self._is_empty = epoch.resumed

    def __next__(self) -> Any:
        try:
            batch = next(self._source)
        except StopIteration:
            self._epoch.finished = not self._failed
            if self._is_empty and not self._failed:
                self._is_empty = False  # to warn once
                warn_of_empty_epoch()
            raise
        except BaseException:
            self._failed = True
            raise
        self._is_empty = False
        self._epoch.mark_delivered()
        return batch


def _nothing_begun() -> EpochProgress:
    return EpochProgress(0, [], finished=True)


def _at_start(loader: Resumable, epoch: int) -> EpochProgress:
    return EpochProgress.at_start(epoch, len(_streams(loader)))


def _named(loader: Resumable, stages: list[str] | None, state: dict[str, Any]) -> dict[str, Any]:
    """A state as it is saved: streams of the job have names."""
    if loader.streams is None:
        return dict(state)
    from mpwds.loader.resume.streams import numbered, with_stages

    if stages is not None:
        return with_stages(state, stages, _streams(loader))
    return {**state, "streams": numbered(state["streams"], _streams(loader), state["epoch"])}


def _streams(loader: Resumable) -> range:
    return own_streams(loader.streams, loader.workers, Context.current())


def _warn_of_replay(loader: Resumable, progress: EpochProgress) -> None:
    if not progress.replayed + progress.passed:
        return
    dataset, reason = loader.dataset, ""
    if is_pipeline(dataset) and (unaddressed := dataset.non_resumable_part):
        reason = f"{unaddressed} gives elements without addresses"
    for stream in progress.streams:
        reason = reason or stream.stateless
    if reason:
        warn(
            f"{reason}: the epoch is continued by running it again from its start, without the "
            f"{progress.delivered or progress.passed} batches that were delivered",
            UserWarning,
        )


def keeps_order(loader: Resumable) -> bool:
    """True if the loader delivers in the same order each time: one worker does, if it has one stream."""
    return bool(loader.in_order) or (loader.workers < 2 and loader.streams is None)


def facts_of(loader: Resumable, stages: list[str] | None) -> dict[str, Any]:
    """The facts that a state depends on: under others, samples would be lost or repeated."""
    from mpwds.loader.resume.description import described

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


def seed_of(loader: Resumable) -> int | None:
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
            f"this is no loader's state, which has a version: {', '.join(map(str, state)) or 'an empty dict'}"
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
