"""``mpwds monitor``: a live table of what feed servers do."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mpwds.cli.feed.options import Insecure, Json, Keys, Urls
from mpwds.errors import MpwdsError

if TYPE_CHECKING:
    from mpwds.feed.viewing.figures import Figures
    from mpwds.feed.viewing.watching import Watched

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
    from rich.console import Console

    from mpwds.cli.feed import tables
    from mpwds.cli.feed.watched import watch

    watched = watch(urls, keys, insecure)
    try:
        watched.read()  # rates begin here
        if not once:
            _follow(watched, interval, as_json)
        figures = _next(watched, interval)
    finally:
        watched.close()
    if as_json:
        _print_json(figures)
    else:
        Console().print(tables.monitor(figures, watched.name))


def _follow(watched: Watched, interval_s: float, as_json: bool) -> NoReturn:
    """Shows readings until it is interrupted."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from mpwds.cli.feed import tables

    while as_json:
        _print_json(_next(watched, interval_s))
    console = Console()
    shown = Group()
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            try:
                most_workers = console.height - _OTHER_LINES if console.is_terminal else None
                shown = Group(tables.monitor(_next(watched, interval_s), watched.name, most_workers))
                live.update(shown, refresh=True)
            except MpwdsError as error:  # a server that is gone may come back
                live.update(Group(Text(str(error), "bold red"), "", shown), refresh=True)


def _next(watched: Watched, interval_s: float) -> Figures:
    time.sleep(interval_s)
    return watched.read()


def _print_json(figures: Figures) -> None:
    print(json.dumps(figures.as_dict()), flush=True)
