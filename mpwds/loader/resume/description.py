"""Tells datasets apart: a description that people read, and a fingerprint of all that is known.

A state goes with a description. It leaves out what a user may mend between two runs, or what may differ
between ranks and change while a program runs: the code of named functions, what closures and function
objects hold, and handlers. Descriptions are saved, sent and printed, and an argument may be a secret: texts
are told by a digest. Servers that share an epoch compare fingerprints, which leave out nothing but paths and
the code of installed packages: both may differ between machines that do the same.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from mpwds.pipeline.dataset import DataPipeline, is_pipeline
from mpwds.pipeline.epochs import ONCE, Epochs
from mpwds.pipeline.filter import SingletonStage
from mpwds.pipeline.handlers import reraise_exception

_ORDER = ("shuffle", "seed", "chunksize", "deterministic", "batch_size", "replication", "in_turn")
_SPLITTERS = ("split_by_node", "split_by_worker")  # the usual ones
_LOOKED_AT = 1000  # of the numbers of chosen samples
_MOST_PARTS = 100  # what has more is data
_MOST_TEXT = 80
_CODE = "code "
_PLAIN = (bool, int, float, str, bytes, type(None))
_IDENTITY = re.compile(r" at 0x[0-9a-f]+")
_PATH = re.compile(r"(['\"])[^'\"]*/[^'\"]*\1")


def described(dataset: Any) -> list[str]:
    """A pipeline's source, with its number of shards or elements, and its stages: the same in any process.

    It has no paths: shards may have moved. A function is described by its name, a lambda by its code,
    ``functools.partial`` by its arguments, too, and a user's stage by its public attributes.
    """
    if not is_pipeline(dataset):
        name = getattr(dataset, "__qualname__", type(dataset).__name__)  # of a function that makes iterators
        return [_counted(name + _held(dataset), dataset)]
    origin, *stages = dataset.parts
    return _origin(origin) + described_stages(stages, dataset.given_epochs, values=True)


def described_stages(stages: Sequence[Any], epochs: Epochs = ONCE, values: bool = False) -> list[str]:
    """Stages as they print, without what differs between processes, and how often they run.

    Without ``values``, arguments that do not print count for nothing: in the training process, a stage may
    change its attributes while it runs. (What workers change is their own copy.)
    """
    alike = map(_without_handler, stages)
    parts = [_lasting(str(stage)) + _options(stage, values) for stage in alike]
    return parts if epochs == ONCE else [*parts, str(epochs)]


def _options(stage: Any, values: bool) -> str:
    """The values in a stage that it does not print; of a user's stage, which may print a name alone, all."""
    if not is_dataclass(stage) and not isinstance(stage, SingletonStage):
        return _held(stage, values=values)
    functions = (getattr(stage, name, None) for name in ("select_files", "rename_files"))  # do not print
    files = [f" {_named(function)}" for function in functions if function is not None]
    return "".join([*files, _held(*vars(stage).values(), values=values)])


def fingerprint(dataset: Any) -> str:
    """A digest of a dataset's description, and of the code and the values in it."""
    digest = hashlib.blake2b(repr(described(dataset)).encode(), digest_size=16)
    for text in _texts("", dataset, True, 12, set()):
        digest.update(text.encode())
    return digest.hexdigest()


def _without_handler(stage: Any) -> Any:
    """The stage as it would be by default: a run that met a bad sample may go on with one that skips it."""
    if "handler" in vars(stage):
        stage = copy.copy(stage)
        object.__setattr__(stage, "handler", reraise_exception)  # stages are frozen
    return stage


def _origin(origin: Any) -> list[str]:
    if hasattr(origin, "description"):  # of a dataset elsewhere
        return list(origin.description)
    if isinstance(origin, DataPipeline):
        seed = origin.given_seed
        return described(origin) + ([] if seed is None else [f"seed={seed}"])
    if not origin.parts:
        elements = getattr(origin, "elements", origin)
        return [_counted(type(elements).__name__, getattr(origin, "urls", elements)) + _order_of(origin)]
    mixed = ["; ".join(_origin(part)) for part in origin.parts]
    rules = [f"{name}={getattr(origin, name, None)!r}" for name in ("weights", "stop", "order", "seed")]
    return [_lasting(f"{type(origin).__name__}({', '.join(rules)}) of {mixed}")]


def _order_of(origin: Any) -> str:
    """The options of a source that determine its order, where they are not the usual ones."""
    held = vars(origin)
    given = {name: held[name] for name in _ORDER if held.get(name) not in (None, False)}
    for name in ("nodesplitter", "splitter"):
        if name in held and (splitter := _lasting(_named(held[name]))) not in _SPLITTERS:
            given[name] = splitter
    if (chosen := held.get("chosen")) is not None:
        some = chosen if isinstance(chosen, range) else chosen[:: max(1, len(chosen) // _LOOKED_AT)].tolist()
        given["chosen"] = _digest(repr(some))
    return f" {{{', '.join(f'{name}={value}' for name, value in given.items())}}}" if given else ""


def _named(function: Any) -> str:
    return str(getattr(function, "__qualname__", function)) + _held(function)


def _counted(name: str, elements: Any) -> str:
    try:
        return f"{name} ({len(elements)})"
    except (TypeError, NotImplementedError):
        return name


def _held(*arguments: Any, values: bool = True) -> str:
    """The values in a stage's arguments that these do not print; a long text becomes a digest."""
    held = [each for each in arguments if not isinstance(each, _PLAIN)]
    texts = [text for each in held for text in _texts("", each, False, 5, set())]
    told = ", ".join(text for text in texts if values or text.startswith(_CODE))
    return f" [{told if len(told) <= _MOST_TEXT else f'values {_digest(told)}'}]" if told else ""


def _texts(name: str, value: Any, whole: bool, depth: int, seen: set[int]) -> Iterator[str]:
    """Texts for the code and the plain values in a value; unless ``whole``, for those that may not change.

    Then closures, most objects, private attributes, and plain values in lists count as data.
    """
    if isinstance(value, _PLAIN):
        if not (isinstance(value, str) and "/" in value):
            text = f"text {_digest(repr(value))}" if isinstance(value, (str, bytes)) else repr(value)
            yield f"{name}={text}" if name else text
        return
    if depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, FunctionType) and (whole or value.__name__ == "<lambda>"):
        yield f"{_CODE}{_digest(repr(_facts_of_code(value.__code__)))}"
    parts = list(_parts_of(value, whole))
    is_container = isinstance(value, (list, tuple, dict))
    if whole:
        size = len(value) if is_container else len(parts)
        yield f"{getattr(value, '__qualname__', type(value).__qualname__)} {size}"
    elif is_container:
        parts = [(name, part) for name, part in parts if not isinstance(part, _PLAIN)]
    if whole or len(parts) <= _MOST_PARTS:
        for name, part in parts[:_MOST_PARTS]:
            yield from _texts(name, part, whole, depth - 1, seen)


def _parts_of(value: Any, whole: bool) -> Iterable[tuple[str, Any]]:
    """The parts of a function, a container or an object, with names."""
    if isinstance(value, functools.partial):
        return [*(("", part) for part in (value.func, *value.args)), *value.keywords.items()]
    if isinstance(value, (list, tuple)):
        return [("", part) for part in value[: _MOST_PARTS + 1]]
    if isinstance(value, dict):
        return [(str(key), part) for key, part in islice(value.items(), _MOST_PARTS + 1)]
    if isinstance(value, (type, ModuleType)):
        return []
    if not (whole or is_dataclass(value) or hasattr(value, "stream")):
        return []
    if isinstance(value, FunctionType):
        held = map(_content, value.__closure__ or ())
        return [("", part) for part in (value.__defaults__, value.__kwdefaults__, *held)]
    if isinstance(value, MethodType):
        return [("", value.__self__), ("", value.__func__)]
    attributes = dict(getattr(value, "__dict__", {}))
    if is_dataclass(value):
        attributes.update({field.name: getattr(value, field.name) for field in fields(value)})
    attributes.pop("handler", None)  # it makes no other samples, and notes how many were bad
    return [(name, part) for name, part in attributes.items() if whole or not name.startswith("_")]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is assigned later
        return None


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _facts_of_code(code: CodeType) -> tuple[Any, ...]:
    """Describes the code of a function, without where it was written."""
    constants: list[Any] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_facts_of_code(constant))
        else:
            constants.append(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
    return code.co_code, code.co_names, constants


def _lasting(text: str) -> str:
    return _PATH.sub("'...'", _IDENTITY.sub("", text))
