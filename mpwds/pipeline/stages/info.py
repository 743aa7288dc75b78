"""Print what passes through."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TextIO

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.notes import arguments, explain, options
from mpwds.pipeline.stream import Address, Derived, Stream


def info(
    fmt: str | None = None,
    n: int = 3,
    every: int = -1,
    width: int = 50,
    stream: TextIO | None = None,
    name: str = "",
) -> Info:
    """Stage that prints some of the elements and passes all of them on.

    Args:
        fmt: Format of a line, with the fields of a dict as names (``"{__key__} {cls}"``) and those of a tuple
            as numbers (``"{0}"``). By default the fields are printed one below the other.
        n: Elements to print at the beginning of each epoch.
        every: Afterwards, prints every n-th element; none by default.
        width: Characters to print of a field.
        stream: Where to print; by default the ``sys.stderr`` of the process that prints.
        name: Printed before each element that is printed without ``fmt``.

    Raises:
        KeyError: While iterating, ``fmt`` names a field that a sample lacks.

    Source:
        ``webdataset.filters.info``.

    Example:
        >>> import sys
        >>> list(info("cls is {cls}", n=1, stream=sys.stdout)([{"cls": 7}, {"cls": 8}]))
        cls is 7
        [{'cls': 7}, {'cls': 8}]
    """
    return Info(fmt, n, every, width, stream, name)


@dataclass(frozen=True)
class Info(Filter):
    """The stage that ``info`` makes."""

    fmt: str | None = None
    n: int = 3
    every: int = -1
    width: int = 50
    output: TextIO | None = None
    name: str = ""

    def __str__(self) -> str:
        more = options(n=(self.n, 3), every=(self.every, -1), width=(self.width, 50), name=(self.name, ""))
        return f"info({arguments(*([] if self.fmt is None else [self.fmt]), **more)})"

    def count_of(self, incoming: Count) -> Count:
        return incoming

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Shown(self, source)

    def lines(self, element: Any) -> list[str]:
        """What is printed of an element.

        Args:
            element: A dict or tuple with fields, or anything else.

        Example:
            >>> Info(width=4).lines({"txt": "hello"})
            ['---', "txt 'hel"]
        """
        if self.fmt is not None:
            fields = element if isinstance(element, (tuple, list)) else (element,)
            return [self.fmt.format(**element) if isinstance(element, dict) else self.fmt.format(*fields)]
        first = f"--- {self.name}".rstrip()
        if isinstance(element, dict):
            return [first, *(f"{key} {self._cut(value)}" for key, value in element.items())]
        if isinstance(element, (tuple, list)):
            return [first, *(f"{index} {self._cut(value)}" for index, value in enumerate(element))]
        return [first, self._cut(element)]

    def _cut(self, value: Any) -> str:
        return repr(value)[: self.width]


class _Shown(Derived[Any]):
    def __init__(self, stage: Info, source: Stream[Any]) -> None:
        super().__init__(source)
        self._stage = stage
        self._count = 0

    def __next__(self) -> tuple[Address, Any]:
        stage = self._stage
        item: tuple[Address, Any] = self._next()
        self._count += 1
        if self._count <= stage.n or (stage.every > 0 and self._count % stage.every == 0):
            address, element = item
            try:
                lines = stage.lines(element)
            except Exception as error:
                explain(error, stage, self._source, address, element)
                raise
            print(*lines, sep="\n", file=stage.output if stage.output is not None else sys.stderr)
        return item

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._count = state["count"]
