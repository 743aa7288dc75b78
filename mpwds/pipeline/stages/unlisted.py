"""Take lists of samples apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import one_sample
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stages.parts import Parts, Take
from mpwds.pipeline.stream import Address, Stream, reached_end


def unlisted(handler: Handler = reraise_exception) -> Unlisted:
    """Stage that takes lists of samples apart, as ``listed`` makes them.

    Args:
        handler: What to do about an element that is not a list or tuple; raises by default.

    Raises:
        TypeError: ``handler`` cannot be called; or, while iterating, an element is not a list or tuple.

    Source:
        ``webdataset.filters.unlisted``.

    Example:
        >>> list(unlisted()([["a", "b"], ["c"]]))
        ['a', 'b', 'c']
    """
    return Unlisted(handler)


@dataclass(frozen=True)
class Unlisted(Filter):
    """The stage that ``unlisted`` makes."""

    handler: Handler = reraise_exception

    samples_in = staticmethod(one_sample)

    def __post_init__(self) -> None:
        check_handler("unlisted", self.handler)

    def __str__(self) -> str:
        return f"unlisted({arguments(**options(handler=(self.handler, reraise_exception)))})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Items(source, self, "item", self.handler)


class _Items(Parts):
    def _open(self, address: Address, element: Any) -> Take:
        if not isinstance(element, (list, tuple)):
            raise TypeError(f"unlisted needs lists of samples, got a {type(element).__name__}")
        return lambda index: element[index] if index < len(element) else reached_end
