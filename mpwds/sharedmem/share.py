"""Data in shared memory, which all workers use without copies, and the mappings that such data lies in."""

from __future__ import annotations

import bisect
import contextlib
import math
import mmap
import operator
import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from mpwds.errors import SharedMemoryError
from mpwds.imports import tensor_class
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
        TypeError: ``data`` has another type, or is an array of objects or a masked one.
        SharedMemoryError: There is no memory for it.

    Example:
        >>> labels = share(np.arange(5))
        >>> labels.sum()
        np.int64(10)
        >>> names = share(["ant", "bee", "cat"])
        >>> names[1], names[-1], len(names)
        ('bee', 'cat', 3)
    """
    if isinstance(data, np.ma.MaskedArray):
        raise TypeError("share: a masked array would lose its mask: share its data and its mask")
    if isinstance(data, np.ndarray):
        return _shared_array(data)
    if isinstance(data, tensor_class()):
        return _shared_tensor(data, sys.modules["torch"])
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
        self._data = _empty((sum(map(len, pickled)),), np.dtype(np.uint8), "C")
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
    if plain.dtype is torch.bfloat16 or (plain.dtype.is_floating_point and plain.dtype.itemsize == 1):
        whole = torch.int16 if plain.dtype.itemsize == 2 else torch.uint8  # NumPy lacks its dtype
        return torch.from_numpy(_shared_array(plain.view(whole).numpy())).view(plain.dtype)
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


_MAP_NORESERVE = 0x4000
"""Not in Python's ``mmap`` before 3.13. A private mapping counts as memory that may be needed without it."""


class Region(NamedTuple):
    """A part of a file, or of a segment without a name."""

    path: str  # by which any process of this user can open it
    offset: int
    nbytes: int
    writable: bool  # whether writes reach all processes that have mapped it
    file: tuple[int, int] | None = None  # device and inode, of a file that may be replaced


class Mappings:
    """This process' shared mappings. Others open nameless ones by ``/proc/<pid>/fd`` while this lives."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], int] = {}
        self._close = os.close
        self._ranges = list(_shared_ranges())  # in the order of their addresses

    def find(self, address: int, nbytes: int) -> Region | None:
        """The region at an address; ``None`` if that is this process' private memory."""
        number = bisect.bisect_right(self._ranges, address, key=operator.attrgetter("start")) - 1
        item = self._ranges[number] if number >= 0 else None
        if item is None or address + nbytes > item.end or (path := self._path(item)) is None:
            return None
        file = None
        if path == item.path:
            status = os.stat(path)
            file = status.st_dev, status.st_ino
        return Region(path, item.offset + address - item.start, nbytes, item.writable, file)

    def __del__(self) -> None:
        for descriptor in self._held.values():
            self._close(descriptor)

    def _path(self, item: _Range) -> str | None:
        if os.path.isfile(item.path):
            return item.path
        key = item.device, item.inode
        if key not in self._held:
            descriptor = _descriptor_of(*key)
            if descriptor is None:
                return None
            self._held[key] = descriptor
        return f"/proc/{os.getpid()}/fd/{self._held[key]}"


def map_region(region: Region) -> memoryview:
    """The memory of a region that another process found; writes stay private if it is not ``writable``."""
    start = region.offset - region.offset % mmap.ALLOCATIONGRANULARITY
    length = region.offset + region.nbytes - start
    flags = mmap.MAP_SHARED if region.writable else mmap.MAP_PRIVATE | _MAP_NORESERVE
    try:
        descriptor = os.open(region.path, os.O_CLOEXEC | (os.O_RDWR if region.writable else os.O_RDONLY))
        try:
            status = os.fstat(descriptor)
            if region.file is not None and tuple(region.file) != (status.st_dev, status.st_ino):
                raise OSError("another file has its name now")
            memory = mmap.mmap(descriptor, length, flags=flags, offset=start)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise SharedMemoryError(
            f"memory that the dataset shares with other processes ({region.path}) cannot be mapped in this "
            f"one ({error}): give the dataset a copy of its own"
        ) from error
    return memoryview(memory)[region.offset - start :]


def map_privately(descriptor: int) -> memoryview:
    """A segment's memory, shared until it is written to: the writer then gets its own copy of that page."""
    return memoryview(mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE))


class _Range(NamedTuple):
    start: int
    end: int
    offset: int
    writable: bool
    device: str
    inode: int
    path: str


def _shared_ranges() -> Iterator[_Range]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            addresses, permissions, offset, device, inode, *rest = line.rstrip("\n").split(maxsplit=5)
            if permissions[3] == "s" and rest:
                start, end = (int(text, 16) for text in addresses.split("-"))
                yield _Range(start, end, int(offset, 16), permissions[1] == "w", device, int(inode), rest[0])


def _descriptor_of(device: str, inode: int) -> int | None:
    """A duplicate of the descriptor by which this process has mapped a file."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found = os.fstat(int(name))
            its_device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
            if (found.st_ino, its_device) == (inode, device):
                return os.dup(int(name))
    return None
