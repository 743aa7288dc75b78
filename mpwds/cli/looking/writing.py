"""Writes chosen samples to standard output, and to files in a folder."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from mpwds.cli.looking.folder import Folder, UnsafeName
from mpwds.cli.looking.printing import warn_of
from mpwds.cli.looking.samples.choosing import Choice, read_chosen
from mpwds.cli.looking.samples.reading import Problem, Sample
from mpwds.cli.looking.samples.sources import Shard
from mpwds.cli.outputs import report
from mpwds.cli.progress import progress
from mpwds.pipeline.decoding.decoders import Decoder
from mpwds.storage.writing.tar_writer import TarWriter
from mpwds.viewing.wording import printable

_decode = Decoder(partial=True)


class Whole:
    """The chosen samples, with their chosen fields alone, without those that damage may have made incomplete.

    Attributes:
        problems: How many problems there were, which standard error names.
    """

    def __init__(self, shards: Sequence[Shard], choice: Choice) -> None:
        self._shards = shards
        self._choice = choice
        self.problems = 0

    def __iter__(self) -> Iterator[Sample]:
        for sample in read_chosen(self._shards, self._choice, self._choice.wants, self.report):
            if not sample.is_whole:
                what = "left out: members may be missing, because the shard is damaged here"
                self.report(Problem(sample.shard, sample.offset, sample.key, "", what))
                continue
            sample.members = self._choice.members(sample)
            yield sample

    def report(self, problem: Problem) -> None:
        """Counts a problem and prints it."""
        self.problems += 1
        warn_of(problem)


def write_fields(samples: Whole, stream: BinaryIO, end: bytes) -> None:
    """Writes the fields as they are stored, each followed by ``end``.

    A terminal gets text alone, without control characters. Raises ``ValueError`` if a field is not text.
    """
    is_terminal = stream.isatty()
    for sample in samples:
        for member in sample.members:
            data = member.data or b""
            stream.write(_for_terminal(sample, member.field, data) if is_terminal else data)
            stream.write(end)


def _for_terminal(sample: Sample, field: str, data: bytes) -> bytes:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ValueError(
            f'field "{field}" of sample "{sample.key}" is not text: choose others with --fields, '
            "take --json, or redirect the output to a file"
        ) from None
    return printable(text, keep="\n\t").encode()


def write_json(samples: Whole) -> None:
    """Prints a line for each sample: an object of its key and its fields."""
    for sample in samples:
        fields = {name: _as_json(name, data) for name, data in sample.data().items()}
        report(True, {"__key__": sample.key, **fields})


def _as_json(field: str, data: bytes) -> Any:
    """A field's value, if JSON can hold it; else its bytes, as ``{"base64": ...}``."""
    with contextlib.suppress(Exception):  # decoders raise many kinds
        value = _decode({field: data})[field]
        if isinstance(value, np.ndarray):
            value = value.tolist()
        json.dumps(value, allow_nan=False)
        return value
    return {"base64": base64.b64encode(data).decode()}


def write_tar(samples: Whole, stream: BinaryIO) -> None:
    """Writes a tar archive of the samples; members of tar shards stay as they are."""
    if stream.isatty():
        raise ValueError("a tar archive is nothing for a terminal: redirect the output to a file or a pipe")
    with TarWriter(stream, encoder=False) as sink:
        for sample in samples:
            if all(member.header for member in sample.members):
                sink.write_blocks(b"".join(member.blocks for member in sample.members))
            else:
                sink.write({"__key__": sample.key, **sample.data()})


def write_files(samples: Whole, folder: str, force: bool) -> tuple[int, int]:
    """Writes each field to a file, named as its member, below a folder. Returns the numbers of both.

    A member whose name leads out of the folder is left out, and counts as a problem.

    Raises:
        FileExistsError: A file exists, and ``force`` is not set. Files that were written before stay.
    """
    count = files = 0
    with Folder(folder, force) as below, progress(None, in_bytes=False) as advance:
        for sample in samples:
            for member in sample.members:
                try:
                    below.write(member.name, member.data or b"")
                    files += 1
                except UnsafeName as error:
                    samples.report(Problem(sample.shard, member.offset, sample.key, member.field, str(error)))
            count += 1
            advance(1, "extracting samples")
    return count, files
