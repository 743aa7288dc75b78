"""share: data that the workers of all loaders use where it lies, without a copy of their own."""

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

    A large array in a dataset costs its size twice: here, and once for all workers together. An array
    from here costs it once: keep this one and drop the original. So does one that is mapped already
    (``numpy.load(..., mmap_mode="r")``, ``Tensor.share_memory_()``, ``multiprocessing`` shared memory), for
    which there is no need of this function.

    What is written to shared arrays, by whomever, all see.

    Args:
        data: A NumPy array, a dense tensor on the CPU, or a list or tuple of anything that can be pickled. A
            list of millions of small objects costs each worker several times what they hold (a forked one by
            and by, as it looks at them); what this makes of it, the size of the pickled objects, once.

    Returns:
        An array or tensor of the same shape, dtype and content. For a list, a read-only
        :class:`SharedList`, which makes an object anew each time it is asked for one.

    Raises:
        TypeError: It is none of these, or an array of objects.
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
    """A list whose elements lie pickled in shared memory. See :func:`share`.

    Slices are lists.

    Args:
        items: Its elements.

    Raises:
        SharedMemoryError: There is no memory for it.
    """

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
        memory = segment.map(descriptor, nbytes)  # has a descriptor of its own, by which workers open it
    finally:
        os.close(descriptor)
    return np.ndarray(shape, dtype, memory, order=order)
