"""The setup of workers, sent from the trainer in one memory segment that all workers map."""

from __future__ import annotations

import hashlib
import importlib
import io
import itertools
import pickle
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import msgpack
import numpy as np

from mpwds.loader.processes import loaded_code, parent_environment
from mpwds.loader.processes.dataset_pickler import dump_with_buffers, find_unpicklable
from mpwds.sharedmem import segment
from mpwds.sharedmem.share import Mappings, Region, map_privately, map_region
from mpwds.warn import warn

OPEN_LATER = "let the dataset open files, locks and connections where it is iterated"

_ALIGNMENT = 64


@dataclass
class WorkerSetup:
    """What all workers of a loader share; ``serves`` names the class that does their work."""

    serves: ClassVar[str] = "mpwds.loader.worker.worker:Worker"

    dataset: Any
    workers: int
    blocks: int  # of each worker's arena
    rank: int = 0
    world_size: int = 1
    seed: int | None = None

    def serving_class(self) -> Any:
        module, _, name = self.serves.partition(":")
        return getattr(importlib.import_module(module), name)


class CannotPickle(TypeError):
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
    are the pickle and the large arrays until they are stored, ``modules`` what a worker will import.
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
        """A segment that a worker can :func:`read`, with this process' environment, which it adopts."""
        places = [part if isinstance(part, Region) else part.nbytes for part in self.parts]
        stored = [part for part in self.parts if not isinstance(part, Region)]
        self.parts.clear()
        head = msgpack.packb([places, parent_environment.current()], unicode_errors="surrogateescape")
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
    for specification, version in loaded_code.codes_of(sorted(modules)):
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

    A worker that writes to an array in the segment gets its own copy of the pages it writes to.
    """
    memory = map_privately(descriptor)
    nbytes = int.from_bytes(memory[:4], "little")
    places, environment = msgpack.unpackb(memory[4 : 4 + nbytes], unicode_errors="surrogateescape")
    parent_environment.adopt(environment)
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
