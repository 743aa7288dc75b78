"""Pickles for a process that may already have the pickled object's class, though by no importable name."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
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
    """cloudpickle's, which sends imported modules by name only if their class is Python's own.

    With a function, cloudpickle sends submodules whose names it uses as attributes: ``torch.classes``, of
    another class, where it uses torch and ``dataset.classes``.
    """

    def reducer_override(self, item: Any) -> Any:
        if isinstance(item, ModuleType) and sys.modules.get(item.__name__) is item:
            return importlib.import_module, (item.__name__,)
        return super().reducer_override(item)


class OwnClassPickler(Pickler):
    def reducer_override(self, item: Any) -> Any:
        if type(item) is tensor_class() and _is_float8(item):
            octets = item.detach().cpu().view(sys.modules["torch"].uint8).numpy()
            return _float8_tensor, (octets, str(item.dtype).removeprefix("torch."))
        reduced = super().reducer_override(item)
        if reduced is NotImplemented or not isinstance(item, type):
            return reduced
        # By value, but as a separate pickle, which a receiver that has the class does not load.
        by_value = _dumped(Pickler, item)
        return _own_class, (_tracked("CLASS", item), f"{item.__module__}:{item.__qualname__}", by_value)


def _is_float8(tensor: Any) -> bool:
    """True if torch pickles the tensor's dtype but cannot unpickle it."""
    is_strided = str(tensor.layout) == "torch.strided" and not tensor.requires_grad
    return bool(is_strided and tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1)


def _float8_tensor(octets: Any, dtype: str) -> Any:
    import torch

    return torch.from_numpy(octets).view(getattr(torch, dtype))


def find_class(name: str) -> type | None:
    """The imported class called ``module:qualname``, or ``None``. Runs no code of the module or the class."""
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    if not isinstance(found, ModuleType):
        return None
    for part in qualname.split("."):
        found = found.__dict__.get(part) if isinstance(found, type | ModuleType) else None
    return found if isinstance(found, type) else None


def _own_class(tracker_id: str | None, name: str, by_value: bytes) -> Any:
    return _tracked("ID", tracker_id) or find_class(name) or pickle.loads(by_value)


def _tracked(by: str, key: Any) -> Any:
    """By ``"CLASS"``, cloudpickle's identifier of a class that came here by value; by ``"ID"``, the class."""
    return getattr(cloudpickle.cloudpickle, f"_DYNAMIC_CLASS_TRACKER_BY_{by}", {}).get(key)
