"""Raw samples in temporary files."""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from collections.abc import Iterator
from typing import Any

from mpwds.cli.resharding.raw_samples import RawSample, fill
from mpwds.storage.streams.urls import is_local, local_path


class Spool:
    """Samples in a temporary file without a name, which vanishes with this process, however that ends.

    Args:
        directory: Where to make the file.

    Attributes:
        size: Bytes in it.
    """

    def __init__(self, directory: str) -> None:
        self.url = f"a temporary file in {directory}"
        self.size = 0
        self._file = tempfile.TemporaryFile(buffering=0, dir=directory)  # noqa: SIM115 - close() does
        self._sizes = array("Q")  # of a note and of its sample, in turn

    def add(self, rank: Any, sample: RawSample) -> None:
        """Appends a sample, with a value that says where it belongs; JSON must have such values."""
        note = json.dumps([sample.key, rank]).encode()
        data = sample.read()
        self._sizes.extend((len(note), len(data)))
        self.size += len(note) + len(data)
        try:
            written = os.writev(self._file.fileno(), (note, data))
            if written < len(note) + len(data):
                left = memoryview(note + data)[written:]
                while left:
                    left = left[self._file.write(left) :]
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
            yield rank, RawSample(key, self, [(start, position)])

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    def read_into(self, target: memoryview, position: int) -> None:
        fill(target, self.descriptor, position, self.url)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the disk's space back."""
        self._file.close()


def temporary_directory(output: str) -> str:
    """Where temporary files of a command go: beside its output, where room is, if that is a local file."""
    if output == "-" or not is_local(output):
        return tempfile.gettempdir()
    return os.path.dirname(os.path.abspath(local_path(output)))
