"""Errors that suggest the right name for a name or an argument that does not exist."""

from __future__ import annotations

import difflib
import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from mpwds.errors import shortened

C = TypeVar("C", bound="Callable[..., Any]")

# Advice for arguments of torch's DataLoader, and for those that a DataLoader cannot take.
_TORCHS = {
    "batch_sampler": "mpwds.DataLoader takes it",
    "batch_size": "the dataset makes the batches, dataset.batched(8)",
    "collate_fn": "the dataset collates, dataset.batched(8, collation_fn=f)",
    "drop_last": "write dataset.batched(8, partial=False)",
    "generator": "MultiLoader takes seed=1",
    "multiprocessing_context": "MultiLoader takes start_method='fork'",
    "num_workers": "MultiLoader takes workers=2",
    "persistent_workers": "MultiLoader takes persistent=True, which is the default",
    "pin_memory_device": "MultiLoader takes pin_memory=True or device='cuda'",
    "prefetch_factor": "MultiLoader takes prefetch=2",
    "sampler": "mpwds.DataLoader takes it",
    "shuffle": "the dataset shuffles, WebDataset(urls, shardshuffle=True).shuffle(1000)",
    "streams": "MultiLoader takes it, and the order of a DataLoader is that of its sampler",
    "worker_init_fn": "mpwds.DataLoader takes it",
}


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _MOST_SHOWN = 200


def shown(value: object) -> str:
    """A value as errors show it: its ``repr``, of at most 200 characters.

    Example:
        >>> shown("png"), len(shown(bytes(40_000)))
        ("'png'", 200)
    """
    text = _REPR.repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """``": did you mean 'shuffle'?"`` if a public name among ``names`` is similar to ``name``; else empty."""
    similar = difflib.get_close_matches(name, [each for each in names if not each.startswith("_")], n=1)
    return f": did you mean {similar[0]!r}?" if similar else ""


def suggest_arguments(function: C) -> C:
    """Decorator: an unknown argument of ``function`` is an error that suggests the right one.

    On a class it decorates the methods that the class defines.

    Example:
        >>> @suggest_arguments
        ... def load(workers=4):
        ...     pass
        >>> load(worker=2)
        Traceback (most recent call last):
        ...
        TypeError: load() has no argument 'worker': did you mean 'workers'?
    """
    if isinstance(function, type):
        for name, method in list(vars(function).items()):
            if isinstance(method, FunctionType):
                setattr(function, name, suggest_arguments(method))
        return function

    @shortened
    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        try:
            return function(*args, **given)
        except TypeError as error:
            frames = error.__traceback__
            if frames is None or frames.tb_next is not None:  # the function began
                raise
            names = inspect.signature(function).parameters
            unknown = next((name for name in given if name not in names), None)
            if unknown is None:
                raise
        called = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
        advice = f": {_TORCHS[unknown]}" if unknown in _TORCHS else did_you_mean(unknown, names)
        raise TypeError(f"{called}() has no argument {unknown!r}{advice}")

    return call  # type: ignore[return-value]  # it has the signature of what it wraps


class Suggesting:
    """Base of classes whose error for a missing attribute names a similar one."""

    if not TYPE_CHECKING:  # type checkers would assume that every attribute exists

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            found = getattr(kind, name, None)
            if isinstance(found, property):
                return found.__get__(self)  # its getter raised AttributeError: raise that
            # Python adds no suggestion of its own to an error that has a name and no obj.
            raise AttributeError(_no_attribute(kind, name), name=name)


@functools.lru_cache  # programs ask for the same attributes again and again, by hasattr
def _no_attribute(kind: type, name: str) -> str:
    similar = "" if name.startswith("_") else did_you_mean(name, dir(kind))
    return f"{kind.__name__!r} object has no attribute {name!r}{similar}"
