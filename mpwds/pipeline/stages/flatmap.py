"""Make several elements of each: ``flatmap``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from mpwds.mistakes import explained
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Configured
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.notes import check_function
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stages.map import key_of, with_key
from mpwds.pipeline.stages.unbatched import Parts, Take
from mpwds.pipeline.stream import Address, Stream, reached_end


@explained
def flatmap(f: Callable[[Any], Iterable[Any] | None], handler: Handler = reraise_exception) -> Flatmap:
    """Stage that yields each element of ``f(element)``, for each element.

    Unlike those of a generator function that is a stage itself (``compose``), the elements have addresses,
    so a loader can resume without running the epoch again. To fetch an element again, the stage calls ``f``
    again and skips the elements before it. If ``f`` is a generator function, its elements are never in
    memory together.

    Args:
        f: Takes an element; returns an iterable of elements or ``None``, or is a generator function. Keys
            and random numbers are as for :func:`~mpwds.pipeline.stages.map.map`.
        handler: Called when ``f`` raises an exception; the default raises it. The elements that ``f`` made
            before have been yielded by then.

    Raises:
        TypeError: ``f`` or ``handler`` is not callable; or, while iterating, ``f`` returns something other
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
class Flatmap(Configured, called="flatmap"):
    """The stage that ``flatmap`` makes."""

    function: Callable[[Any], Iterable[Any] | None]
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        super().__post_init__()
        check_function("flatmap", self.function)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Made(self, source, context)


class _Made(Parts):
    random_access: ClassVar[bool] = False

    def __init__(self, stage: Flatmap, source: Stream[Any], context: Context) -> None:
        super().__init__(source, stage, "part", stage.handler)
        self._function = stage.function
        self._call = seeded(context)

    def _open(self, address: Address, element: Any) -> Take:
        key = key_of(element)  # looked up before the call, because the function may change the sample
        made: Any = self._call(self._function, address, element)
        if made is None:
            return lambda index: reached_end
        if isinstance(made, (str, bytes, dict)) or not isinstance(made, Iterable):
            raise TypeError(
                f"flatmap: the function must return an iterable of elements, got a {type(made).__name__}; "
                "use map to make one element of each"
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
                # Seeded for each part, because other functions draw from the same generators in between.
                part = self._call(lambda parts: next(parts, reached_end), (address, number), made)
            position = index + 1
            return part if part is reached_end else with_key(key, part)

        return take
