"""Arguments and options that the commands about feeds share."""

from __future__ import annotations

from collections.abc import Sequence
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


def check_tensorcom(urls: Sequence[str], insecure: bool) -> None:
    """Refuses tensorcom's URLs that other machines can reach, unless that is said to be meant."""
    from mpwds.compat.tensorcom.zcom import parse_url
    from mpwds.feed.keys import needs_keys
    from mpwds.storage.streams.patterns import expand_braces

    for url in expand_braces(*urls):
        if not insecure and needs_keys(parse_url(url).location):
            raise typer.BadParameter(
                f"{url} can be reached from other machines, and tensorcom has no keys: say --insecure if all "
                "in that network may read and send batches"
            )
