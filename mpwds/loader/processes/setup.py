"""The setup of workers, sent from the trainer in one memory segment that all workers map.

Large arrays stay apart from the pickle, and errors name the part of a dataset that cannot be pickled.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import hashlib
import importlib
import inspect
import io
import itertools
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

import cloudpickle
import msgpack
import numpy as np

from mpwds.errors import MpwdsError
from mpwds.loader.processes import environment
from mpwds.pickling import Pickler, reduced_tensor
from mpwds.pipeline.context import Context
from mpwds.pipeline.iterable_sources import TorchIterable
from mpwds.sharedmem import segment
from mpwds.sharedmem.share import Mappings, Region, map_privately, map_region
from mpwds.warn import warn

OPEN_LATER = "let the dataset open files, locks and connections where it is iterated"

_ALIGNMENT = 64


@dataclass
class WorkerSetup:
    """The setup that all workers of a loader share; ``serves`` names the class that does their work.

    ``arrays_as_they_are`` and ``allow_pickle`` are those of their ``BatchSender``.
    """

    serves: ClassVar[str] = "mpwds.loader.worker.worker:Worker"
    arrays_as_they_are: ClassVar[bool] = False
    allow_pickle: ClassVar[bool] = True

    dataset: Any
    workers: int
    blocks: int  # of each worker's arena
    rank: int = 0
    world_size: int = 1
    seed: int | None = None
    streams: int | None = None  # of all ranks; None is one for each worker

    def context(self, stream: int, epoch: int) -> Context:
        """The context of one of this rank's streams. With ``streams`` no rank or worker is in it."""
        if self.streams is None:
            place = self.rank, self.world_size, stream, self.workers
            return Context(epoch, self.seed, *place, tells_epoch=True)
        number = self.rank + stream * self.world_size
        return Context(
            epoch, self.seed, worker=number, workers=self.streams, is_stream=True, tells_epoch=True
        )

    def serving_class(self) -> Any:
        module, _, name = self.serves.partition(":")
        return getattr(importlib.import_module(module), name)


class CannotPickle(MpwdsError, TypeError):
    """A part of the setup cannot be pickled; ``what`` names it: ``dataset.files[3] is a TextIOWrapper``."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what


class StillImported(RuntimeError):
    """The setup needs a module that is still being imported here, and would start workers in workers too."""

    def __init__(self, module: str) -> None:
        super().__init__(
            f"workers would import the module {module!r}, which is still being imported here and starts "
            "workers: iterate in a function that is called when the import is over, or let the workers be "
            "forks of this process"
        )
        self.module = module


class PickledSetup:
    """A setup, pickled and ready to be stored once. Keep it as long as workers may be started.

    Arrays and tensors are copied only into the segment; those that lie in shared memory stay there. ``parts``
    are the pickle and the large arrays until they are stored, ``modules`` what a worker will import: what
    unpickling imports, and what objects name that have a method ``imported_in_workers``.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        buffers: list[pickle.PickleBuffer] = []
        try:
            data, modules = dump_with_buffers(setup, buffers.append)
        except Exception as error:
            what = find_unpicklable(setup)
            raise CannotPickle(
                f"the dataset cannot be sent to worker processes ({what}; {type(error).__name__}: {error}): "
                f"{OPEN_LATER}, or use start_method='fork'",
                what,
            ) from error
        _check_imported(modules)
        serving = setup.serves.partition(":")[0]
        self.modules = [serving, *sorted(modules - {serving})]
        self._mappings = Mappings() if buffers else None  # keeps the regions
        self.parts = [memoryview(data), *(self._where(buffer.raw()) for buffer in buffers)]

    def store(self) -> io.FileIO:
        """A segment that a worker can :func:`read`, with this process' environment, which it takes over."""
        places = [part if isinstance(part, Region) else part.nbytes for part in self.parts]
        stored = [part for part in self.parts if not isinstance(part, Region)]
        head = msgpack.packb([places, environment.current()], unicode_errors="surrogateescape")
        size = _aligned(4 + len(head)) + sum(_aligned(part.nbytes) for part in stored)
        file = io.FileIO(segment.create(size))
        try:
            segment.commit(file.fileno(), 0, size)
            memory = segment.map(file.fileno(), size)
        except BaseException:
            file.close()
            raise
        with memory:
            memory[:4] = len(head).to_bytes(4, "little")
            memory[4 : 4 + len(head)] = head
            offset = _aligned(4 + len(head))
            for part in stored:
                memory[offset : offset + part.nbytes] = part
                offset += _aligned(part.nbytes)
        self.parts.clear()
        return file

    def _where(self, array: memoryview) -> memoryview | Region:
        if self._mappings is None or not array.nbytes:
            return array
        address: int = np.frombuffer(array, np.uint8).__array_interface__["data"][0]
        return self._mappings.find(address, array.nbytes) or array


def fingerprint(setup: WorkerSetup) -> bytes | None:
    """A digest of a setup's pickle and of the modules it imports; ``None`` if it cannot be pickled.

    Of arrays above 1 MB, a sample of the bytes counts. Warns of functions and classes that have been defined
    again since the dataset was made, as it keeps the earlier ones.
    """
    buffers: list[pickle.PickleBuffer] = []
    redefined: set[str] = set()
    try:
        data, modules = dump_with_buffers(setup, buffers.append, redefined)
    except Exception:
        return None
    finally:
        if redefined:
            warn(
                f"the dataset uses earlier definitions of {', '.join(sorted(redefined))}: run the code that "
                "makes the dataset again, and it uses the new ones",
                UserWarning,
            )
    digest = hashlib.blake2b(data)
    for buffer in buffers:
        array = buffer.raw()
        digest.update(array[:: array.nbytes >> 20 | 1].tobytes())
    for specification, version in environment.codes_of(sorted(modules)):
        digest.update(f"{id(specification)} {version}".encode())
    return digest.digest()


def _check_imported(modules: set[str]) -> None:
    for module in modules:
        names = module.split(".")
        for name in itertools.accumulate(names, "{}.{}".format):  # a package is imported before what is in it
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if getattr(spec, "_initializing", False):
                raise StillImported(name)


def read(descriptor: int) -> WorkerSetup:
    """The setup that a segment holds. Its arrays are views, of the segment or of the trainer's shared memory.

    A worker that writes to one in the segment gets its own copy of these pages.
    """
    memory = map_privately(descriptor)
    nbytes = int.from_bytes(memory[:4], "little")
    places, present = msgpack.unpackb(memory[4 : 4 + nbytes], unicode_errors="surrogateescape")
    environment.apply(present)
    offset = _aligned(4 + nbytes)
    parts: list[memoryview] = []
    for place in places:
        if isinstance(place, int):
            parts.append(memory[offset : offset + place])
            offset += _aligned(place)
        else:
            parts.append(map_region(Region(*place)))
    setup: WorkerSetup = pickle.loads(parts[0], buffers=parts[1:])
    return setup


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


_MOST_TRIALS = 20_000
_TakesBuffer = Callable[[pickle.PickleBuffer], object]


def dump_with_buffers(
    item: Any, buffer: _TakesBuffer, redefined: set[str] | None = None
) -> tuple[bytes, set[str]]:
    """Pickles any object, with cloudpickle; returns the pickle, and the modules that loading it imports.

    ``buffer`` is called with the buffer of each large array, which ``pickle.loads(.., buffers=..)`` takes
    again. Dense CPU tensors count as arrays: torch's own pickling would copy them twice. With ``redefined``,
    the pickle is one to compare: it leaves out how often this process has iterated datasets, and the set gets
    the names of functions and classes of which the object has an earlier definition.
    """
    # In a process that multiprocessing spawned, the script has a name that no worker can import.
    script = sys.modules.get("__mp_main__")
    if script is not None:
        cloudpickle.register_pickle_by_value(script)
    stream = io.BytesIO()
    pickler = _DatasetPickler(stream, buffer, redefined)
    pickler.dump(item)
    return stream.getvalue(), pickler.modules


class _DatasetPickler(Pickler):
    def __init__(self, stream: io.BytesIO, buffer: _TakesBuffer, redefined: set[str] | None) -> None:
        super().__init__(stream, protocol=5, buffer_callback=buffer)
        self.modules: set[str] = set()
        self._redefined = redefined

    def reducer_override(self, item: Any) -> Any:
        kind = type(item)
        if kind is FunctionType or issubclass(kind, type):
            if self._redefined is not None and _is_redefined(item):
                self._redefined.add(item.__qualname__)
            reduced = super().reducer_override(item)
            module = getattr(item, "__module__", None)
            if reduced is NotImplemented and isinstance(module, str):  # it is sent by its name
                self.modules.add(module)
            return reduced
        if isinstance(item, ModuleType):
            if sys.modules.get(item.__name__) is item:
                self.modules.add(item.__name__)
        elif self._redefined is not None and isinstance(item, TorchIterable) and "_epoch" in vars(item):
            same = copy.copy(item)
            vars(same).pop("_epoch")
            vars(same).pop("_epoch_is_given", None)
            return same.__reduce_ex__(5)
        else:
            if (imported := getattr(kind, "imported_in_workers", None)) is not None:
                self.modules.update(imported(item))
            if (reduced := reduced_tensor(item)) is not None:
                self.modules.add("torch")
                return reduced
            if (reduced := _reduced_array(item)) is not None:
                return reduced
        return super().reducer_override(item)


def _is_redefined(item: Any) -> bool:
    """True if a function or class has been replaced, in its module or notebook, by one with other code."""
    now: Any = sys.modules.get(item.__module__)
    for name in item.__qualname__.split("."):
        now = getattr(now, name, None)
    named_so = type(now) is type(item) and now.__qualname__ == item.__qualname__
    if not named_so or item.__qualname__ == "_":  # functions that singledispatch knows are all called so
        return False
    while now is not None:  # a decorator's wrapper has the name of the function in it
        if now is item or _code_of(now) == _code_of(item):
            return False
        now = getattr(now, "__wrapped__", None)
    return True


def _code_of(item: Any) -> object:
    if isinstance(item, FunctionType):
        return item.__code__
    return {name: value.__code__ for name, value in vars(item).items() if isinstance(value, FunctionType)}


def _reduced_array(item: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Reduces an array that NumPy would copy into the pickle: a mapped one, or one that is not contiguous."""
    kind = type(item)
    if (kind is not np.ndarray and kind is not np.memmap) or item.dtype.hasobject:
        return None
    if kind is np.memmap:
        return np.ndarray.view, (item.view(np.ndarray), np.memmap)
    if item.flags.forc:  # contiguous
        return None
    ends = [(length - 1) * stride for length, stride in zip(item.shape, item.strides, strict=True)]
    first, last = (sum(bound(end, 0) for end in ends) for bound in (min, max))
    span = last - first + item.itemsize
    if not 0 < span < item.nbytes:
        return _array, (np.ascontiguousarray(item), item.flags.writeable)
    # Windows that overlap, as of a time series: the elements would be copied many times.
    forward = item[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in item.strides)]
    start = forward[(slice(1),) * item.ndim].reshape(1).view(np.uint8)
    whole = np.lib.stride_tricks.as_strided(start, (span,), (1,))
    return _view, (whole, item.dtype, item.shape, item.strides, -first, item.flags.writeable)


def _view(
    whole: Any, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, writeable: bool
) -> Any:
    return _array(np.ndarray(shape, dtype, whole, offset, strides), writeable)


def _array(array: Any, writeable: bool) -> Any:
    array.flags.writeable = writeable
    return array


def find_unpicklable(setup: Any) -> str:
    """The path to the innermost part that cannot be pickled: ``dataset[1]['lines'] is a generator``."""
    path, culprit, visited = "", setup, {id(setup)}
    while (inner := _unpicklable_part(culprit, visited)) is not None:
        step, culprit = inner
        path += step
        visited.add(id(culprit))
    what = f" ({culprit.__qualname__})" if isinstance(culprit, (FunctionType, MethodType)) else ""
    return f"{path.lstrip('.') or 'it'} is a {type(culprit).__qualname__}{what}"


def _unpicklable_part(item: Any, visited: set[int]) -> tuple[str, Any] | None:
    for step, part in itertools.islice(_parts(item), _MOST_TRIALS):
        if id(part) not in visited:
            try:
                dump_with_buffers(part, lambda buffer: None)
            except Exception:
                return step, part
    return None


def _parts(item: Any) -> Iterator[tuple[str, Any]]:
    """The parts that an object's pickle probably contains, each with the step that leads there."""
    if type(item).__module__.startswith("multiprocessing."):  # a Value is the user's, its parts are not
        return
    if isinstance(item, dict):
        yield from ((f"[{key!r}]", value) for key, value in list(item.items()))
    elif isinstance(item, (list, tuple, set, frozenset)):
        yield from ((f"[{index}]", value) for index, value in enumerate(list(item)))
    elif isinstance(item, functools.partial):
        yield from ((".func", item.func), (".args", item.args), (".keywords", item.keywords))
    elif isinstance(item, MethodType):
        yield ".__self__", item.__self__
    elif isinstance(item, FunctionType):
        yield from _parts_of_function(item)
    attributes = getattr(item, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(item, type):
        yield from ((f".{name}", value) for name, value in list(attributes.items()))
    for name in copyreg._slotnames(type(item)):  # type: ignore[attr-defined]  # as object.__reduce_ex__ does
        if hasattr(item, name):
            yield f".{name}", getattr(item, name)


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    try:
        used = inspect.getclosurevars(function)
    except ValueError:  # a variable that is not assigned yet
        return
    yield from ((f"'s variable {name}", value) for name, value in used.nonlocals.items())
    for name, value in used.globals.items():
        if not inspect.ismodule(value):
            yield f"'s global {name}", value
