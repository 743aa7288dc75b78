"""The stages as methods of datasets: ``dataset.shuffle(1000).decode("rgb8").to_tuple("png", "cls")``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, TypeVar

from mpwds.pipeline.batched import batched
from mpwds.pipeline.collate import default_collation_fn
from mpwds.pipeline.decode import decode
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.map import map
from mpwds.pipeline.map_dict import map_dict
from mpwds.pipeline.map_tuple import map_tuple
from mpwds.pipeline.select import select
from mpwds.pipeline.shuffle import shuffle
from mpwds.pipeline.to_tuple import to_tuple
from mpwds.pipeline.unbatched import unbatched

Self = TypeVar("Self", bound="Fluent")


class Fluent(ABC):
    """What has stages: each method returns a copy with one stage more and takes the arguments of the function
    of its name, ``mpwds.shuffle`` and so on, which documents them."""

    @abstractmethod
    def compose(self: Self, *stages: Any) -> Self:
        """A copy with more stages."""

    def shuffle(
        self: Self, size: int, initial: int = 100, rng: Random | None = None, seed: int | None = None
    ) -> Self:
        """Yields the elements in random order, through a buffer of ``size``; below 1, nothing is shuffled.

        Example:
            >>> from mpwds import DataPipeline
            >>> sorted(DataPipeline(range(6)).shuffle(4))
            [0, 1, 2, 3, 4, 5]
        """
        return self.compose(shuffle(size, initial, rng, seed)) if size >= 1 else self.compose()

    def decode(
        self: Self,
        *handlers: str | Callable[..., Any],
        pre: Iterable[Callable[..., Any]] | None = None,
        post: Iterable[Callable[..., Any]] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
        handler: Handler = reraise_exception,
    ) -> Self:
        """Decodes the fields of dict samples by their extensions.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([{"__key__": "a", "cls": b"7"}]).decode())
            [{'__key__': 'a', 'cls': 7}]
        """
        stage = decode(*handlers, pre=pre, post=post, only=only, partial=partial, handler=handler)
        return self.compose(stage)

    def map(self: Self, f: Callable[[Any], Any], handler: Handler = reraise_exception) -> Self:
        """Yields ``f(element)`` for each element; ``None`` drops it.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline("abc").map(str.upper))
            ['A', 'B', 'C']
        """
        return self.compose(map(f, handler))

    def map_dict(self: Self, handler: Handler = reraise_exception, **functions: Callable[[Any], Any]) -> Self:
        """Replaces fields of dict samples by functions of them.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([{"cls": "7"}]).map_dict(cls=int))
            [{'cls': 7}]
        """
        return self.compose(map_dict(handler, **functions))

    def map_tuple(
        self: Self, *functions: Callable[[Any], Any] | None, handler: Handler = reraise_exception
    ) -> Self:
        """Applies a function to each field of tuple samples.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([("a", "7")]).map_tuple(None, int))
            [('a', 7)]
        """
        return self.compose(map_tuple(*functions, handler=handler))

    def to_tuple(
        self: Self,
        *specs: str,
        handler: Handler = reraise_exception,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
    ) -> Self:
        """Turns dict samples into tuples of some of their fields.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([{"jpg": b"..", "cls": 7}]).to_tuple("png;jpg", "cls"))
            [(b'..', 7)]
        """
        stage = to_tuple(
            *specs, handler=handler, missing_is_error=missing_is_error, none_is_error=none_is_error
        )
        return self.compose(stage)

    def select(self: Self, predicate: Callable[[Any], Any], handler: Handler = reraise_exception) -> Self:
        """Keeps the elements for which ``predicate`` is true.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline(range(6)).select(lambda n: n % 2))
            [1, 3, 5]
        """
        return self.compose(select(predicate, handler))

    def batched(
        self: Self,
        batchsize: int = 20,
        collation_fn: Callable[[Any], Any] | None = default_collation_fn,
        partial: bool = True,
    ) -> Self:
        """Gathers elements into batches.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([(1, "a"), (2, "b"), (3, "c")]).batched(2))
            [(array([1, 2]), ['a', 'b']), (array([3]), ['c'])]
        """
        return self.compose(batched(batchsize, collation_fn, partial))

    def unbatched(self: Self) -> Self:
        """Takes batches apart into their rows.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([([1, 2], ["a", "b"])]).unbatched())
            [(1, 'a'), (2, 'b')]
        """
        return self.compose(unbatched())
