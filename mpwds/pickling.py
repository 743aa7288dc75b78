"""Pickles for a process that may already have the pickled object's class, though by no importable name."""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import cloudpickle

from mpwds.imports import tensor_class


def dumps(item: Any) -> bytes:
    """Pickles any object, with cloudpickle, for ``pickle.loads``.

    cloudpickle sends a class of ``__main__`` or of a function by value. In the process where the class came
    from, it then overwrites the class that is there: functions get other globals, and class attributes lose
    later assignments. These pickles use the receiver's own class if it has one: the one it sent away, or one
    of that name.
    """
    return _dumped(OwnClassPickler, item)


def _dumped(pickler: type[Pickler], item: Any) -> bytes:
    stream = io.BytesIO()
    pickler(stream, protocol=5).dump(item)
    return stream.getvalue()


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle's, for two cases that it sends in a form that cannot be loaded.

    With a function, cloudpickle sends submodules whose names it uses as attributes: ``torch.classes``, of
    another class than Python's own, where it uses torch and ``dataset.classes``. And it sends what
    ``functools.cache`` makes by name, also of functions of ``__main__``.
    """

    def reducer_override(self, item: Any) -> Any:
        if isinstance(item, ModuleType) and sys.modules.get(item.__name__) is item and not _by_value(item):
            return importlib.import_module, (item.__name__,)
        if isinstance(item, _CACHED) and item.__module__ == "__main__":
            return _cached, (item.__wrapped__, item.cache_parameters())
        return super().reducer_override(item)


def _by_value(module: ModuleType) -> bool:
    return module.__name__ in cloudpickle.list_registry_pickle_by_value()


_CACHED: Any = type(functools.cache(len))


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


class OwnClassPickler(Pickler):
    def reducer_override(self, item: Any) -> Any:
        if (tensor := reduced_tensor(item)) is not None:
            return tensor
        reduced = super().reducer_override(item)
        if reduced is NotImplemented or not isinstance(item, type):
            return reduced
        # By value, but as a separate pickle, which a receiver that has the class does not load.
        by_value = _dumped(Pickler, item)
        return _own_class, (_tracked("CLASS", item), f"{item.__module__}:{item.__qualname__}", by_value)


def reduced_tensor(item: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Reduces a tensor to an array, in the form of ``__reduce__``; ``None`` if that loses something."""
    if type(item) is not tensor_class():
        return None
    torch = sys.modules["torch"]
    if item.requires_grad:
        return None
    try:
        if item.dtype is torch.complex32 or (item.dtype.is_floating_point and item.dtype.itemsize == 1):
            dtype = str(item.dtype).removeprefix("torch.")  # torch itself cannot unpickle these
            whole = torch.int32 if item.dtype.itemsize == 4 else torch.uint8
            return _tensor, (item.view(whole).numpy(), dtype, vars(item))
        if vars(item):
            return None
        if item.dtype is torch.bfloat16:
            return _tensor, (item.view(torch.int16).numpy(), "bfloat16")
        return _tensor, (item.numpy(), None)
    except (TypeError, RuntimeError):  # NumPy lacks its dtype, or its memory is elsewhere, not dense or lazy
        return None


def _tensor(array: Any, dtype: str | None, attributes: dict[str, Any] | None = None) -> Any:
    import torch

    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    tensor = tensor if dtype is None else tensor.view(getattr(torch, dtype))
    vars(tensor).update(attributes or {})
    return tensor


def find_class(name: str) -> type | None:
    """The imported class called ``module:qualname``, or ``None``. Runs no code of the module or the class."""
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = found.__dict__.get(part) if isinstance(found, type | ModuleType) else None
    return found if isinstance(found, type) else None


def _own_class(tracker_id: str | None, name: str, by_value: bytes) -> Any:
    return _tracked("ID", tracker_id) or find_class(name) or pickle.loads(by_value)


def _tracked(by: str, key: Any) -> Any:
    """By ``"CLASS"``, cloudpickle's identifier of a class that came here by value; by ``"ID"``, the class."""
    return getattr(cloudpickle.cloudpickle, f"_DYNAMIC_CLASS_TRACKER_BY_{by}", {}).get(key)
