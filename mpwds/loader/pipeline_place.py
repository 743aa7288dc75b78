"""Where the iteration of stages behind a loader stands, and where the next one is to begin."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mpwds.loader.state import VERSION, described_stages, field
from mpwds.pipeline.context import Context
from mpwds.pipeline.epochs import ONCE
from mpwds.pipeline.filter import plain
from mpwds.pipeline.stream import Stream

if TYPE_CHECKING:
    from mpwds.loader.loader_pipeline import LoaderPipeline


class _Run:
    """One iteration of a pipeline.

    Attributes:
        epoch: Its number.
        stream: Its stream, while it runs.
        left: The state in which it was left, if it was before its end.
    """

    def __init__(self, epoch: int, stream: Stream[Any]) -> None:
        self.epoch = epoch
        self.stream: Stream[Any] | None = stream
        self.left: dict[str, Any] | None = None

    def elements(self, stream: Stream[Any]) -> Iterator[Any]:
        """The stream's elements. When they are dropped, nothing is kept of them but the state."""
        try:
            yield from plain(stream)
            self.stream = None
        finally:
            if self.stream is not None:
                self.left, self.stream = self.stream.state_dict(), None


class PipelinePlace:
    """The last iteration of a pipeline behind a loader, and a state that was loaded and not begun."""

    def __init__(self) -> None:
        self._run: _Run | None = None
        self._loaded: Mapping[str, Any] | None = None

    def __reduce__(self) -> Any:
        return PipelinePlace, ()  # a copy of a pipeline begins anew

    def iterate(self, pipeline: LoaderPipeline, epoch: int) -> Iterator[Any]:
        """Begins an epoch, or continues it if it is the one that was loaded."""
        loaded, self._loaded, self._run = self._loaded, None, None
        stream = pipeline.stream(Context.current(epoch))
        if loaded is not None:
            if loaded["epoch"] == epoch:
                stream.load_state_dict(loaded["run"])
            elif loaded["run"]["delivered"]:
                warnings.warn(
                    f"epoch {epoch} begins, not number {loaded['epoch']}, which load_state_dict was to "
                    "continue: what is left of that is not delivered",
                    stacklevel=3,
                )
        self._run = run = _Run(epoch, stream)
        return run.elements(stream)

    def turn_away(self) -> None:
        """The next epoch is another than that behind the last one, unless that still runs."""
        if self._run is not None and self._run.stream is None:
            self._run = None

    def state_dict(self, pipeline: LoaderPipeline) -> dict[str, Any]:
        """The pipeline's state."""
        loader, run = pipeline.loader, self._run
        if self._loaded is not None:
            return dict(self._loaded)
        if run is not None and run.stream is not None:
            epoch, behind, state = run.epoch, loader._epoch, run.stream.state_dict()
        elif run is not None and run.left is not None:
            epoch, behind, state = run.epoch, loader._epoch, run.left
        else:
            epoch, behind, state = loader._epoch, loader._epoch + 1, {"delivered": 0}
        return {
            "version": VERSION,
            "kind": "LoaderPipeline",
            "facts": dict(vars(loader._bookmark.facts(loader, _described(pipeline)))),
            "epoch": epoch,
            "behind": behind,
            "run": state,
        }

    def load(self, pipeline: LoaderPipeline, state: Mapping[str, Any]) -> None:
        """Takes a state."""
        loader = pipeline.loader
        loader._bookmark.facts(loader, _described(pipeline)).check(state)
        epoch, behind = field(state, "epoch", int), field(state, "behind", int)
        field(field(state, "run", dict), "delivered", int)
        self._loaded, self._run = state, None
        loader._epoch = loader._bookmark.expect(epoch, behind)


def _described(pipeline: LoaderPipeline) -> list[str]:
    stages = described_stages(pipeline.stages)
    return stages if pipeline._epochs == ONCE else [*stages, str(pipeline._epochs)]
