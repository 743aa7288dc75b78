"""WebLoader: a DataLoader with stages behind it."""

from __future__ import annotations

from typing import Any, ClassVar

from mpwds.loader.loader_pipeline import Rebatching
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.passing import Passing


class WebLoader(Rebatching, DataPipeline):
    """Iterates a dataset by a ``DataLoader``; the stages that are added to it run in this process.

    Args:
        args: For the DataLoader.
        kw: For the DataLoader.

    Attributes:
        loader: The DataLoader.

    Raises:
        ValueError, TypeError: As DataLoader, for arguments that do not fit together.

    Source:
        ``webdataset.WebLoader``.

    Example:
        >>> dataset = DataPipeline(range(6)).batched(3)
        >>> loader = WebLoader(dataset, batch_size=None, num_workers=2)
        >>> sorted(map(int, loader.unbatched()))
        [0, 1, 2, 3, 4, 5]
        >>> [len(batch) for batch in loader.rebatched(4, shuffle=6)]
        [4, 2]
    """

    def __init__(self, *args: Any, **kw: Any) -> None:
        from mpwds.loader.data_loader import DataLoader

        loader: DataLoader[Any] = DataLoader(*args, **kw)
        super().__init__(_Loaded(loader))
        self.loader = loader
        self._call = f"WebLoader({loader.dataset!r}, num_workers={loader.num_workers})"


class _Loaded:
    """Beginning of a pipeline: what a DataLoader delivers. Its elements cannot be made again."""

    addressable: ClassVar[bool] = False

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __str__(self) -> str:
        return "DataLoader"

    def close(self) -> None:
        self._loader.close()

    def stream(self, context: Context = ALONE) -> Passing:
        return Passing(iter(self._loader), "that the workers delivered")
