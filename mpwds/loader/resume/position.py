"""Where the iteration of a loader, or of stages behind it, is, and where the next one begins."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from mpwds.loader.resume.progress import EpochProgress
from mpwds.loader.resume.state import (
    VERSION,
    check,
    facts_of,
    field,
    progress_as_state,
    progress_from_state,
    wrong,
)
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import is_repetition
from mpwds.pipeline.iterable_sources import iterates_itself
from mpwds.warn import warn

if TYPE_CHECKING:
    from mpwds.loader.resume.resumable_stream import StagesStream


class Resumable:
    """The attributes of a loader that a position depends on; see ``MultiLoader``."""

    dataset: Any
    workers: int
    in_order: bool
    seed: int | None
    _epoch: int


class LoaderPosition:
    """The last epoch of a loader or of stages behind it, and a loaded state whose epoch has not begun yet.

    Methods take the loader rather than keep it: a loader that nothing else refers to ends its workers. With
    ``stages``, the descriptions of the stages behind it, the position is theirs.
    """

    def __init__(self) -> None:
        self.last: EpochProgress | StagesStream = _nothing_begun()  # the epoch that began last
        self._loaded: dict[str, Any] | None = None

    def __reduce__(self) -> Any:
        return LoaderPosition, ()  # a copy of a pipeline begins again

    def begin(self, loader: Resumable, epoch: int, progress: EpochProgress | None) -> EpochProgress:
        """Begins an epoch of a loader at a progress: by default where a state was loaded, or at its start."""
        if progress is None:
            if is_repetition(epoch):  # another pass, to make an epoch even
                return _at_start(loader, epoch)
            loaded = self._take_loaded(epoch)
            progress = _at_start(loader, epoch) if loaded is None else progress_from_state(loaded)
            progress.loaded = progress.delivered
        self._loaded, self.last = None, progress
        _warn_of_replay(loader, progress)
        return progress

    def begin_stages(self, stream: StagesStream, ahead: bool) -> Generator[Any, None, None]:
        """Begins an epoch of stages, or continues it if its state was loaded.

        With ``ahead``, a later step takes elements ahead, and counts those that the program gets.
        """
        if is_repetition(stream.epoch):
            return stream.elements()
        handed_over = self.handed_over(stream.epoch) if ahead else None
        if (loaded := self._take_loaded(stream.epoch)) is not None:
            stream.load_state_dict(loaded)
        stream.handed_over = handed_over
        self.last = stream
        return stream.elements()

    def handed_over(self, epoch: int) -> int:
        """How many elements of an epoch the program got before it begins here."""
        loaded = self._loaded
        return 0 if loaded is None or loaded["epoch"] != epoch else loaded["delivered"] + loaded["repeated"]

    def set_epoch(self) -> None:
        """Forgets the last epoch, unless it still runs: the next one was set."""
        if not self.last.running:
            self.last = _nothing_begun()

    def state_dict(self, loader: Resumable, stages: list[str] | None = None) -> dict[str, Any]:
        """The state behind the last element that the program got, or at the start of the next epoch."""
        if self._loaded is not None and self._loaded["epoch"] == loader._epoch:
            return dict(self._loaded)
        last, epoch = self.last, loader._epoch
        if not last.finished:
            epoch = last.epoch
            state = progress_as_state(last) if isinstance(last, EpochProgress) else last.state_dict()
        elif stages is None:
            state = progress_as_state(_at_start(loader, epoch))
        else:
            state = {"delivered": 0, "repeated": 0}
        kind = "MultiLoader" if stages is None else "LoaderPipeline"
        return {"version": VERSION, "kind": kind, "facts": facts_of(loader, stages), **state, "epoch": epoch}

    def load(self, loader: Resumable, state: Any, stages: list[str] | None = None) -> int:
        """Loads a state, and returns the number of the epoch that it continues."""
        facts = facts_of(loader, stages)
        # Ranks that train together are at the same batch, and some trainers save the state of rank 0 for all.
        lasting = {name: fact for name, fact in facts.items() if name != "rank"}
        check(state, "MultiLoader" if stages is None else "LoaderPipeline", lasting)
        epoch: int = field(state, "epoch", int)
        delivered, repeated = field(state, "delivered", int), field(state, "repeated", int)
        workers = [] if stages is not None else progress_from_state(state).workers
        if stages is None and len(workers) != facts["workers"]:
            raise wrong("workers", f"the progress of {facts['workers']} workers", len(workers))
        saved, here = state["facts"].get("rank"), facts["rank"]
        if saved != here:  # its counts are of use
            because = f"the state is that of rank {saved}, this is rank {here}"
            state = {**state, "facts": facts}
            if stages is not None:
                state |= {"delivered": delivered + repeated, "repeated": 0, "stages": None, "replay": because}
            elif delivered and not loader.in_order and facts["workers"] > 1:
                raise ValueError(f"{because}: with in_order=False each rank saves and loads its own")
            else:
                state["workers"] = [
                    {"delivered": worker.delivered, "states": [], "stateless": because} for worker in workers
                ]
        self._loaded, self.last = dict(state), _nothing_begun()
        return epoch

    def _take_loaded(self, epoch: int) -> dict[str, Any] | None:
        """The state that was loaded for an epoch that begins now."""
        loaded, self._loaded = self._loaded, None
        if loaded is None or loaded["epoch"] == epoch:
            return loaded
        if loaded["delivered"]:
            warn(
                f"epoch {epoch} begins, which drops the rest of epoch {loaded['epoch']} that load_state_dict "
                "was to continue",
                UserWarning,
            )
        return None


@contextlib.contextmanager
def beginning(loader: Resumable, *positions: LoaderPosition) -> Iterator[int]:
    """Inside, the loader's next epoch begins, whose number this yields; it counts once it has begun.

    If an exception keeps it from beginning, the positions stay as they were: the state is still that of the
    epoch before or the loaded one, and the next attempt begins the same epoch at the same place.
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


class CountOnYield(Iterator[Any]):
    """The last step of an epoch whose earlier steps take batches ahead: counts a batch when it is yielded."""

    def __init__(self, source: Iterator[Any], epoch: EpochProgress | StagesStream) -> None:
        self._source = source
        self._epoch = epoch

    def __next__(self) -> Any:
        try:
            batch = next(self._source)
        except StopIteration:
            self._epoch.finished = True
            raise
        self._epoch.hand_over()
        return batch


def _nothing_begun() -> EpochProgress:
    return EpochProgress(0, [], finished=True)


def _at_start(loader: Resumable, epoch: int) -> EpochProgress:
    return EpochProgress.at_start(epoch, max(loader.workers, 1))


def _warn_of_replay(loader: Resumable, progress: EpochProgress) -> None:
    if not progress.replayed:
        return
    dataset, reason = loader.dataset, ""
    pipeline = isinstance(dataset, DataPipeline) and not iterates_itself(dataset)
    if pipeline and (unaddressed := dataset.non_resumable_part):
        reason = f"{unaddressed} gives elements without addresses"
    for worker in progress.workers:
        reason = reason or worker.stateless
    if reason:
        warn(
            f"{reason}: the epoch is continued by running it again from its start, without the "
            f"{progress.delivered} batches that were delivered",
            UserWarning,
        )
