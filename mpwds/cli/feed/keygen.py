"""``mpwds keygen``: makes the keys of servers and clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def keygen(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for the keys, made if it is missing.")
    ],
) -> None:
    """Make the keys that servers and their clients need.

    Only their owner can read the files. Copy the folder to every machine that takes part, by a safe way.
    """
    from mpwds.feed import keys

    keys.generate(folder)
    print(f"wrote the keys of a server and of its clients to {folder}")
