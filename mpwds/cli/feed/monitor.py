"""``mpwds monitor``: a live table of what feed servers do."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from mpwds.cli.feed.tables import monitor as table
from mpwds.cli.feed.watched import Insecure, Json, Keys, Urls, watch
from mpwds.errors import MpwdsError
from mpwds.feed.viewing.figures import Figures

_OTHER_LINES = 24  # of the terminal, for all but workers


def monitor(
    urls: Urls,
    once: Annotated[bool, typer.Option("--once", help="Print one reading, and end.")] = False,
    as_json: Json = False,
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Between readings.")] = 1.0,
    keys: Keys = None,
    insecure: Insecure = False,
) -> None:
    """Show what feed servers do, live: rates, workers, stages, clients, and what bounds the feed.

    For tensorcom's sockets it shows rates and shapes. Rates are about the time since the last reading.
    With --json, each reading is a line.
    """
    watched = watch(urls, keys, insecure)
    try:
        watched.read()
        time.sleep(interval)
        figures = watched.read()
        if once:
            print(_line(figures)) if as_json else Console().print(table(figures, watched.name))
            return
        if as_json:
            while True:
                print(_line(figures), flush=True)
                time.sleep(interval)
                figures = watched.read()
        console = Console()
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                most_workers = console.height - _OTHER_LINES if console.is_terminal else None
                live.update(table(figures, watched.name, most_workers), refresh=True)
                time.sleep(interval)
                try:
                    figures = watched.read()
                except (MpwdsError, TimeoutError) as error:  # a server that is gone may come back
                    live.update(
                        Group(Text(str(error), "bold red"), table(figures, watched.name)), refresh=True
                    )
    finally:
        watched.close()


def _line(figures: Figures) -> str:
    return json.dumps(figures.as_dict())
