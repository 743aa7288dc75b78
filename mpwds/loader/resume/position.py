"""Where the iteration of a loader, or of stages behind it, is, and where the next one begins."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any, Protocol, cast

from mpwds.loader.resume.progress import EpochProgress
from mpwds.loader.resume.state import (
    VERSION,
    Facts,
    described,
    described_stages,
    field,
    progress_as_state,
    progress_from_state,
    replayed_because,
)
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import is_repetition
from mpwds.pipeline.filter import plain
from mpwds.pipeline.parts import culprit, iterates_itself
from mpwds.pipeline.stream import Stream
from mpwds.warn import warn


class Resumable(Protocol):
    """The part of a loader that positions use; see ``MultiLoader``."""

    dataset: Any
    workers: int
    in_order: bool
    seed: int | None
    _epoch: int
    _position: LoaderPosition


class LoaderPosition:
    """How far a loader's epoch is, and the epoch of a loaded state that has not begun yet."""

    def __init__(self) -> None:
        self._progress: EpochProgress | None = None
        self._loaded: EpochProgress | None = None
        self._epoch_after: int | None = None  # the number of the epoch after the loaded one
        self._dataset: list[str] | None = None

    def facts(self, loader: Resumable, stages: list[str] | None = None) -> Facts:
        """The facts that a state of the loader, or of stages behind it, depends on."""
        if self._dataset is None:
            self._dataset = described(loader.dataset)
        return Facts.of(loader, self._dataset, stages)

    def begin(self, loader: Resumable, epoch: int, progress: EpochProgress | None) -> EpochProgress:
        """Begins an epoch at a progress: by default where a state was loaded, or at the epoch's start."""
        if progress is None and is_repetition(epoch):  # another pass, to make an epoch even
            return _at_start(loader, epoch)
        loaded, self._loaded = self._loaded, None
        if progress is None:
            progress = loaded if loaded is not None and loaded.epoch == epoch else _at_start(loader, epoch)
        _warn_of_replay(loader, progress)
        self._progress = progress
        return progress

    @property
    def progress(self) -> EpochProgress:
        """The progress of the epoch that began last."""
        if self._progress is None:
            raise LookupError("no epoch has begun")
        return self._progress

    def handed_over(self, epoch: int) -> int:
        """How many batches of an epoch the program got before the epoch begins here."""
        loaded = self._loaded
        return loaded.delivered + loaded.repeated if loaded is not None and loaded.epoch == epoch else 0

    def next_epoch(self, epoch: int) -> int:
        """The number of the epoch after ``epoch``, which begins."""
        after, self._epoch_after = self._epoch_after, None
        return epoch + 1 if after is None else after

    def set_epoch(self, epoch: int) -> None:
        """Makes ``epoch`` the next epoch."""
        self._epoch_after = None
        loaded = self._loaded
        if loaded is not None and loaded.epoch != epoch:
            self._loaded = None
            if loaded.delivered:
                warn(
                    f"set_epoch({epoch}) drops the rest of epoch {loaded.epoch}, which load_state_dict was "
                    "to continue",
                    UserWarning,
                )
        if self._progress is not None and not self._progress.running:
            self._progress = None

    def state_dict(self, loader: Resumable) -> dict[str, Any]:
        """The loader's state."""
        progress, after = self._progress, loader._epoch
        if self._loaded is not None:
            progress = self._loaded
            after = progress.epoch + 1 if self._epoch_after is None else self._epoch_after
        if progress is None or progress.finished:
            progress, after = _at_start(loader, loader._epoch), loader._epoch + 1
        return {
            "version": VERSION,
            "kind": "MultiLoader",
            "facts": dict(vars(self.facts(loader))),
            "epoch_after": after,
            **progress_as_state(progress),
        }

    def expect(self, epoch: int, epoch_after: int) -> int:
        """Makes ``epoch``, which is returned, the next epoch, and ``epoch_after`` the one after that."""
        self._loaded, self._epoch_after = None, epoch_after
        return epoch

    def load(self, loader: Resumable, state: Mapping[str, Any]) -> int:
        """Loads a state, and returns the number of the epoch that it continues."""
        facts = self.facts(loader)
        facts.check(state)
        progress = progress_from_state(state)
        if len(progress.workers) != facts.workers:
            raise ValueError(
                f"a loader's state has the progress of {len(progress.workers)} workers, "
                f"expected {facts.workers}"
            )
        if because := replayed_because(state):
            if progress.delivered and not loader.in_order and facts.workers > 1:
                raise ValueError(f"{because}: with in_order=False each rank saves and loads its own")
            for worker in progress.workers:
                worker.states, worker.stateless = [], because
        progress.loaded = progress.delivered
        self._loaded, self._epoch_after = progress, field(state, "epoch_after", int)
        return progress.epoch


class PipelinePosition:
    """The last iteration of stages behind a loader, and a loaded state whose epoch has not begun yet."""

    def __init__(self) -> None:
        self._run: _Run | None = None
        self._loaded: Mapping[str, Any] | None = None

    def __reduce__(self) -> Any:
        return PipelinePosition, ()  # a copy of a pipeline begins anew

    def iterate(self, pipeline: DataPipeline, epoch: int, ahead: bool) -> Generator[Any, None, None]:
        """Begins an epoch, or continues it if its state was loaded.

        With ``ahead``, a later step takes elements ahead, and counts those that the program gets.
        """
        if is_repetition(epoch):  # another pass, to make an epoch even
            return cast("Generator[Any, None, None]", plain(pipeline.stream(Context.current(epoch))))
        handed_over = self.handed_over(epoch) if ahead else None
        loaded, self._loaded, self._run = self._loaded, None, None
        stream = pipeline.stream(Context.current(epoch))
        if loaded is not None:
            if loaded["epoch"] == epoch:
                stream.load_state_dict(loaded["run"])
            elif loaded["run"]["delivered"]:
                warn(
                    f"epoch {epoch} begins, which drops the rest of epoch {loaded['epoch']} that "
                    "load_state_dict was to continue",
                    UserWarning,
                )
        self._run = run = _Run(epoch, stream, handed_over)
        return run.elements(stream)

    @property
    def run(self) -> _Run:
        """The iteration that began last."""
        if self._run is None:
            raise LookupError("no iteration has begun")
        return self._run

    def handed_over(self, epoch: int) -> int:
        """How many elements of an epoch the program got before the epoch begins here."""
        if self._loaded is None or self._loaded["epoch"] != epoch:
            return 0
        run = self._loaded["run"]
        return int(run["delivered"] + run.get("repeated", 0))

    def set_epoch(self) -> None:
        """Forgets the last iteration, unless it still runs: the next epoch was set."""
        if self._run is not None and not self._run.running:
            self._run = None

    def state_dict(self, pipeline: DataPipeline, loader: Resumable) -> dict[str, Any]:
        """The pipeline's state."""
        run = self._run
        if self._loaded is not None:
            return dict(self._loaded)
        state = None if run is None else run.state()
        if run is not None and state is not None:
            epoch, after = run.epoch, loader._epoch
        else:
            epoch, after, state = loader._epoch, loader._epoch + 1, {"delivered": 0}
        return {
            "version": VERSION,
            "kind": "LoaderPipeline",
            "facts": dict(vars(self._facts(pipeline, loader))),
            "epoch": epoch,
            "epoch_after": after,
            "run": state,
        }

    def load(self, pipeline: DataPipeline, loader: Resumable, state: Mapping[str, Any]) -> None:
        """Loads a state."""
        self._facts(pipeline, loader).check(state)
        epoch, after = field(state, "epoch", int), field(state, "epoch_after", int)
        run = field(state, "run", dict)
        delivered = field(run, "delivered", int)
        if because := replayed_because(state):
            count = delivered + field({"repeated": 0, **run}, "repeated", int)
            facts = {**state["facts"], "rank": Context.current().rank}
            state = {**state, "facts": facts, "run": {"delivered": count, "replay": because}}
        self._loaded, self._run = state, None
        loader._epoch = loader._position.expect(epoch, after)

    def _facts(self, pipeline: DataPipeline, loader: Resumable) -> Facts:
        return loader._position.facts(loader, described_stages(pipeline.stages, pipeline._epochs))


class _Run:
    """One iteration of a pipeline.

    Args:
        epoch: Its number; also an attribute.
        stream: Its stream.
        handed_over: Elements that the program got before; ``None`` if it gets each as soon as it is made.

    Attributes:
        finished: It is at its end.
    """

    def __init__(self, epoch: int, stream: Stream[Any], handed_over: int | None) -> None:
        self.epoch = epoch
        self.finished = False
        self._stream: Stream[Any] | None = stream
        self._left: dict[str, Any] | None = None
        self._handed_over = handed_over

    @property
    def running(self) -> bool:
        """Whether elements may still come."""
        return self._stream is not None

    def elements(self, stream: Stream[Any]) -> Generator[Any, None, None]:
        """The stream's elements. When the iterator is dropped, only the state is kept."""
        try:
            yield from plain(stream)
            self.finished = self._handed_over is None
        finally:
            if not self.finished:
                self._left = stream.state_dict()
            self._stream = None

    def hand_over(self) -> None:
        """Counts an element that the program gets."""
        self._handed_over = (self._handed_over or 0) + 1

    def state(self) -> dict[str, Any] | None:
        """The state behind the last element that the program got; ``None`` at the end."""
        if self.finished:
            return None
        state = self._left if self._stream is None else self._stream.state_dict()
        if state is None or self._handed_over is None:
            return state
        made = state["delivered"]
        if self._handed_over < made:
            return {"delivered": self._handed_over, "replay": "batches were made ahead, for an even epoch"}
        return {**state, "repeated": self._handed_over - made}


class CountOnYield(Iterator[Any]):
    """The last step of an epoch whose earlier steps take batches ahead: counts a batch when it is yielded."""

    def __init__(self, source: Iterator[Any], epoch: EpochProgress | _Run) -> None:
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


def _at_start(loader: Resumable, epoch: int) -> EpochProgress:
    return EpochProgress.at_start(epoch, max(loader.workers, 1))


def _replays_because(dataset: Any) -> str:
    """Why a dataset has no state, so that an epoch is resumed by running it from its start; or nothing."""
    if isinstance(dataset, DataPipeline) and not iterates_itself(dataset):
        unaddressed = culprit(dataset)
        return "" if unaddressed is None else f"{unaddressed} gives elements without addresses"
    return f"a {type(dataset).__name__} has no state"


def _warn_of_replay(loader: Resumable, progress: EpochProgress) -> None:
    reasons = [_replays_because(loader.dataset), *(worker.stateless for worker in progress.workers)]
    reason = next(filter(None, reasons), "")
    if reason and progress.replayed:
        warn(
            f"{reason}: the epoch is continued by running it again from its start, without the "
            f"{progress.delivered} batches that were delivered",
            UserWarning,
        )
