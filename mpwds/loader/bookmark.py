"""Where a loader's iteration stands, and where the next one is to begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mpwds.loader.progress import EpochProgress
from mpwds.loader.state import (
    VERSION,
    Facts,
    described,
    field,
    progress_as_state,
    progress_from_state,
    replayed_because,
)
from mpwds.loader.worker_iterator import replays_because
from mpwds.pipeline.repetitions import is_repetition
from mpwds.warn import warn

if TYPE_CHECKING:
    from mpwds.loader.loader_pipeline import LoaderStages


class Bookmark:
    """The progress of a loader's epoch, and of one that was loaded and has not begun here."""

    def __init__(self) -> None:
        self._progress: EpochProgress | None = None
        self._loaded: EpochProgress | None = None
        self._behind: int | None = None  # number of the epoch that comes after the one that was loaded
        self._dataset: list[str] | None = None

    def facts(self, loader: LoaderStages, stages: list[str] | None = None) -> Facts:
        """What a state depends on, of the loader or of stages behind it."""
        if self._dataset is None:
            self._dataset = described(loader.dataset)
        return Facts.of(loader, self._dataset, stages)

    def begin(self, loader: LoaderStages, epoch: int, progress: EpochProgress | None) -> EpochProgress:
        """The progress of an epoch that begins.

        Args:
            loader: The loader.
            epoch: The epoch's number.
            progress: Where it begins; where it was loaded, or at its start, if that is not said.
        """
        if progress is None and is_repetition(epoch):  # another pass, of an epoch that is made even
            return EpochProgress.at_start(epoch, max(loader.workers, 1))
        loaded, self._loaded = self._loaded, None
        if progress is None:
            continues = loaded is not None and loaded.epoch == epoch
            progress = loaded if continues else EpochProgress.at_start(epoch, max(loader.workers, 1))
        assert progress is not None
        _warn_of_replay(loader, progress)
        self._progress = progress
        return progress

    @property
    def progress(self) -> EpochProgress:
        """The progress of the epoch that began last."""
        if self._progress is None:
            raise LookupError("no epoch has begun")
        return self._progress

    def handed(self, epoch: int) -> int:
        """Batches of an epoch that the consumer got before it begins here."""
        loaded = self._loaded
        return loaded.delivered + loaded.repeated if loaded is not None and loaded.epoch == epoch else 0

    def epoch_behind(self, epoch: int) -> int:
        """The number of the epoch that comes after ``epoch``, which begins."""
        behind, self._behind = self._behind, None
        return epoch + 1 if behind is None else behind

    def turn_to(self, epoch: int) -> None:
        """The next epoch is to be number ``epoch``."""
        self._behind = None
        loaded = self._loaded
        if loaded is not None and loaded.epoch != epoch:
            self._loaded = None
            if loaded.delivered:
                warn(
                    f"set_epoch({epoch}) begins another epoch than number {loaded.epoch}, which "
                    "load_state_dict was to continue: what is left of that is not delivered",
                    UserWarning,
                )
        if self._progress is not None and not self._progress.running:
            self._progress = None

    def state_dict(self, loader: LoaderStages) -> dict[str, Any]:
        """The loader's state."""
        progress, behind = self._progress, loader._epoch
        if self._loaded is not None:
            progress = self._loaded
            behind = progress.epoch + 1 if self._behind is None else self._behind
        if progress is None or progress.finished:
            progress, behind = (
                EpochProgress.at_start(loader._epoch, max(loader.workers, 1)),
                loader._epoch + 1,
            )
        return {
            "version": VERSION,
            "kind": "MultiLoader",
            "facts": dict(vars(self.facts(loader))),
            "behind": behind,
            **progress_as_state(progress),
        }

    def expect(self, epoch: int, behind: int) -> int:
        """The next epoch is to be number ``epoch``, which is returned, and the one after that ``behind``."""
        self._loaded, self._behind = None, behind
        return epoch

    def load(self, loader: LoaderStages, state: Mapping[str, Any]) -> int:
        """Takes a state; returns the number of the epoch that it continues."""
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
        self._loaded, self._behind = progress, field(state, "behind", int)
        return progress.epoch


def _warn_of_replay(loader: LoaderStages, progress: EpochProgress) -> None:
    reasons = [replays_because(loader.dataset), *(worker.stateless for worker in progress.workers)]
    reason = next(filter(None, reasons), "")
    if reason and progress.replayed:
        # The user's ``for`` statement, above: this function, begin, _iterate and __iter__.
        warn(
            f"{reason}: the epoch is continued by running it again from its start, without the "
            f"{progress.delivered} batches that were delivered",
            UserWarning,
        )
