"""Stages that are users' functions of an iterator, and choices among shards by such a function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any

from mpwds.errors import SecurityError
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import arguments, check_function
from mpwds.pipeline.filter import Filter, iter_elements
from mpwds.pipeline.iterator_streams import UnseekableStream
from mpwds.pipeline.stream import Address, Description, Stream, WrappedStream
from mpwds.storage.streams.patterns import check_url
from mpwds.suggestions import shown


@dataclass(frozen=True)
class Generator(Filter):
    """Stage that yields the elements of ``function(source)``, where ``source`` iterates over plain elements.

    Its elements have no addresses, so a pipeline with such a stage resumes by running again from the start of
    the epoch. ``function`` draws the same random numbers in each run of an epoch by the same worker.
    """

    function: Callable[[Iterator[Any]], Iterator[Any]]
    name: str | None = None
    addressable = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                "a stage is an object with a method stream(source, context) or a function of an iterator, "
                f"got {shown(self.function)}"
            )

    def __str__(self) -> str:
        return self.name or f"compose({arguments(self.function)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return UnseekableStream(lambda: self.function(iter_elements(source)), self, context)


def pipelinefilter(f: Callable[..., Iterator[Any]]) -> PipelineFilter:
    """Decorator that turns ``f(source, *args, **kw)`` into a function ``f(*args, **kw)`` that makes a stage.

    ``f`` takes an iterator of elements and returns one. The stage's elements have no addresses (see
    ``mpwds.pipeline.generators.Generator``), unlike those of ``flatmap``.

    Source:
        ``webdataset.filters.pipelinefilter``.

    Example:
        >>> @pipelinefilter
        ... def every(source, n):
        ...     for index, element in enumerate(source):
        ...         if index % n == 0:
        ...             yield element
        >>> list(every(2)("abcde"))
        ['a', 'c', 'e']
    """
    return PipelineFilter(f)


class PipelineFilter:
    """The function that ``pipelinefilter`` makes; it makes a stage."""

    def __init__(self, function: Callable[..., Iterator[Any]]) -> None:
        check_function("pipelinefilter", function, "a function of a source")
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **options: Any) -> Generator:
        name = getattr(self, "__name__", repr(self.function))
        return Generator(_Curried(self, args, options), f"{name}({arguments(*args, **options)})")

    def __reduce__(self) -> Any:
        # Pickled by name, as functions are, if that name finds this object and not the decorated function.
        name, module = getattr(self, "__qualname__", ""), getattr(self, "__module__", "")
        try:
            by_name = module != "__main__" and attrgetter(name)(sys.modules[module]) is self
        except (KeyError, AttributeError):
            by_name = False
        return name if by_name else (PipelineFilter, (self.function,))


@dataclass(frozen=True)
class _Curried:
    """Function of a source: ``filter.function`` with the arguments after the source."""

    filter: PipelineFilter
    args: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self, source: Iterator[Any]) -> Iterator[Any]:
        return self.filter.function(source, *self.args, **self.options)


class PipelineStage:
    """Base of your own stage classes with a method ``run(source)``. Its elements have no addresses.

    Source:
        ``webdataset.utils.PipelineStage``.

    Example:
        >>> class Twice(PipelineStage):
        ...     def run(self, source):
        ...         for element in source:
        ...             yield from (element, element)
        >>> from mpwds import DataPipeline
        >>> list(DataPipeline("ab", Twice()))
        ['a', 'a', 'b', 'b']
    """

    def run(self, source: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} is a pipeline stage without a method run(source)")

    def __call__(self, *source: Any) -> Any:
        return self.run(*source)


@dataclass(frozen=True)
class Splitter(Filter):
    """Stage that yields the shards that ``function(shards)`` yields, each under its own address.

    For functions such as webdataset's ``split_by_node``, which yield some of the dicts ``{"url": ...}`` that
    they get, or return a list of them. The stage finds a shard's address by its dict, or by its URL if the
    function makes a new dict. A URL that was not among the shards is its own address. A restored stream runs
    the function again, and expects the same shards. With ``as_list`` the function gets a list, which it may
    slice, instead of an iterator.
    """

    function: Callable[..., Iterable[Any]]
    as_list: bool = False
    divides_among = ("ranks", "workers")  # perhaps neither: the function decides

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"a splitter must be a function that takes shards, got {shown(self.function)}")

    def __str__(self) -> str:
        return arguments(self.function)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Chosen(self, source, context)


class _Chosen(WrappedStream[Any]):
    def __init__(self, stage: Splitter, source: Stream[Any], context: Context) -> None:
        super().__init__(source)
        self._stage = stage
        self._context = context
        try:
            self._source_at_start = source.state_dict()
        except LookupError:  # the source has no state, so this stream has none either
            self._source_at_start = {}
        self._begin()

    def _begin(self) -> None:
        self._taken: list[Any] = []  # keeps the dicts, so that no two have the same id
        self._addresses: dict[int | str, Address] = {}
        self._chosen = UnseekableStream(self._choose, self._stage, self._context)
        self._count = 0
        self._made: set[str] = set()  # URLs of the function's own

    def _choose(self) -> Iterable[Any]:
        shards = self._shards()
        return self._stage.function(list(shards) if self._stage.as_list else shards)

    def _shards(self) -> Iterator[Any]:
        for address, shard in self._source:
            self._taken.append(shard)
            self._addresses[id(shard)] = address
            self._addresses.setdefault(_url(shard), address)
            yield shard

    def __next__(self) -> tuple[Address, Any]:
        _, shard = next(self._chosen)
        self._count += 1
        return self._address(shard), shard

    def _address(self, shard: Any) -> Address:
        address = self._addresses.get(id(shard))
        if address is None:
            url = _url(shard)
            address = self._addresses.get(url, url)
            if address == url:
                self._made.add(url)
        return address

    def fetch(self, address: Any) -> Any:
        if not isinstance(address, str):
            return self._source.fetch(address)
        if address not in self._made:  # another machine may have sent the state that names it
            try:
                check_url(address, trusted=False, where=f"a state of {self._stage}")
            except SecurityError as error:
                raise SecurityError(
                    f"a state names the shard {shown(address)}, which {self._stage} has not yielded in this "
                    "run, and which runs a command: begin the epoch again, without the state"
                ) from error
        return {"url": address}

    def describe(self, address: Any, element: object = None) -> Description:
        if isinstance(address, str):
            return Description(f"shard {address}", address)
        return self._source.describe(address, element)

    def state_dict(self) -> dict[str, Any]:
        if not self._source_at_start:
            self._source.state_dict()  # raises, and names the stage without a state
        return {"count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(self._source_at_start)
        self._begin()
        for _, shard in islice(self._chosen, state["count"]):
            self._address(shard)
            self._count += 1
        if self._count < state["count"]:
            raise RuntimeError(
                f"{self._stage} chose {self._count} shards, but {state['count']} were read before: it "
                "chooses other shards each time it runs, so the pipeline cannot be restored"
            )


def _url(shard: Any) -> str:
    url = shard.get("url") if isinstance(shard, dict) else shard
    if not isinstance(url, str):
        raise TypeError(f'a splitter must yield shards, {{"url": "x.tar"}}, got {shown(shard)}')
    return url
