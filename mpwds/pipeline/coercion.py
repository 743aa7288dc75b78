"""Makes a source and stages of the objects that users pass: functions, iterables, objects of their own."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, ClassVar, TypeAlias

from mpwds.errors import SecurityError
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import arguments, check_function
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.iterable_sources import (
    Indexed,
    Iterated,
    MapStyle,
    TorchIterable,
    UnseekableStream,
    iter_elements,
    iterates_itself,
    skip,
)
from mpwds.pipeline.stream import (
    Address,
    Count,
    Description,
    FromWorkers,
    Origin,
    Part,
    PipelineSource,
    Stage,
    Stream,
    WrappedStream,
)
from mpwds.storage.streams.patterns import check_url
from mpwds.suggestions import shown


def as_source(source: Any) -> Origin:
    """Makes a source of a user's object, which is one of those that ``DataPipeline`` documents."""
    if isinstance(source, FromWorkers) and not isinstance(source, Part):
        source = source.compose()  # whose epoch is that of the pipeline around it
    if isinstance(source, PipelineSource) and not iterates_itself(source):
        return source if isinstance(source, Origin) else OwnSource(source)
    if isinstance(source, Mapping):
        raise TypeError(
            "a dict cannot be the source of a pipeline: write mpwds.WebDataset(spec) for a dataset "
            "specification, DataPipeline([sample]) for a sample"
        )
    data = sys.modules.get("torch.utils.data")
    iterable = data is not None and isinstance(source, (data.IterableDataset, data.DataLoader))
    if not iterable and isinstance(source, MapStyle):
        return Indexed(source)
    return Iterated(source)


def takes_any_order(dataset: Any) -> bool:
    """True if a dataset, of any kind, takes elements as they appear."""
    return isinstance(dataset, Part) and dataset.takes_any_order


def as_stage(stage: Any) -> Filter:
    """Makes a stage of a user's object: one with a method ``stream(source, context)``, or a function."""
    if isinstance(stage, TorchIterable):
        raise TypeError(f"{stage} is a source, so it can only be the first part of a pipeline")
    if isinstance(stage, Filter):
        return stage
    return OwnStage(stage) if isinstance(stage, Stage) else Generator(stage)


def as_stages(stages: list[Any]) -> tuple[Filter, ...]:
    """Makes the stages of a pipeline. Functions before a reader of shards keep the shards' addresses."""
    configured = [as_stage(stage) for stage in stages]
    readers = [number for number, stage in enumerate(configured) if stage.reads_shards]
    for number in range(max(readers, default=0)):
        stage = configured[number]
        if isinstance(stage, Generator):
            configured[number] = Splitter(stage.function)
    return tuple(configured)


class _Own(Part):
    """Gives a user's object the usual answers to what it does not answer itself.

    Its ``stream`` may be a generator function, which yields pairs of an address and an element, but can
    neither fetch an element nor tell a state: its elements count as those without addresses.
    """

    _answers: ClassVar[tuple[str, ...]] = ("addressable", "in_any_order", "reads_shards")

    def __init__(self, given: Any) -> None:
        self.given = given
        if inspect.isgeneratorfunction(given.stream):
            self.addressable = False
        for name in self._answers:
            if hasattr(given, name):
                setattr(self, name, getattr(given, name))

    def made(self, stream: Any, context: Context) -> Stream[Any]:
        """Returns the user's stream, or one over the pairs that it gives."""
        if hasattr(stream, "fetch") or hasattr(stream, "state_dict"):
            return stream  # type: ignore[no-any-return]  # as the user says
        return UnseekableStream(lambda: self._elements(stream), self, context)

    def _elements(self, pairs: Iterable[Any]) -> Iterator[Any]:
        for pair in pairs:
            if not (isinstance(pair, tuple) and len(pair) == 2):
                raise TypeError(
                    f"the stream of {self} gives {shown(pair)}, not a pair (address, element): write a "
                    "generator function of an iterator of elements in place of the class, or give pairs"
                )
            yield pair[1]

    def ask(self, name: str, default: Any = None) -> Any:
        """The user's object's attribute of that name, or ``default``."""
        return getattr(self.given, name, default)

    @property
    def samples_in(self) -> Callable[[Any], int] | None:
        return self.ask("samples_in")  # type: ignore[no-any-return]  # as the user says

    def __str__(self) -> str:
        kind: Any = type(self.given)
        is_bare = kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__
        return str(kind.__name__ if is_bare else self.given)


class OwnSource(_Own, Origin):
    """A user's object with a method ``stream(context)``, and perhaps more of what sources have."""

    _answers = (*_Own._answers, "never_empty")

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return self.made(self.given.stream(context), context)

    def count_in(self, context: Context, exact: bool = True) -> Count:
        if (count_in := self.ask("count_in")) is None:
            return super().count_in(context, exact)
        count = count_in(context)
        return count if isinstance(count, Count) else Count(count)


class OwnStage(_Own, Filter):
    """A user's object with a method ``stream(source, context)``, and perhaps more of what stages have."""

    _answers = (*_Own._answers, "alike_before_split", "count_of", "divides_among", "pins_epoch")

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return self.made(self.given.stream(source, context), context)


def stage_of(f: Any, *args: Any, **keywords: Any) -> Filter:
    """The stage that ``.pipe(f, ...)`` adds: ``f``, what it makes as its annotations say, or a generator."""
    if isinstance(f, Stage) and not isinstance(f, type):
        if args or keywords:
            raise TypeError(f"pipe: {f} is a stage already: it takes no arguments here")
        return as_stage(f)
    if _makes_a_stage(f):
        return as_stage(f(*args, **keywords))
    check_function("pipe", f, "a stage or a generator function of an iterator")
    return PipelineFilter(f)(*args, **keywords) if args or keywords else as_stage(f)


def _makes_a_stage(f: Any) -> bool:
    if isinstance(f, type):
        return issubclass(f, (Filter, PipelineStage)) or hasattr(f, "stream")
    if isinstance(f, PipelineFilter):
        return True
    try:
        only = SimpleNamespace(__annotations__={"return": f.__annotations__["return"]})
        result = typing.get_type_hints(only, inspect.unwrap(f).__globals__)["return"]
    except Exception:  # no annotation, or one that only a type checker can resolve
        return False
    kinds = typing.get_args(result) or (result,)
    classes = (typing.get_origin(kind) or kind for kind in kinds)  # of dict[str, Any] in Python 3.10
    return all(isinstance(kind, type) and issubclass(kind, Filter) for kind in classes)


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


Split: TypeAlias = "Stage | Callable[..., Iterable[Any]]"
"""What divides shards: a stage, or a function for a :class:`Splitter`."""


@dataclass(frozen=True)
class Splitter(Filter):
    """Stage that yields the shards that ``function(shards)`` yields, each under its own address.

    For functions such as webdataset's ``split_by_node``, which yield some of the dicts ``{"url": ...}`` that
    they get, or return a list of them. The stage finds a shard's address by its dict, or by its URL if the
    function makes a new dict. A URL that was not among the shards is its own address. A restored stream runs
    the function again, and expects the same shards. With ``as_list`` the function gets a list to slice.
    """

    function: Callable[..., Iterable[Any]]
    as_list: bool = False
    divides_among = ("ranks", "workers")  # perhaps neither: the function decides
    divides_itself = True

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
            self._addresses.setdefault(url_of(shard), address)
            yield shard

    def __next__(self) -> tuple[Address, Any]:
        _, shard = next(self._chosen)
        self._count += 1
        return self._address(shard), shard

    def _address(self, shard: Any) -> Address:
        address = self._addresses.get(id(shard))
        if address is None:
            url = url_of(shard)
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
        skip(self, state["count"], str(self._stage))


def url_of(shard: Any) -> str:
    """The URL of a shard: ``{"url": ...}``, or the URL itself. Raises ``TypeError`` if it is neither."""
    url = shard.get("url") if isinstance(shard, dict) else shard
    if not isinstance(url, str):
        raise TypeError(f'a shard must be {{"url": "x.tar"}} or "x.tar", got {shown(shard)}')
    return url


class PipelineFilter:
    """Decorator that turns ``f(source, *args, **kw)`` into a function ``f(*args, **kw)`` that makes a stage.

    ``f`` takes an iterator of elements and returns one. The stage's elements have no addresses (see
    ``mpwds.pipeline.coercion.Generator``), unlike those of ``flatmap``.

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

    def __init__(self, f: Callable[..., Iterator[Any]]) -> None:
        check_function("pipelinefilter", f, "a function of a source")
        self.function = f
        functools.update_wrapper(self, f)

    def __call__(self, *args: Any, **options: Any) -> Generator:
        name = vars(self).get("__name__", repr(self.function))
        run = functools.partial(_with_arguments, self, args, options)
        return Generator(run, f"{name}({arguments(*args, **options)})")

    def __reduce__(self) -> Any:
        # Pickled by name, as functions are, if that name finds this object and not the decorated function.
        name, module = vars(self).get("__qualname__", ""), vars(self).get("__module__", "")
        try:
            by_name = module != "__main__" and attrgetter(name)(sys.modules[module]) is self
        except (KeyError, AttributeError):
            by_name = False
        return name if by_name else (PipelineFilter, (self.function,))


pipelinefilter = PipelineFilter


def _with_arguments(filter: PipelineFilter, args: Any, options: Any, source: Iterator[Any]) -> Iterator[Any]:
    return filter.function(source, *args, **options)


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
