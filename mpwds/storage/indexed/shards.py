"""What any kind of indexed shards offers: their samples, by number."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from typing import Any, Protocol


class IndexedShards(Protocol):
    """Shards whose samples can be read by number, in any order.

    Implementations can be pickled and used in forks, and keep a bounded number of files open.

    Attributes:
        urls: The shards' URLs or paths.
        lengths: The number of samples in each shard.
    """

    @property
    def urls(self) -> Sequence[str]: ...

    @property
    def lengths(self) -> Sequence[int]: ...

    def read(self, shard: int, index: int) -> dict[str, Any]:
        """The fields of sample ``index`` of a shard, by name; those of tar shards are bytes.

        Raises:
            ShardError: The shard is damaged. The message names file and offset.
        """
        ...

    def close(self) -> None:
        """Closes the files that are open; the next ``read`` opens them again."""
        ...


def most_open_files() -> int:
    """The number of shards that a dataset keeps open: 1,000, or a quarter of the descriptors of a process."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(descriptors // 4, 100), 1000)
