"""Indexed shards: the protocol of any kind, and a base that keeps few of them open."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import numpy.typing as npt

T = TypeVar("T")


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


class OpenShards:
    """Base of indexed shards that keeps a bounded number of them open. Pickles and copies have none open.

    An open shard closes its file when nobody refers to it any more: one thread may read it while another one
    drops it to open the next.
    """

    def __init__(self, most: int) -> None:
        self._open: dict[int, Any] = {}
        self._most_open = most

    def close(self) -> None:
        """Closes the files that are open; the next ``read`` opens them again."""
        self._open.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def _make_room(self) -> None:
        """Closes shards so that one more may be opened."""
        # The one that was opened first goes, so that a hit changes nothing: other threads may read.
        for oldest in list(self._open)[: max(0, len(self._open) + 1 - self._most_open)]:
            self._open.pop(oldest, None)


class Computed(Sequence[T]):
    """A value for each of ``count`` shards, which the function ``value`` computes when it is asked for."""

    def __init__(self, count: int, value: Callable[[int], T]) -> None:
        self._count = count
        self._value = value

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, shard: Any) -> Any:
        if isinstance(shard, int) and 0 <= shard < self._count:  # most often
            return self._value(shard)
        shards = range(self._count)[shard]
        return self._value(shards) if isinstance(shards, int) else list(map(self._value, shards))


class Lengths(Computed[int]):
    """The number of samples in each shard; ``ends()`` are the numbers after their last samples, an array."""

    def __init__(self, count: int, value: Callable[[int], int], ends: Callable[[], npt.NDArray[Any]]) -> None:
        super().__init__(count, value)
        self.ends = ends


def most_open_files() -> int:
    """The number of shards that a dataset keeps open: 1,000, or a quarter of the descriptors of a process."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(descriptors // 4, 100), 1000)
