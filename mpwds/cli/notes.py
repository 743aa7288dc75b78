"""Notes on errors, with which the command says in one line what failed where."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mpwds.pipeline.error_context import add_note


@contextlib.contextmanager
def noted(note: str) -> Iterator[None]:
    """Adds a note to exceptions that pass."""
    try:
        yield
    except Exception as error:
        add_note(error, note)
        raise


def drop_notes(error: BaseException, words: str) -> None:
    """Removes the notes that contain ``words``: stages that users know nothing of."""
    notes: list[str] = getattr(error, "__notes__", [])
    notes[:] = [note for note in notes if words not in note]
