"""Divide shards among nodes and workers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from mpwds.pipeline.context import ALONE, Context, pytorch_worker_info
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.stream import Address, Derived, Stream


class _Split(Filter):
    """A stage without options, used without a call: ``DataPipeline(shards, split_by_node, ...)``."""

    name: str
    divides_among: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name  # there is one of each

    @abstractmethod
    def _share(self, context: Context) -> tuple[int, int]:
        """Number of the share that this process takes, and number of shares."""

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _Share(source, *self._share(context))


class SplitByNode(_Split):
    """Stage that keeps every n-th of its source's elements, n being the number of nodes: ``split_by_node``.

    A node here is a process that trains (a rank). All must see the same elements in the same order.

    Example:
        >>> from mpwds.pipeline.stream import Source
        >>> [n for _, n in split_by_node.stream(Source(range(7)), Context(rank=1, world_size=3))]
        [1, 4]
        >>> list(split_by_node(range(3)))
        [0, 1, 2]
    """

    name = "split_by_node"
    divides_among = ("ranks",)

    def _share(self, context: Context) -> tuple[int, int]:
        return context.rank, context.world_size

    def __call__(self, source: Iterable[Any], group: Any = None) -> Iterator[Any]:
        """Yields this node's share of ``source``.

        Args:
            source: Any iterable.
            group: The ``torch.distributed`` process group whose ranks count; by default what the
                environment variables ``RANK`` and ``WORLD_SIZE`` or the default group say.
        """
        rank, world_size, *_ = pytorch_worker_info(group)
        return islice(source, rank, None, world_size)


class SplitByWorker(_Split):
    """Stage that keeps every n-th element, n being the number of workers of this node: ``split_by_worker``.

    Example:
        >>> from mpwds.pipeline.stream import Source
        >>> [n for _, n in split_by_worker.stream(Source(range(7)), Context(worker=1, workers=3))]
        [1, 4]
    """

    name = "split_by_worker"
    divides_among = ("workers",)

    def _share(self, context: Context) -> tuple[int, int]:
        return context.worker, context.workers


class SingleNodeOnly(_Split):
    """Stage that keeps all elements, but refuses to run on several nodes: ``single_node_only``.

    Raises:
        ValueError: While iterating, there are several nodes.

    Example:
        >>> from mpwds.pipeline.stream import Source
        >>> list(single_node_only(range(3)))
        [0, 1, 2]
        >>> single_node_only.stream(Source(range(3)), Context(world_size=2))
        Traceback (most recent call last):
        ValueError: single_node_only, on node 0 of 2: split the shards with nodesplitter=mpwds.split_by_node
    """

    name = "single_node_only"

    def _share(self, context: Context) -> tuple[int, int]:
        if context.world_size > 1:
            raise ValueError(
                f"single_node_only, on node {context.rank} of {context.world_size}: split the shards with "
                "nodesplitter=mpwds.split_by_node"
            )
        return 0, 1

    def __call__(self, source: Iterable[Any], group: Any = None) -> Iterator[Any]:
        """Yields all of ``source``.

        Args:
            source: Any iterable.
            group: The ``torch.distributed`` process group that must have one member.
        """
        rank, world_size, *_ = pytorch_worker_info(group)
        self._share(Context(rank=rank, world_size=world_size))
        return iter(source)


class NonEmpty(_Split):
    """Stage that passes everything on and raises if there was nothing: ``non_empty``.

    Raises:
        ValueError: While iterating, the source ends without an element.

    Example:
        >>> list(non_empty([]))
        Traceback (most recent call last):
        ValueError: non_empty: the stages before it gave no elements in worker 0 of rank 0
    """

    name = "non_empty"

    def _share(self, context: Context) -> tuple[int, int]:
        return 0, 1

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _NonEmpty(source, context)


class _Share(Derived[Any]):
    def __init__(self, source: Stream[Any], first: int, step: int) -> None:
        super().__init__(source)
        self._step = step
        self._skip = first

    def __next__(self) -> tuple[Address, Any]:
        while self._skip:
            self._next()
            self._skip -= 1
        item = self._next()
        self._skip = self._step - 1
        return item

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "skip": self._skip}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._skip = state["skip"]


class _NonEmpty(Derived[Any]):
    def __init__(self, source: Stream[Any], context: Context) -> None:
        super().__init__(source)
        self._context = context
        self._found = False

    def __next__(self) -> tuple[Address, Any]:
        try:
            item = self._next()
        except StopIteration:
            if not self._found:
                self._found = True
                raise ValueError(
                    "non_empty: the stages before it gave no elements in worker "
                    f"{self._context.worker} of rank {self._context.rank}"
                ) from None
            raise
        self._found = True
        return item

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "found": self._found}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._found = state["found"]


split_by_node: Final = SplitByNode()
split_by_worker: Final = SplitByWorker()
single_node_only: Final = SingleNodeOnly()
non_empty: Final = NonEmpty()
