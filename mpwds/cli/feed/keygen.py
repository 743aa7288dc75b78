"""``mpwds keygen``: makes the keys of servers and clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def keygen(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for the keys, made if it is missing.")
    ],
    client: Annotated[
        str | None, typer.Option(metavar="NAME", help="Make the keys of one more client, client-NAME.")
    ] = None,
) -> None:
    """Make the keys that servers and their clients need. Keys that exist are kept.

    A server needs server.key_secret and the clients' public keys (client*.key), a trainer server.key and
    client.key_secret (for --client NAME, client-NAME.key_secret under that name). Only their owner can read
    the files: copy them to other machines by a safe way.
    """
    from mpwds.feed import keys

    written = keys.generate(folder, keys.CLIENT if client is None else f"{keys.CLIENT}-{client}")
    for path in written:
        print(f"wrote {path}")
    if not written:
        print(f"the keys in {folder} exist already: nothing was written")
