"""The stages as methods of datasets: ``dataset.shuffle(1000).decode("rgb8").to_tuple("png", "cls")``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from random import Random
from types import MethodType
from typing import Any, Generic, ParamSpec

import mpwds  # imports a stage when its name is first used, so that a worker starts sooner
from mpwds.errors import shortened
from mpwds.pipeline.coercion import stage_of
from mpwds.pipeline.stream import Composable, Self
from mpwds.suggestions import suggest_arguments

P = ParamSpec("P")


class adds(Generic[P]):
    """A method that adds a stage, with the signature and documentation of the function that makes the stage.

    ``function`` returns that function; it is called when the method is first used.
    """

    def __init__(self, function: Callable[[], Callable[P, object]]) -> None:
        self._function = function
        self._method: Callable[..., Any] | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{owner.__qualname__}.{name}"

    def __get__(self, dataset: Self, owner: type[Self] | None = None) -> Callable[P, Self]:
        if self._method is None:
            self._method = self._made()
        return self._method if dataset is None else MethodType(self._method, dataset)  # None: of the class

    def _made(self) -> Callable[..., Any]:
        make = suggest_arguments(self._function())

        @shortened
        def method(self: Composable, /, *args: P.args, **keywords: P.kwargs) -> Composable:
            return self.compose(make(*args, **keywords))

        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(make).parameters.values()
        signature = inspect.Signature([first, *parameters], return_annotation="Self")
        method.__signature__ = signature  # type: ignore[attr-defined]  # inspect looks for it
        method.__doc__ = make.__doc__
        method.__name__, method.__qualname__ = self._name.rpartition(".")[2], self._name
        method.__module__ = make.__module__
        return method


@suggest_arguments
class Fluent(Composable):
    """Base of datasets with stages. Each method returns a copy with one more stage."""

    associate = adds(lambda: mpwds.associate)
    batched = adds(lambda: mpwds.batched)
    bucketed = adds(lambda: mpwds.bucketed)
    decode = adds(lambda: mpwds.decode)
    detshuffle = adds(lambda: mpwds.detshuffle)
    extract_keys = adds(lambda: mpwds.extract_keys)
    flatmap = adds(lambda: mpwds.flatmap)
    info = adds(lambda: mpwds.info)
    listed = adds(lambda: mpwds.listed)
    lmdb_cached = adds(lambda: mpwds.lmdb_cached)
    log_keys = adds(lambda: mpwds.log_keys)
    map = adds(lambda: mpwds.map)
    map_dict = adds(lambda: mpwds.map_dict)
    map_tuple = adds(lambda: mpwds.map_tuple)
    mcached = adds(lambda: mpwds.mcached)
    random_resized_crop = adds(lambda: mpwds.random_resized_crop)
    rename = adds(lambda: mpwds.rename)
    rename_keys = adds(lambda: mpwds.rename_keys)
    resize_center_crop = adds(lambda: mpwds.resize_center_crop)
    resized = adds(lambda: mpwds.resized)
    rsample = adds(lambda: mpwds.rsample)
    select = adds(lambda: mpwds.select)
    slice = adds(lambda: mpwds.slice)
    to_tuple = adds(lambda: mpwds.to_tuple)
    unbatched = adds(lambda: mpwds.unbatched)
    unlisted = adds(lambda: mpwds.unlisted)
    xdecode = adds(lambda: mpwds.xdecode)

    def shuffle(
        self: Self,
        size: int | None = None,
        initial: int = 100,
        rng: Random | None = None,
        seed: int | None = None,
        handler: object = None,
        *,
        total: int | None = None,
    ) -> Self:
        """Adds ``mpwds.shuffle(size, ...)`` or ``mpwds.shuffle(total=...)``; a ``size`` below 1 adds nothing.

        Raises:
            TypeError: Neither ``size`` nor ``total`` is given.

        Example:
            >>> sorted(mpwds.DataPipeline(range(6)).shuffle(4))
            [0, 1, 2, 3, 4, 5]
        """
        if size is None and total is None:
            raise TypeError("shuffle() needs size, the elements of a stream's buffer, or total")
        stage = mpwds.shuffle(1000 if size is None else size, initial, rng, seed, handler, total=total)
        return self.compose() if size is not None and size < 1 else self.compose(stage)

    def pipe(self: Self, f: Any, *args: Any, **keywords: Any) -> Self:
        """Adds the stage that ``f(*args, **keywords)`` makes, or that runs ``f(source, *args, **keywords)``.

        Args:
            f: A stage, a function that makes one, or a generator function of an iterator of elements.
            args: Further arguments of ``f``, like ``keywords``.

        Raises:
            TypeError: ``f`` is neither a stage nor callable, or is a stage and there are arguments.

        Example:
            >>> list(mpwds.DataPipeline(range(5)).pipe(mpwds.batched, 2, collation_fn=None))
            [[0, 1], [2, 3], [4]]
        """
        return self.compose(stage_of(f, *args, **keywords))

    then = pipe  # in webdataset 0.1
