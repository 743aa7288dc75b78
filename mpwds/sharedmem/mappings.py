"""Shared mappings of this process, found by their address, for other processes to map."""

from __future__ import annotations

import bisect
import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import NamedTuple

from mpwds.errors import SharedMemoryError

_MAP_NORESERVE = 0x4000
"""Not in Python's ``mmap`` before 3.13. A private mapping counts as memory that may be needed without it."""


class Region(NamedTuple):
    """A part of a file, or of a segment without a name."""

    path: str  # by which any process of this user can open it
    offset: int
    nbytes: int
    writable: bool  # whether writes reach all processes that have mapped it


class Mappings:
    """The shared mappings that this process has now.

    Other processes open segments without a name through ``/proc/<pid>/fd``, as long as this object lives.
    """

    def __init__(self) -> None:
        self._ranges = list(_shared_ranges())  # in the order of their addresses
        self._starts = [item.start for item in self._ranges]
        self._held: dict[tuple[str, int], int] = {}
        self._close = os.close

    def find(self, address: int, nbytes: int) -> Region | None:
        """The region at an address; ``None`` if that is this process' private memory."""
        number = bisect.bisect_right(self._starts, address) - 1
        item = self._ranges[number] if number >= 0 else None
        if item is None or address + nbytes > item.end or (path := self._path(item)) is None:
            return None
        return Region(path, item.offset + address - item.start, nbytes, item.writable)

    def __del__(self) -> None:
        for descriptor in getattr(self, "_held", {}).values():
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
