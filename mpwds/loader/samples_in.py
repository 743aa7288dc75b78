"""How many samples an element is: the rows of a batch, or one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.parts import iterates_itself
from mpwds.pipeline.sources.elements import Indexed
from mpwds.pipeline.stages.batched import Batched
from mpwds.pipeline.stages.batched_by_size import BatchedBySize
from mpwds.pipeline.stages.bucketed import Bucketed
from mpwds.pipeline.stages.unbatched import Unbatched
from mpwds.pipeline.stages.unlisted import Unlisted


def sample_counter(dataset: Any) -> Callable[[Any], int]:
    """What tells how many samples an element of this dataset is.

    Where the last stage that batches or takes batches apart leaves single elements, and where a pipeline
    that has no such stage begins at shards or at a sequence, each element is one sample. Elsewhere their
    form tells: :func:`samples_in`.

    Example:
        >>> sample_counter(DataPipeline([[1, 2], [3]]))([1, 2])
        1
        >>> sample_counter(DataPipeline([1, 2, 3]).batched(2, collation_fn=None))([1, 2])
        2
    """
    return _one if _makes_batches(dataset) is False else samples_in


def samples_in(element: Any) -> int:
    """The number of samples in an element: what all its columns have as their length, if it is a batch.

    A batch is an array, or a dict, tuple, list or dataclass of columns: arrays and lists, nested or not. A
    number or a string in it says that it is a single sample. It takes about a microsecond.

    Example:
        >>> import numpy as np
        >>> samples_in({"image": np.zeros((64, 3, 8, 8)), "label": list(range(64))})
        64
        >>> samples_in((np.zeros((3, 8, 8)), 7))
        1
    """
    is_list = isinstance(element, list)
    rows = None
    for column in _columns(element):
        if isinstance(column, list):
            length = len(column)
        elif isinstance(shape := attribute(column, "shape"), tuple) and shape and isinstance(shape[0], int):
            length = shape[0]
        elif column is None:
            continue
        elif is_list:
            return len(element)
        elif isinstance(column, (dict, tuple)) or _is_dataclass(column):
            length = samples_in(column)
        else:
            return 1
        if rows is None:
            rows = length
        elif length != rows:
            return 1
    return 1 if rows is None else rows


def attribute(item: Any, name: str) -> Any:
    """An attribute of whatever is counted; ``None`` if it has none or does not tell, which must end no epoch.

    Example:
        >>> attribute(b"bytes", "shape") is None
        True
    """
    try:
        return getattr(item, name, None)
    except Exception:  # a nested tensor has no shape, and a sparse one no nbytes, that it would tell
        return None


def _columns(element: Any) -> Iterable[Any]:
    if isinstance(element, dict):
        return element.values()
    if isinstance(element, (tuple, list)):
        return element
    if _is_dataclass(element):
        return [attribute(element, field.name) for field in dataclasses.fields(element)]
    return (element,)


def _is_dataclass(element: Any) -> bool:
    return dataclasses.is_dataclass(element) and not isinstance(element, type)


def _one(element: Any) -> int:
    return 1


def _makes_batches(dataset: Any) -> bool | None:
    """Whether a dataset yields batches; ``None`` if that is not known."""
    if not isinstance(dataset, DataPipeline) or iterates_itself(dataset) or not dataset.pipeline:
        return None
    origin, *stages = dataset.parts
    for stage in reversed(stages):
        if isinstance(stage, (Batched, BatchedBySize, Bucketed)):
            return True
        if isinstance(stage, (Unbatched, Unlisted)) or getattr(stage, "reads_shards", False):
            return False
    return False if isinstance(origin, Indexed) else _makes_batches(origin)
