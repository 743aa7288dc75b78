"""One sample over and over, for tests and measurements."""

from __future__ import annotations

from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.place import Place
from mpwds.pipeline.stream import Address, Stream


class MockDataset(DataPipeline):
    """A dataset that yields the same object again and again: what a pipeline costs without reading.

    Every worker yields all of it, as in webdataset.

    Args:
        sample: The sample.
        length: How often an epoch yields it, in each worker.

    Raises:
        ValueError: ``length`` is negative.

    Example:
        >>> list(MockDataset("x", 3).map(str.upper))
        ['X', 'X', 'X']
    """

    def __init__(self, sample: Any, length: int) -> None:
        mock = _Mock(sample, length)
        super().__init__(mock)
        self._call = str(mock)
        self.sample = sample
        self.length = length


class _Mock:
    def __init__(self, sample: Any, length: int) -> None:
        if length < 0:
            raise ValueError(f"MockDataset: length must not be negative, got {length}")
        self._sample = sample
        self._length = length

    def __str__(self) -> str:
        return f"MockDataset({type(self._sample).__name__}, {self._length})"

    def count_in(self, context: Context) -> int:
        return self._length

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return _Mocked(self._sample, self._length, context)


class _Mocked:
    def __init__(self, sample: Any, length: int, context: Context) -> None:
        self._sample = sample
        self._length = length
        self._place = context.rank, context.worker
        self._cursor = 0

    def __iter__(self) -> _Mocked:
        return self

    def __next__(self) -> tuple[Address, Any]:
        cursor = self._cursor
        if cursor >= self._length:
            raise StopIteration
        self._cursor = cursor + 1
        return (*self._place, cursor), self._sample

    def fetch(self, address: Any) -> Any:
        return self._sample

    def describe(self, address: Any, element: object = None) -> Place:
        return Place.of_sample(element, Place(f"element {address[-1]} of a MockDataset"))

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self._cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._cursor = state["cursor"]
