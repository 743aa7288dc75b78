"""Bases of stages and of their streams, and the samples in an element."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, ClassVar, NoReturn

from mpwds.errors import SharedRandomError
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import (
    arguments_of,
    check_function,
    check_whole,
    explain,
    is_async,
    not_an_end,
)
from mpwds.pipeline.handlers import CountingHandler, Handler, check_handler, reraise_exception
from mpwds.pipeline.iterable_sources import IteratorStream, iter_elements
from mpwds.pipeline.randomness import Call, seeded, unseeded
from mpwds.pipeline.stream import Count, LengthUnknown, Part, RowStep, Stream, WrappedStream, fetch_held
from mpwds.trees import parts


class Filter(Part, ABC):
    """Base of stages. Call a stage with an iterable to run it; ``str`` is its name in errors and statistics.

    The stream's state lists the elements it holds: see :meth:`mpwds.pipeline.stream.Stream.state_dict`.

    Attributes:
        divides_among: ``"ranks"``, ``"workers"``, or both, if it divides the elements among these.
        pins_epoch: Whether it and what comes before always run as in epoch 0: a cache holds those elements.
        passes_values: Whether it passes the values of a sample's fields on, and does not look at them.
        stacks_values: Whether it stacks them in batches, and does nothing else with them.
        runs_ahead: Whether a thread runs what comes before it.
        row_step: What it does to rows. Loaders run stages that unbatch, shuffle and batch as one.

    Example:
        >>> from mpwds.pipeline.stages.unbatched import Flatmap
        >>> class Twice(Filter):
        ...     def stream(self, source, context=ALONE):
        ...         return Flatmap(lambda element: [element, element]).stream(source, context)
        >>> list(Twice()("ab"))
        ['a', 'a', 'b', 'b']
    """

    divides_among: tuple[str, ...] = ()
    pins_epoch: bool = False
    runs_ahead: ClassVar[bool] = False
    passes_values: ClassVar[bool] = False

    @property
    def stacks_values(self) -> bool:
        return False

    @property
    def row_step(self) -> RowStep | None:
        return None

    @abstractmethod
    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        """The stream of the elements that the stage makes of ``source``."""

    def count_of(self, incoming: Count) -> Count:
        """Counts the elements that it makes of ``incoming``, or raises ``LengthUnknown``: the default."""
        raise LengthUnknown(f"{self} may drop or add elements")

    def __call__(self, source: Iterable[Any]) -> Iterator[Any]:
        return iter_elements(self.stream(IteratorStream(source), Context.current()))


class SingletonStage(Filter):
    """Base of stages without options, which are used without a call. They are pickled by ``name``."""

    name: str

    def __str__(self) -> str:
        return self.name

    __repr__ = __reduce__ = __str__


class DataclassStage(Filter):
    """Base of stages that are dataclasses. They print as the call that makes them: ``map(crop)``."""

    called: ClassVar[str]

    def __init_subclass__(cls, called: str | None = None) -> None:
        if called is not None:
            cls.called = called

    def __post_init__(self) -> None:
        check_handler(self.called, vars(self).get("handler", reraise_exception))
        check_function(self.called, vars(self).get("function", callable))
        check_whole(self.called, "threads", vars(self).get("threads", 1), least=1)

    def __str__(self) -> str:
        return f"{self.called}({arguments_of(self)})"


class PassThroughStage(DataclassStage):
    """Base of stages that yield exactly the elements that they take in, in any order."""

    def count_of(self, incoming: Count) -> Count:
        return incoming


class MapStage(DataclassStage):
    """Base of stages that apply a function to each element: ``apply``, or what ``prepared`` returns."""

    handler: Handler
    draws: ClassVar[bool] = True  # whether the function may draw random numbers, as a user's may
    takes: ClassVar[type] = object  # the class of the elements
    keeps_key: ClassVar[bool] = False  # whether a dict without ``__key__`` gets that of its sample
    threads: int = 1  # how many elements are held while calls for them overlap
    in_order: bool = True
    apply: Callable[[Any], Any]

    @property
    def takes_any_order(self) -> bool:
        return not self.in_order

    def prepared(self) -> Callable[[Any], Any]:
        return self.apply

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return self.mapped(source, self.prepared(), seeded(context) if self.draws else None)

    def mapped(self, source: Stream[Any], function: Callable[[Any], Any], call: Call | None) -> MapStream:
        """The stream of ``function(element)``, called by ``call`` if it may draw random numbers."""
        if self.threads > 1 or is_async(function):
            from mpwds.pipeline.overlap import Overlapped

            source = ahead = Overlapped(source, function, call, self.threads, self.in_order)
            call = ahead.call
        return MapStream(source, self, function, call)


class OneToOneStage(MapStage):
    """Base of those that make one element of each, unless their error handler skips it."""

    def count_of(self, incoming: Count) -> Count:
        if self.handler is not reraise_exception:
            return super().count_of(incoming)
        return Count(incoming.elements)


class ErrorHandlingStream(WrappedStream[Any]):
    """Base of streams that ask an error handler about each element that causes an exception."""

    on_skipped: Callable[[Exception], object] | None = None  # called with the exception of a skipped element
    timed: Callable[[], AbstractContextManager[object]] = nullcontext  # where it makes a value later on
    counts: Any = None  # its attribute ``nbytes`` counts the bytes that are read, if it reads storage
    _counters: ClassVar[tuple[str, ...]] = ("_stopped",)

    def __init__(self, source: Stream[Any], stage: object, handler: Handler = reraise_exception) -> None:
        super().__init__(source)
        self._stage = stage
        self._handler = handler
        self._stopped = False
        if isinstance(handler, CountingHandler):
            self._next = handler.watch(str(stage), source.__next__)
        self._running_next = self._next

    def _handle(self, error: Exception, address: Any, element: object) -> None:
        """Returns if the stream continues; raises ``StopIteration`` to end it, or the exception."""
        error = not_an_end(error)
        try:
            self._explain(error, address, element)
            self._decide(error)
        finally:
            del error  # see ``reraise_exception``

    def _decide(self, error: Exception) -> None:
        try:
            if self._handler is reraise_exception or isinstance(error, (ImportError, SharedRandomError)):
                raise error  # it is not the element's fault
            if not self._handler(error):
                self._stop()
                raise StopIteration
            if self.on_skipped is not None:
                self.on_skipped(error)
        finally:
            del error

    def _explain(self, error: Exception, address: Any, element: object) -> None:
        explain(error, self._stage, self._source, address, element)

    def _stop(self) -> None:
        self._stopped = True
        self._next = _ended

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._next = _ended if self._stopped else self._running_next


class Retrying(ErrorHandlingStream):
    """Base of those that take in one element at a time. The state names each that raised an exception.

    A program that catches the exception and saves the state gets the element where it loads that state.
    """

    def __init__(self, source: Stream[Any], stage: object, handler: Handler = reraise_exception) -> None:
        super().__init__(source, stage, handler)
        self._failed: list[Any] = []
        self._again: list[tuple[Any, Any]] = []  # those that failed before the state was loaded

    def _handle(self, error: Exception, address: Any, element: object) -> None:
        self._failed.append(address)
        super()._handle(error, address, element)
        self._failed.pop()  # the handler skips it

    def state_dict(self) -> dict[str, Any]:
        held = [*self._failed, *(address for address, _ in self._again)]
        return {**super().state_dict(), "held": held, "unused": None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._failed, self._again = [], fetch_held(self._source, state["held"])
        if self._again and not self._stopped:
            self._next = chain(_taken(self._again), iter(self._next, None)).__next__


def _taken(items: list[Any]) -> Iterator[Any]:
    while items:
        yield items.pop(0)


class MapStream(Retrying):
    """The stream of ``function(element)``, called by ``call`` if given; ``None`` drops an element."""

    def __init__(
        self, source: Stream[Any], stage: MapStage, function: Callable[[Any], Any], call: Call | None
    ) -> None:
        super().__init__(source, stage, stage.handler)
        self._function = function
        self._call = call
        self._takes = stage.takes
        self._keeps_key = stage.keeps_key

    def __next__(self) -> tuple[Any, Any]:
        while True:
            address, element = self._next()
            try:
                if not isinstance(element, self._takes):
                    raise self._wrong_type(element)
                # ``key_of`` and ``with_key`` inline, as calls would take a tenth of a small element's time.
                key = element.get("__key__") if self._keeps_key and isinstance(element, dict) else None
                call = self._call
                result = self._function(element) if call is None else call(self._function, address, element)
                if key is not None and isinstance(result, dict) and "__key__" not in result:
                    result = {"__key__": key, **result}
            except Exception as error:
                self._handle(error, address, element)
            else:
                if result is not None:
                    return address, result

    def fetch(self, address: Any) -> Any:
        element = self._source.fetch(address)
        try:
            if not isinstance(element, self._takes):
                raise self._wrong_type(element)
            key = key_of(element) if self._keeps_key else None
            return with_key(key, (self._call or unseeded)(self._function, address, element))
        except Exception as error:
            self._explain(error, address, element)
            raise

    def _wrong_type(self, element: object) -> TypeError:
        stage: Any = self._stage
        needed, got = self._takes.__name__, type(element).__name__
        return TypeError(f"{stage.called} needs {needed} samples, got a {got}")


def key_of(element: Any) -> Any:
    """The ``__key__`` of a dict sample, or ``None``."""
    return element.get("__key__") if isinstance(element, dict) else None


def with_key(key: Any, result: Any) -> Any:
    """``result``, with ``key`` as its ``__key__`` if it is a dict that has none."""
    if key is not None and isinstance(result, dict) and "__key__" not in result:
        return {"__key__": key, **result}
    return result


def _ended() -> NoReturn:
    raise StopIteration


def rows_in(element: Any) -> int:
    """The number of samples in an element, inferred from its columns if it is a batch. Takes a microsecond.

    A batch is an array, or a dict, tuple, list or dataclass of columns of equal length. Columns are arrays
    and lists, possibly nested. An element that holds a number or a string is a single sample.
    """
    is_list = isinstance(element, list)
    rows = None
    columns = parts(element)
    for column in (element,) if columns is None else columns:
        if isinstance(column, list):
            length = len(column)
        elif isinstance(shape := attribute(column, "shape"), tuple) and shape and isinstance(shape[0], int):
            length = shape[0]
        elif column is None:
            continue
        elif is_list:
            return len(element)
        elif parts(column) is not None:
            length = rows_in(column)
        else:
            return 1
        if rows is None:
            rows = length
        elif length != rows:
            return 1
    return 1 if rows is None else rows


def attribute(item: Any, name: str) -> Any:
    """An attribute of an element; ``None`` if it is missing or raises an exception."""
    try:
        return getattr(item, name, None)
    except Exception:  # the shape of a nested tensor and the nbytes of a sparse one raise RuntimeError
        return None
