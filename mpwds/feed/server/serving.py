"""The code of a server's worker process: a loader's worker whose place comes with each epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mpwds.feed.wire import WorkerAssignment
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.worker.worker import Worker, export_place
from mpwds.pipeline.error_context import add_note


@dataclass
class ServingSetup(WorkerSetup):
    """The setup of a server's workers; each ``start`` tells a worker its place among all workers."""

    serves: ClassVar[str] = f"{__name__}:ServingWorker"
    allow_pickle: ClassVar[bool] = False  # batches leave the machine


class ServingWorker(Worker):
    def _run_epoch(self, start: dict[str, Any]) -> None:
        rank, world_size, self.index, workers, seed = WorkerAssignment(*start["place"])
        place: dict[str, Any] = {"rank": rank, "world_size": world_size, "workers": workers, "seed": seed}
        self.setup = replace(self.setup, **place, streams=start["of_streams"])
        export_place(self.index, self.setup)
        super()._run_epoch(start)

    def _send(self, element: Any, fields: dict[str, Any], state: bytes | str | None) -> None:
        if isinstance(state, bytes) and state[:1] != b"m":
            state = "the pipeline's state holds objects that only pickle can send"
        try:
            super()._send(element, fields, state)
        except TypeError as error:
            add_note(error, "a server sends nothing pickled: convert such values in the pipeline")
            raise
