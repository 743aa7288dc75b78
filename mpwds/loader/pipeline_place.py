"""Where the iteration of stages behind a loader stands, and where the next one is to begin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mpwds.loader.even import is_to_be_even
from mpwds.loader.state import VERSION, described_stages, field, replayed_because
from mpwds.pipeline.context import Context
from mpwds.pipeline.epochs import ONCE
from mpwds.pipeline.filter import plain
from mpwds.pipeline.repetitions import is_repetition
from mpwds.pipeline.stream import Stream
from mpwds.warn import warn

if TYPE_CHECKING:
    from mpwds.loader.loader_pipeline import LoaderPipeline


class _Run:
    """One iteration of a pipeline.

    Args:
        epoch: Its number.
        stream: Its stream.
        handed: Elements that the program got before; ``None`` if it gets each as soon as it is made.

    Attributes:
        epoch: Its number.
        finished: It is at its end.
    """

    def __init__(self, epoch: int, stream: Stream[Any], handed: int | None) -> None:
        self.epoch = epoch
        self.finished = False
        self._stream: Stream[Any] | None = stream
        self._left: dict[str, Any] | None = None
        self._handed = handed

    @property
    def running(self) -> bool:
        """Whether elements may still come."""
        return self._stream is not None

    def elements(self, stream: Stream[Any]) -> Iterator[Any]:
        """The stream's elements. When they are dropped, nothing is kept of them but the state."""
        try:
            yield from plain(stream)
            self.finished = self._handed is None
        finally:
            if not self.finished:
                self._left = stream.state_dict()
            self._stream = None

    def hand_on(self) -> None:
        """Counts an element that the program got."""
        self._handed = (self._handed or 0) + 1

    def state(self) -> dict[str, Any] | None:
        """The state behind the last element that the program got; ``None`` at the end."""
        state = self._left if self._stream is None else self._stream.state_dict()
        if state is None or self.finished or self._handed is None:
            return None if self.finished else state
        made = state["delivered"]
        if self._handed < made:
            return {"delivered": self._handed, "replay": "batches were made ahead, for an even epoch"}
        return {**state, "repeated": self._handed - made}


class PipelinePlace:
    """The last iteration of a pipeline behind a loader, and a state that was loaded and not begun."""

    def __init__(self) -> None:
        self._run: _Run | None = None
        self._loaded: Mapping[str, Any] | None = None

    def __reduce__(self) -> Any:
        return PipelinePlace, ()  # a copy of a pipeline begins anew

    def iterate(self, pipeline: LoaderPipeline, epoch: int) -> Iterator[Any]:
        """Begins an epoch, or continues it if it is the one that was loaded."""
        if is_repetition(epoch):  # another pass, of an epoch that is made even
            return plain(pipeline.stream(Context.current(epoch)))
        handed = self.handed(epoch) if is_to_be_even(pipeline.loader) else None
        loaded, self._loaded, self._run = self._loaded, None, None
        stream = pipeline.stream(Context.current(epoch))
        if loaded is not None:
            if loaded["epoch"] == epoch:
                stream.load_state_dict(loaded["run"])
            elif loaded["run"]["delivered"]:
                warn(
                    f"epoch {epoch} begins, not number {loaded['epoch']}, which load_state_dict was to "
                    "continue: what is left of that is not delivered",
                    UserWarning,
                )
        self._run = run = _Run(epoch, stream, handed)
        return run.elements(stream)

    @property
    def run(self) -> _Run:
        """The iteration that began last."""
        if self._run is None:
            raise LookupError("no iteration has begun")
        return self._run

    def handed(self, epoch: int) -> int:
        """Elements of an epoch that the program got before it begins here."""
        if self._loaded is None or self._loaded["epoch"] != epoch:
            return 0
        run = self._loaded["run"]
        return int(run["delivered"] + run.get("repeated", 0))

    def turn_away(self) -> None:
        """The next epoch is another than that behind the last one, unless that still runs."""
        if self._run is not None and not self._run.running:
            self._run = None

    def state_dict(self, pipeline: LoaderPipeline) -> dict[str, Any]:
        """The pipeline's state."""
        loader, run = pipeline.loader, self._run
        if self._loaded is not None:
            return dict(self._loaded)
        state = None if run is None else run.state()
        if run is not None and state is not None:
            epoch, behind = run.epoch, loader._epoch
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
        run = field(state, "run", dict)
        delivered = field(run, "delivered", int)
        if because := replayed_because(state):
            count = delivered + field({"repeated": 0, **run}, "repeated", int)
            facts = {**state["facts"], "rank": Context.current().rank}
            state = {**state, "facts": facts, "run": {"delivered": count, "replay": because}}
        self._loaded, self._run = state, None
        loader._epoch = loader._bookmark.expect(epoch, behind)


def _described(pipeline: LoaderPipeline) -> list[str]:
    stages = described_stages(pipeline.stages)
    return stages if pipeline._epochs == ONCE else [*stages, str(pipeline._epochs)]
