"""Pickling what workers need: by cloudpickle, large arrays apart, noting what will be imported."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np

from mpwds.pipeline.torch_dataset import TorchIterable


def pickled_apart(
    item: Any, buffer: Callable[[pickle.PickleBuffer], object], ignore_epochs: bool = False
) -> tuple[bytes, set[str]]:
    """Pickles any object, with cloudpickle and out-of-band buffers.

    Args:
        item: What to pickle.
        buffer: Called with each large array's buffer, which does not become part of the pickle. Dense CPU
            tensors count as arrays: left to themselves they would be copied, twice.
        ignore_epochs: Whether to leave out how often this process has iterated datasets.

    Returns:
        Bytes for ``pickle.loads(.., buffers=..)``, and the modules that they import: those of classes and
            functions, and those that are variables of functions.

    Raises:
        Exception: Whatever pickling an object of its class raises; ``TypeError`` as a rule.

    Example:
        >>> data, modules = pickled_apart([pickled_apart], lambda buffer: None)
        >>> pickle.loads(data) == [pickled_apart], modules
        (True, {'mpwds.loader.processes.dataset_pickler'})
    """
    # In a process that multiprocessing spawned, the script has a name by which no worker can import it.
    script = sys.modules.get("__mp_main__")
    if script is not None:
        cloudpickle.register_pickle_by_value(script)
    stream = io.BytesIO()
    pickler = DatasetPickler(stream, buffer, ignore_epochs)
    pickler.dump(item)
    return stream.getvalue(), pickler.modules


class DatasetPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """What :func:`pickled_apart` pickles with."""

    def __init__(
        self, stream: Any, buffer: Callable[[pickle.PickleBuffer], object], ignore_epochs: bool = False
    ) -> None:
        super().__init__(stream, protocol=5, buffer_callback=buffer)
        self.modules: set[str] = set()
        self._ignore_epochs = ignore_epochs

    def reducer_override(self, item: Any) -> Any:
        kind = type(item)
        if kind is FunctionType or issubclass(kind, type):
            module = getattr(item, "__module__", None)
            if isinstance(module, str) and module not in ("__main__", "__mp_main__"):
                self.modules.add(module)
        elif isinstance(item, ModuleType):
            if sys.modules.get(item.__name__) is item:
                self.modules.add(item.__name__)
        elif self._ignore_epochs and isinstance(item, TorchIterable) and "_epoch" in vars(item):
            same = copy.copy(item)
            del same.__dict__["_epoch"]
            return same.__reduce_ex__(5)
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
    """How to pickle a tensor as the array of its elements.

    Returns:
        What ``__reduce__`` returns; ``None`` for anything else, and for a tensor that is more than that.
    """
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
    """How to pickle an array that NumPy would not leave where it is: a mapped one, or one with gaps."""
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
