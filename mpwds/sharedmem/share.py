"""share: data in shared memory, which all workers use without a copy of their own."""

from __future__ import annotations

import math
import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from mpwds.sharedmem import segment


def share(data: Any) -> Any:
    """Copies an array, tensor or list into memory that this process shares with its workers.

    A large array in a dataset takes its size twice: once here, and once for all workers together. A shared
    array takes it once: keep it and drop the original. Arrays in mapped memory need no ``share``
    (``numpy.load(..., mmap_mode="r")``, ``Tensor.share_memory_()``, ``multiprocessing`` shared memory).

    Writes to a shared array reach all processes.

    Args:
        data: A NumPy array, a dense CPU tensor, or a list or tuple of objects that can be pickled. A list of
            millions of small objects takes each worker several times their size (a forked worker gradually,
            as it reads them). A shared list takes the size of the pickled objects, once.

    Returns:
        An array or tensor of the same shape, dtype and content. For a list or tuple, a read-only
        :class:`SharedList`, which unpickles an object each time it is read.

    Raises:
        TypeError: ``data`` has another type, or is an array of objects.
        SharedMemoryError: There is no memory for it.

    Example:
        >>> labels = share(np.arange(5))
        >>> labels.sum()
        np.int64(10)
        >>> names = share(["ant", "bee", "cat"])
        >>> names[1], names[-1], len(names)
        ('bee', 'cat', 3)
    """
    if isinstance(data, np.ndarray):
        return _shared_array(data)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return _shared_tensor(data, torch)
    if isinstance(data, (list, tuple)):
        return SharedList(data)
    raise TypeError(
        f"share: expected a NumPy array, a tensor, a list or a tuple, got a {type(data).__name__}"
    )


class SharedList(Sequence[Any]):
    """A list whose elements are pickled in shared memory: see :func:`share`. Slices are plain lists."""

    def __init__(self, items: Iterable[Any]) -> None:
        pickled = [pickle.dumps(item, protocol=5) for item in items]
        self._ends = _shared_array(np.cumsum([len(data) for data in pickled], dtype=np.int64))
        self._data = _empty((int(self._ends[-1]) if pickled else 0,), np.dtype(np.uint8), "C")
        memory = memoryview(self._data)
        start = 0
        for data in pickled:
            memory[start : start + len(data)] = data
            start += len(data)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        start = self._ends[number - 1] if number else 0
        return pickle.loads(memoryview(self._data)[start : self._ends[number]])

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def __repr__(self) -> str:
        return f"<SharedList of {len(self)} elements, {self._data.nbytes / 1e6:,.1f} MB>"


def _shared_array(array: Any) -> Any:
    if array.dtype.hasobject:
        raise TypeError(
            f"share: an array of {array.dtype} holds objects, which cannot be shared: share a list"
        )
    is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    shared = _empty(array.shape, array.dtype, "F" if is_fortran else "C")
    shared[...] = array
    return shared


def _shared_tensor(tensor: Any, torch: Any) -> Any:
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise TypeError(f"share: expected a dense tensor on the CPU, got {tensor.layout} on {tensor.device}")
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        return torch.from_numpy(_shared_array(plain.view(torch.int16).numpy())).view(torch.bfloat16)
    return torch.from_numpy(_shared_array(plain.numpy()))


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any], order: Any) -> Any:
    nbytes = max(1, math.prod(shape) * dtype.itemsize)
    descriptor = segment.create(nbytes)
    try:
        segment.commit(descriptor, 0, nbytes)
        memory = segment.map(descriptor, nbytes)  # keeps a descriptor, by which workers open it
    finally:
        os.close(descriptor)
    return np.ndarray(shape, dtype, memory, order=order)
