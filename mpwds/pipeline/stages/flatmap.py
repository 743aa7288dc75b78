"""Make several elements of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stages.map import key_of, with_key
from mpwds.pipeline.stages.parts import Parts, Take
from mpwds.pipeline.stream import Address, Stream, reached_end


def flatmap(f: Callable[[Any], Iterable[Any] | None], handler: Handler = reraise_exception) -> Flatmap:
    """Stage that yields all elements that ``f(element)`` gives, for each element.

    It does what a generator function could do as a stage of its own (``compose``), but its elements have an
    address: the address of the element they come from, and their number. To make one again, the stage calls
    the function again and passes over the elements before it. A generator is run only as far as its elements
    are asked for, so they are never in memory together.

    Args:
        f: Takes an element; returns an iterable of elements or ``None``, or is a generator function. A dict
            that it makes from a dict sample gets the sample's ``__key__`` if it has none. Random numbers that
            it draws are the same each time it sees this element in this epoch.
        handler: What to do about an element that ``f`` fails on; raises by default. The elements that it made
            before have been yielded then.

    Raises:
        TypeError: ``f`` or ``handler`` cannot be called; or, while iterating, ``f`` returns something other
            than an iterable of elements (a string or a dict is one element).

    Example:
        >>> def get_patches(sample):
        ...     for start in range(0, len(sample["txt"]), 2):
        ...         yield {"txt": sample["txt"][start : start + 2]}
        >>> list(flatmap(get_patches)([{"__key__": "a", "txt": "abc"}]))
        [{'__key__': 'a', 'txt': 'ab'}, {'__key__': 'a', 'txt': 'c'}]
    """
    return Flatmap(f, handler)


@dataclass(frozen=True)
class Flatmap(Filter):
    """The stage that ``flatmap`` makes."""

    function: Callable[[Any], Iterable[Any] | None]
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"flatmap: expected a function, got {self.function!r}")
        check_handler("flatmap", self.handler)

    def __str__(self) -> str:
        return f"flatmap({arguments(self.function, **options(handler=(self.handler, reraise_exception)))})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Made(self, source, context)


class _Made(Parts):
    random_access: ClassVar[bool] = False

    def __init__(self, stage: Flatmap, source: Stream[Any], context: Context) -> None:
        super().__init__(source, stage, "part", stage.handler)
        self._function = stage.function
        self._call = seeded(context)

    def _open(self, address: Address, element: Any) -> Take:
        key = key_of(element)  # looked up before the call: the function may take the sample apart
        made: Any = self._call(self._function, address, element)
        if made is None:
            return lambda index: reached_end
        if isinstance(made, (str, bytes, dict)) or not isinstance(made, Iterable):
            raise TypeError(
                f"flatmap: the function must give an iterable of elements, got a {type(made).__name__}; "
                "for one element from each use map"
            )
        if isinstance(made, (list, tuple)):
            return lambda index: with_key(key, made[index]) if index < len(made) else reached_end
        return self._drawn(address, key, iter(made))

    def _drawn(self, address: Address, key: Any, made: Iterator[Any]) -> Take:
        position = 0

        def take(index: int) -> Any:
            nonlocal position
            part = reached_end
            for number in range(position, index + 1):
                # Seeded for each: between two of them other functions draw from the same generators.
                part = self._call(lambda parts: next(parts, reached_end), (address, number), made)
            position = index + 1
            return part if part is reached_end else with_key(key, part)

        return take
