"""Notes on errors, with which the command says in one line what failed where."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from mpwds.pipeline.notes import add_note

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def noted(note: str) -> Iterator[None]:
    """Adds a note to exceptions that pass."""
    try:
        yield
    except Exception as error:
        add_note(error, note)
        raise


@contextlib.contextmanager
def writing(name: str) -> Iterator[None]:
    """Names the file that is written in the error of a full disk, which does not say where."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            error.filename = name
        raise


def drop_notes(error: BaseException, words: str) -> None:
    """Removes the notes that contain ``words``: stages that users know nothing of."""
    notes: list[str] = getattr(error, "__notes__", [])
    notes[:] = [note for note in notes if words not in note]
