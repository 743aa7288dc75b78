"""The definition of a dataset, which a server tells its clients, so that they need not have it."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from mpwds.loader.resume.state import described
from mpwds.loader.worker.elements import count_delivered
from mpwds.pipeline.coercion import takes_any_order
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.iterable_sources import IterableSource, iterates_itself
from mpwds.pipeline.stream import Count, LengthUnknown, Stream

_MOST_DEPTH = 12


def define(dataset: Any) -> dict[str, Any]:
    """A dataset's definition, as a server sends it."""
    is_pipeline = isinstance(dataset, DataPipeline) and not iterates_itself(dataset)
    return {
        "description": described(dataset),
        "seed": dataset.given_seed if is_pipeline else None,
        "length": dataset.given_length if is_pipeline else None,
        "in_any_order": takes_any_order(dataset),
        "unaddressed": dataset.non_resumable_part if is_pipeline else None,
        "self_dividing": dataset.self_dividing_part if is_pipeline else type(dataset).__name__,
        "fingerprint": fingerprint(dataset),
    }


def fingerprint(dataset: Any) -> str:
    """A digest of a dataset's definition: its source, its stages, and the code of their functions.

    Paths of shards and code of installed packages do not count: both may differ between machines that do the
    same.
    """
    digest = hashlib.blake2b(repr(described(dataset)).encode(), digest_size=16)
    for text in _code(dataset, 0, set()):
        digest.update(text.encode())
    return digest.hexdigest()


def counts(dataset: Any, here: Context, exact: bool) -> list[int]:
    """Counts the elements that each worker of each rank makes of a dataset in an epoch; or LengthUnknown."""
    places = [(rank, worker) for rank in range(here.world_size) for worker in range(here.workers)]
    if isinstance(dataset, DataPipeline) and not iterates_itself(dataset):
        contexts = (replace(here, rank=rank, worker=worker) for rank, worker in places)
        return [dataset.count_in(context).elements for context in contexts]
    total = count_delivered(dataset, [], exact).elements
    return [total // here.workers + (worker < total % here.workers) for _, worker in places]


class RemoteSource(IterableSource):
    """The source of a pipeline that runs elsewhere; a loader's facts and lengths come from its server."""

    def __init__(self, definition: dict[str, Any], counter: Callable[[Context], int | str]) -> None:
        self.description = [str(part) for part in definition["description"]]
        self.in_any_order = bool(definition["in_any_order"])
        self.addressable = definition["unaddressed"] is None
        self._name = str(definition["unaddressed"] or " ".join(self.description))
        self._self_dividing = definition.get("self_dividing")
        self._counter = counter

    def __str__(self) -> str:
        return self._name

    @property
    def self_dividing_part(self) -> str | None:
        return self._self_dividing

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        raise RuntimeError("this dataset is on its servers: only a RemoteLoader can iterate it")

    def count_in(self, context: Context, exact: bool = True) -> Count:
        answer = self._counter(context)
        if isinstance(answer, str):
            raise LengthUnknown(answer)
        return Count(int(answer))


def remote_dataset(definition: dict[str, Any], counter: Callable[[Context], int | str]) -> DataPipeline:
    """The dataset of a server, for the trainer's loader."""
    dataset = DataPipeline(RemoteSource(definition, counter))
    dataset.given_seed = definition["seed"]
    dataset.given_length = definition["length"]
    return dataset


def _code(item: Any, depth: int, seen: set[int]) -> Iterator[str]:
    """Texts that stand for the code and the plain arguments in an object."""
    if depth > _MOST_DEPTH or id(item) in seen:
        return
    seen.add(id(item))
    if isinstance(item, types.FunctionType):
        yield from _code_of(item.__code__)
        values = [cell.cell_contents for cell in item.__closure__ or ()]
        for value in (item.__defaults__, item.__kwdefaults__, *values):
            yield from _code(value, depth + 1, seen)
    elif isinstance(item, (bool, int, float, str, bytes, type(None))):
        yield f"{type(item).__name__} {item!r}" if not (isinstance(item, str) and "/" in item) else "path"
    elif isinstance(item, (list, tuple)):
        yield f"{type(item).__name__} {len(item)}"
        for part in item[:100]:
            yield from _code(part, depth + 1, seen)
    elif isinstance(item, dict):
        for key, value in item.items():
            yield str(key)
            yield from _code(value, depth + 1, seen)
    elif is_dataclass(item) and not isinstance(item, type):
        yield type(item).__qualname__
        for field in fields(item):
            yield from _code(getattr(item, field.name), depth + 1, seen)
    elif isinstance(item, types.MethodType):
        yield from _code(item.__func__, depth + 1, seen)
        yield from _code(item.__self__, depth + 1, seen)
    elif isinstance(item, functools.partial):
        for part in (item.func, item.args, item.keywords):
            yield from _code(part, depth + 1, seen)
    elif isinstance(item, (type, types.BuiltinFunctionType)):
        yield item.__qualname__
    else:
        yield type(item).__qualname__
        if not isinstance(item, types.ModuleType) and type(item).__module__ != "builtins":
            yield from _code(getattr(item, "__dict__", {}), depth + 1, seen)


def _code_of(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield " ".join(code.co_names)
    for constant in code.co_consts:
        yield from _code_of(constant) if isinstance(constant, types.CodeType) else (repr(constant),)
