"""Arguments and options that the commands about feeds share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Urls = Annotated[
    list[str],
    typer.Argument(
        metavar="URL",
        help="Feed servers, such as tcp://cpu{1..4}:7880 or ipc:///run/feed; or tensorcom's zsub://host:port.",
    ),
]
Keys = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the keys, which servers on other machines need.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Connect to other machines without keys.")]
Timeout = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for a batch.")]
