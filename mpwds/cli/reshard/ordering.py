"""Samples in the order of their ranks, by way of temporary files where memory does not suffice."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import re
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

from mpwds.cli.outputs import path_of
from mpwds.cli.reshard.raw_samples import OBJECT_BYTES, Blocks, RawSample
from mpwds.closing import Closes
from mpwds.errors import ShardError
from mpwds.storage.writing.destinations import write_all

_MOST_FILES = 256  # open at a time
_NUMBER = re.compile(r"[+-]?\d+")
_FRACTION = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

_RANK, _SAMPLE = itemgetter(0), itemgetter(1)

Rank = list[Any]
"""``[0, number]`` or ``[1, text]``: numbers come first."""

Ranked = tuple[Rank, RawSample]


def bucket_shuffle(
    ranked: Iterable[tuple[float, RawSample]], memory: int, directory: str, low: float = 0, high: float = 1
) -> Iterator[tuple[float, RawSample]]:
    """Yields ranks and samples in the ranks' order, which are spread evenly from ``low`` to ``high``.

    Up to ``memory`` bytes of samples are held. If there are more, all of them are dealt to temporary files,
    each of which has its part of the ranks and is put in order by itself.
    """
    held: list[tuple[float, RawSample]] = []
    size = 0
    width = (high - low) / _MOST_FILES
    with contextlib.ExitStack() as files:
        buckets: dict[int, SpillFile] = {}

        def deal(rank: float, sample: RawSample) -> None:
            number = int((rank - low) / width)
            if number not in buckets:
                buckets[number] = files.enter_context(SpillFile(directory))
            buckets[number].add(rank, sample)

        for rank, sample in ranked:
            if buckets:
                deal(rank, sample)
                continue
            held.append((rank, sample))
            size += sample.size + OBJECT_BYTES
            if size > memory and len(held) > 1:
                for each in held:
                    deal(*each)
                held.clear()
        held.sort(key=_RANK)
        yield from held
        for number, bucket in sorted(buckets.items()):
            begin = low + number * width
            yield from bucket_shuffle(bucket, memory, directory, begin, begin + width)
            bucket.close()


def external_sort(
    ranked: Iterable[Ranked], memory: int, directory: str, reverse: bool = False
) -> Iterator[RawSample]:
    """Yields samples in the order of their ranks; equal ones stay in their order.

    Each time that ``memory`` bytes of samples have been read, they go to a temporary file in their order. In
    the end these files are merged.
    """
    held: list[Ranked] = []
    size = 0
    with contextlib.ExitStack() as files:
        runs: list[SpillFile] = []

        def in_order(*further: list[Ranked]) -> Iterator[Ranked]:
            return heapq.merge(*runs, *further, key=_RANK, reverse=reverse)

        def spilled(samples: Iterable[Ranked]) -> SpillFile:
            file = files.enter_context(SpillFile(directory))
            for rank, sample in samples:
                file.add(rank, sample)
            return file

        for rank, sample in ranked:
            held.append((rank, sample))
            size += sample.size + OBJECT_BYTES
            if size > memory:
                held.sort(key=_RANK, reverse=reverse)
                runs.append(spilled(held))
                held, size = [], 0
            if len(runs) == _MOST_FILES:
                smaller, runs = runs, [spilled(in_order())]
                for run in smaller:
                    run.close()
        held.sort(key=_RANK, reverse=reverse)
        yield from map(_SAMPLE, in_order(held))


def fields_of(by: str) -> list[str]:
    """The fields in which the value to sort by may be: ``json.a.b``, ``json.a``, ``json``."""
    names = by.split(".")
    return [".".join(names[:count]) for count in range(len(names), 0, -1)]


def rank_of(sample: RawSample, by: str, text: bool = False) -> Rank:
    """The value by which a sample is sorted. Raises ``ShardError`` if it has none."""
    if by == "__key__":
        return [1, sample.key]
    field = next((name for name in fields_of(by) if name in sample.fields), None)
    data = None if field is None else sample.fields.pop(field)
    if field is None or data is None:
        raise ShardError(f"{sample} has no field {by!r} to sort by")
    try:
        value: Any = data.decode().strip()
        for name in by[len(field) + 1 :].split(".") if field != by else ():
            value = (json.loads(value) if isinstance(value, str) else value)[name]
        if isinstance(value, str) and not text and _FRACTION.fullmatch(value):
            value = int(value) if _NUMBER.fullmatch(value) else float(value)
    except (ValueError, LookupError, TypeError) as error:
        raise ShardError(f"{sample} cannot be sorted by {by}: {error!r}") from error
    if not isinstance(value, (str, int, float)) or value != value:
        raise ShardError(f"{sample}: {by} is {json.dumps(value)[:60]}, neither a number nor a text")
    return [1, str(value)] if text or isinstance(value, str) else [0, value]


class SpillFile(Blocks, Closes):
    """Samples in a temporary file without a name, which vanishes with this process, however that ends."""

    def __init__(self, directory: str) -> None:
        self.url = f"a temporary file in {directory}"
        self._file = tempfile.TemporaryFile(buffering=0, dir=directory)  # noqa: SIM115 - close() does
        self._sizes = array("Q")  # of a note and of its sample, in turn

    def add(self, rank: Any, sample: RawSample) -> None:
        """Appends a sample, with a value that says where it belongs; JSON must have such values."""
        note = json.dumps([sample.key, rank]).encode()
        data = sample.read()
        self._sizes.extend((len(note), len(data)))
        try:
            written = os.writev(self._file.fileno(), (note, data))
            if written < len(note) + len(data):
                write_all(self._file, (note + data)[written:])
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror} (--tmp names another place)", self.url) from None

    def __iter__(self) -> Iterator[tuple[Any, RawSample]]:
        """The samples and their values, in the order in which they were added."""
        position = 0
        sizes = iter(self._sizes)
        for note_bytes, sample_bytes in zip(sizes, sizes, strict=True):
            note = bytearray(note_bytes)
            self.read_into(memoryview(note), position)
            key, rank = json.loads(note)
            start = position + note_bytes
            position = start + sample_bytes
            yield rank, RawSample(key, self, [(start, position)], sample_bytes)

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        """Gives the disk's space back."""
        self._file.close()


def temporary_directory(output: str) -> str:
    """The folder for a command's temporary files: beside its output, where room is, if that is local."""
    path = path_of(output)
    return tempfile.gettempdir() if path is None else os.path.dirname(os.path.abspath(path))
