"""A shard that is open for reading at any offset."""

from __future__ import annotations

import functools
import os
import resource
from collections.abc import Callable
from typing import BinaryIO


def most_open_files() -> int:
    """How many shards a dataset keeps open: 1,000, or a quarter of the descriptors of a process."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(descriptors // 4, 100), 1000)


class ShardFile:
    """An open file of a shard. It is closed when nobody refers to it any more.

    One thread may read a shard while another one drops it to open the next.

    Args:
        url: The shard's name in errors.
        stream: The open file, which is closed: a descriptor of its own stays open.

    Attributes:
        end: Its size in bytes.
        version: Changes when its bytes do: its time of modification, in ns.
        read: ``read(size, offset)`` returns its bytes; fewer at the end, or if a system call returns fewer.
    """

    __slots__ = ("_descriptor", "end", "read", "url", "version")

    def __init__(self, url: str, stream: BinaryIO) -> None:
        self.url = url
        # A stream warns that it was not closed if the garbage collector finds it before this object.
        with stream:
            self._descriptor = os.dup(stream.fileno())
        status = os.fstat(self._descriptor)
        self.end = status.st_size
        self.version = status.st_mtime_ns
        self.read: Callable[[int, int], bytes] = functools.partial(os.pread, self._descriptor)

    @property
    def is_removed(self) -> bool:
        """Whether the file has lost its name, so that only this object keeps it on the disk."""
        return os.fstat(self._descriptor).st_nlink == 0

    def __del__(self) -> None:
        os.close(self._descriptor)
