"""Pickling a dataset for workers: large arrays stay apart, errors name the part that cannot be pickled."""

from __future__ import annotations

import functools
import inspect
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle
import numpy as np

_DEEPEST = 50
_MOST_TRIALS = 20_000


def pickled_apart(item: Any, buffer: Callable[[pickle.PickleBuffer], object]) -> tuple[bytes, set[str]]:
    """Pickles any object, with cloudpickle and out-of-band buffers.

    Args:
        item: The object.
        buffer: Called with the buffer of each large array, which is left out of the pickle. Dense CPU tensors
            count as arrays: torch's own pickling would copy them twice.

    Returns:
        Bytes for ``pickle.loads(.., buffers=..)``, and the modules that loading them imports: those of
            classes and functions, and those that are variables of functions.

    Raises:
        Exception: Pickling a part of the object raised it; ``TypeError`` as a rule.
    """
    # In a process that multiprocessing spawned, the script has a name that no worker can import.
    script = sys.modules.get("__mp_main__")
    if script is not None:
        cloudpickle.register_pickle_by_value(script)
    stream = io.BytesIO()
    pickler = _DatasetPickler(stream, buffer)
    pickler.dump(item)
    return stream.getvalue(), pickler.modules


class _DatasetPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def __init__(self, stream: Any, buffer: Callable[[pickle.PickleBuffer], object]) -> None:
        super().__init__(stream, protocol=5, buffer_callback=buffer)
        self.modules: set[str] = set()

    def reducer_override(self, item: Any) -> Any:
        kind = type(item)
        if kind is FunctionType or issubclass(kind, type):
            module = getattr(item, "__module__", None)
            if isinstance(module, str) and module not in ("__main__", "__mp_main__"):
                self.modules.add(module)
        elif isinstance(item, ModuleType):
            if sys.modules.get(item.__name__) is item:
                self.modules.add(item.__name__)
        else:
            reduced = reduced_tensor(item)
            if reduced is not None:
                self.modules.add("torch")
                return reduced
            reduced = _reduced_array(item)
            if reduced is not None:
                return reduced
        return super().reducer_override(item)


def reduced_tensor(item: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """How to pickle a tensor as an array, as ``__reduce__`` says it; ``None`` if that loses something."""
    torch = sys.modules.get("torch")
    if type(item) is not getattr(torch, "Tensor", None) or torch is None:
        return None
    dense = item.is_cpu and item.layout is torch.strided and not item.is_nested
    if not dense or item.is_conj() or item.is_neg() or item.requires_grad or vars(item):
        return None
    try:
        if item.dtype is torch.bfloat16:
            return _tensor, (item.view(torch.int16).numpy(), "bfloat16")
        if item.dtype.is_floating_point and item.dtype.itemsize == 1:  # torch itself cannot unpickle these
            return _tensor, (item.view(torch.uint8).numpy(), str(item.dtype).removeprefix("torch."))
        return _tensor, (item.numpy(), None)
    except (TypeError, RuntimeError):  # a dtype that NumPy does not have, or no memory behind it
        return None


def _reduced_array(item: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """How to pickle an array that NumPy would copy into the pickle: a mapped one, or one with gaps."""
    kind = type(item)
    if (kind is not np.ndarray and kind is not np.memmap) or item.dtype.hasobject:
        return None
    flags = item.flags
    if kind is np.memmap:
        return _memmap, (item.view(np.ndarray),)
    if flags.c_contiguous or flags.f_contiguous:
        return None
    return _array, (np.ascontiguousarray(item), flags.writeable)


def _array(array: Any, writeable: bool) -> Any:
    array.flags.writeable = writeable
    return array


def _memmap(array: Any) -> Any:
    return array.view(np.memmap)


def _tensor(array: Any, dtype: str | None) -> Any:
    import torch

    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor if dtype is None else tensor.view(getattr(torch, dtype))


def find_unpicklable(setup: Any) -> str:
    """The path to the innermost part of an object that cannot be pickled, from its attributes, and its class.

    Example:
        >>> class Setup:
        ...     def __init__(self, dataset):
        ...         self.dataset = dataset
        >>> find_unpicklable(Setup([1, {"lines": (line for line in "ab")}]))
        "dataset[1]['lines'] is a generator"
    """
    path, culprit = _follow(setup)
    what = getattr(culprit, "__qualname__", None) if isinstance(culprit, (FunctionType, MethodType)) else None
    return f"{path.lstrip('.') or 'it'} is a {type(culprit).__qualname__}{f' ({what})' if what else ''}"


def _follow(item: Any) -> tuple[str, Any]:
    path = ""
    visited = {id(item)}
    trials = 0
    for _ in range(_DEEPEST):
        for step, part in _parts(item):
            trials += 1
            if id(part) not in visited and not _can_be_pickled(part):
                visited.add(id(part))
                path, item = path + step, part
                break
            if trials > _MOST_TRIALS:
                return path, item
        else:
            break
    return path, item


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


def _can_be_pickled(item: Any) -> bool:
    try:
        _DatasetPickler(_Nowhere(), lambda buffer: None).dump(item)
    except Exception:
        return False
    return True


def _parts(item: Any) -> Iterator[tuple[str, Any]]:
    """The parts that an object's pickle probably contains, each with the step that leads there."""
    if isinstance(item, dict):
        yield from ((f"[{key!r}]", value) for key, value in list(item.items()))
    elif isinstance(item, (list, tuple, set, frozenset)):
        yield from ((f"[{index}]", value) for index, value in enumerate(list(item)))
    elif isinstance(item, functools.partial):
        yield from ((".func", item.func), (".args", item.args), (".keywords", item.keywords))
    elif isinstance(item, MethodType):
        yield ".__self__", item.__self__
    elif isinstance(item, FunctionType):
        yield from _parts_of_function(item)
    attributes = getattr(item, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(item, type):
        yield from ((f".{name}", value) for name, value in list(attributes.items()))
    for kind in type(item).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(item, name):
                yield f".{name}", getattr(item, name)


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=False):
        try:
            yield f"'s variable {name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__ and not inspect.ismodule(function.__globals__[name]):
            yield f"'s global {name}", function.__globals__[name]
