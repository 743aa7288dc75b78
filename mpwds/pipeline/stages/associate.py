"""Add to dict samples what is known of them elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handled import Applied
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.randomness import seeded, unseeded
from mpwds.pipeline.stages.fields import check_sample, getfirst
from mpwds.pipeline.stream import Stream

Associator = Mapping[str, Mapping[str, Any]] | Callable[[str], "Mapping[str, Any] | None"]


def associate(associator: Associator, handler: Handler = reraise_exception) -> Associate:
    """Stage that adds fields to dict samples, found by their ``__key__``.

    The sample is copied first (not its values): the source's dict stays as it is. Added fields replace those
    of the same name.

    Args:
        associator: A dict (or other mapping) from a key to the fields to add, or a function that takes the
            key and returns them. A key that the dict lacks, and ``None``, add nothing.
        handler: What to do about a sample for which that fails; raises by default.

    Raises:
        TypeError: ``associator`` is neither, or ``handler`` cannot be called; or, while iterating, a sample
            is not a dict.
        ValueError: While iterating, a sample has no ``__key__``.

    Source:
        ``webdataset.filters.associate``.

    Example:
        >>> captions = {"a": {"caption": "a cat"}}
        >>> list(associate(captions)([{"__key__": "a", "cls": 7}, {"__key__": "b", "cls": 8}]))
        [{'__key__': 'a', 'cls': 7, 'caption': 'a cat'}, {'__key__': 'b', 'cls': 8}]
    """
    return Associate(associator, handler)


@dataclass(frozen=True)
class Associate(Filter):
    """The stage that ``associate`` makes."""

    associator: Associator
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        if not callable(self.associator) and not isinstance(self.associator, Mapping):
            raise TypeError(f"associate: expected a dict or a function of the key, got {self.associator!r}")
        check_handler("associate", self.handler)

    def __str__(self) -> str:
        associator = self.associator if callable(self.associator) else type(self.associator)
        return f"associate({arguments(associator, **options(handler=(self.handler, reraise_exception)))})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        call = seeded(context) if callable(self.associator) else unseeded
        return Applied(source, self, self._apply, call, self.handler)

    def _apply(self, sample: Any) -> dict[str, Any]:
        check_sample("associate", sample)
        key = getfirst(sample, "__key__")
        found = self.associator(key) if callable(self.associator) else self.associator.get(key)
        return {**sample, **(found or {})}
