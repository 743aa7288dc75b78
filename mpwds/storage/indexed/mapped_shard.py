"""A tar shard that is open for reading at any offset."""

from __future__ import annotations

import mmap
import os
from typing import BinaryIO

from mpwds.errors import ShardError
from mpwds.storage.tar.headers import WINDOW_BYTES


class MappedShard:
    """A shard's file, mapped into memory: copying 100 kB of it takes half as long as reading them.

    It is closed when nobody refers to it any more: one thread may read it while another drops it to open the
    next. As with any mapped file, reading what somebody cuts off meanwhile ends the process (SIGBUS).

    Args:
        url: The shard's name in errors.
        stream: The open file, which is closed.

    Attributes:
        end: Its size in bytes.
        version: Differs from that of any other file: times of modification and of change in ns, inode.
        map: Its bytes.

    Raises:
        ShardError: The file is empty.
    """

    window_bytes = WINDOW_BYTES

    def __init__(self, url: str, stream: BinaryIO) -> None:
        self.url = url
        with stream:
            status = os.fstat(stream.fileno())
            if status.st_size == 0:
                raise ShardError(f"{url} is empty: a tar file without members has blocks of zeros")
            self.map = mmap.mmap(stream.fileno(), status.st_size, access=mmap.ACCESS_READ)
        self.end = status.st_size
        self.version: tuple[int | str, ...] = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        self._path, self._status = stream.name, status

    @property
    def is_removed(self) -> bool:
        """True if the file has lost its name, so that only this object keeps it on the disk."""
        try:
            return not os.path.samestat(os.stat(self._path), self._status)
        except OSError:
            return True

    def read(self, size: int, offset: int) -> memoryview:
        """A view of ``size`` bytes from ``offset`` on; fewer at the end."""
        return memoryview(self.map)[offset : offset + size]
