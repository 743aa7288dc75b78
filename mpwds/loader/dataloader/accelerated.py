"""use_in_accelerate: makes Hugging Face's Accelerate build DataLoaders of this package's class."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpwds.loader.dataloader.data_loader import DataLoader, check_not_divided_again


def use_in_accelerate() -> None:
    """Makes Accelerate, and the Trainer of transformers, which builds on it, use ``mpwds.DataLoader``.

    Both build a torch DataLoader for each rank from the parts of the one that they are given. After this
    call they build a ``mpwds.DataLoader`` (with ``use_stateful_dataloader`` still torchdata's class).

    Raises:
        ImportError: Accelerate is not installed.
        RuntimeError: Accelerate is older than 0.34, whose DataLoader class cannot be replaced.

    While a loader is prepared:
        ``ValueError``: There are several ranks, and the dataset is a pipeline of this package, which divides
        itself among them.

    Example:
        >>> from accelerate import Accelerator  # doctest: +SKIP
        >>> from mpwds import DataLoader
        >>> use_in_accelerate()  # doctest: +SKIP
        >>> prepared = Accelerator().prepare(DataLoader([1, 2, 3], batch_size=2))  # doctest: +SKIP
        >>> [batch.tolist() for batch in prepared]  # doctest: +SKIP
        [[1, 2], [3]]
    """
    try:
        import accelerate.accelerator as preparing
        import accelerate.data_loader as building
    except ImportError as error:
        raise ImportError("use_in_accelerate needs Accelerate: pip install 'mpwds[huggingface]'") from error
    if not hasattr(building, "DataLoaderAdapter"):
        raise RuntimeError("use_in_accelerate needs accelerate 0.34 or later: pip install -U accelerate")
    building.DataLoader = DataLoader
    if preparing.prepare_data_loader is building.prepare_data_loader:
        preparing.prepare_data_loader = _checked(building.prepare_data_loader)


def _checked(prepare: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(prepare)
    def checked(dataloader: Any, *arguments: Any, **options: Any) -> Any:
        check_not_divided_again(dataloader.dataset)
        return prepare(dataloader, *arguments, **options)

    return checked
