"""What the error about a missing shard says of the folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice

from mpwds.pipeline.notes import add_note

_MOST_FILES = 100_000  # of a folder that are looked at


def explain_absence(error: Exception, path: str, listed: str, paths: Sequence[str | None]) -> None:
    """Adds a note to the error about a local shard that does not exist, or is a folder.

    ``listed`` is how the user gave the list that the shard is in; ``paths`` are its local files, ``None`` for
    other shards.
    """
    if os.path.isdir(path):
        add_note(error, f"it is a folder; to read the shards in it, add a slash to its name: {path + '/'!r}")
    elif paths and not os.path.exists(path):
        shards = "the only shard" if len(paths) == 1 else f"one of the {len(paths)} shards"
        add_note(error, f"it is {shards} of {listed}; {_present(path, paths)}")


def _present(missing: str, paths: Sequence[str | None]) -> str:
    """Which of ``paths`` are in the folder of the missing file, or which archives are."""
    folder = os.path.dirname(missing)
    try:
        with os.scandir(folder or ".") as entries:
            present = {entry.name for entry in islice(entries, _MOST_FILES)}
    except OSError:
        return f"there is no folder {folder}"
    names = [os.path.basename(path) for path in paths if path and os.path.dirname(path) == folder]
    there = [name for name in names if name in present]
    archives = sorted(name for name in present if name.endswith(".tar"))
    if there:
        found = f"{_few(there)} of them"
    else:
        found = f"no such file, but {_few(archives)}" if archives else "no .tar file"
    return f"{folder or 'this folder'} holds {found}"


def _few(names: Sequence[str]) -> str:
    """Names; if there are more than four, only the first and the last."""
    if len(names) < 5:
        return ", ".join(names)
    return f"{names[0]}, {names[1]}, ... {names[-1]} ({len(names)} files)"
