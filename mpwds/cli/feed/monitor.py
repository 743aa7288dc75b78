"""``mpwds monitor``: a live table of what feed servers do."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mpwds.cli.feed.options import Insecure, Keys, Urls
from mpwds.cli.options import Json
from mpwds.errors import MpwdsError

if TYPE_CHECKING:
    from mpwds.feed.viewing.figures import Figures
    from mpwds.feed.viewing.watching import Watched


def monitor(
    urls: Urls,
    once: Annotated[bool, typer.Option("--once", help="Print one reading, and end.")] = False,
    as_json: Json = False,
    interval: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Between readings.")] = 1.0,
    keys: Keys = None,
    insecure: Insecure = False,
) -> None:
    """Show what feed servers do, live: rates, workers, stages, clients, and what bounds the feed.

    Figures and verdict are about the time of the last ten readings. For tensorcom's sockets it shows rates
    and shapes, about the time since the last reading. With --json, each reading is a line.
    """
    from mpwds.cli.feed.watched import watch

    watched = watch(urls, keys, insecure)
    try:
        watched.read()  # rates begin here
        if not once:
            _follow(watched, interval, as_json)
        _print_next(watched, interval, as_json)
    finally:
        watched.close()


def _follow(watched: Watched, interval_s: float, as_json: bool) -> NoReturn:
    """Shows readings until it is interrupted."""
    from rich.live import Live
    from rich.text import Text

    from mpwds.cli.feed import tables

    console = tables.console()
    while as_json or not console.is_terminal:
        _print_next(watched, interval_s, as_json)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            try:
                figures = _next(watched, interval_s)
                live.update(tables.fitting(figures, watched.name, console, console.height), refresh=True)
            except MpwdsError as error:  # it may pass
                live.update(Text(str(error), "bold red"), refresh=True)


def _next(watched: Watched, interval_s: float) -> Figures:
    time.sleep(interval_s)
    return watched.read()


def _print_next(watched: Watched, interval_s: float, as_json: bool) -> None:
    from mpwds.cli.feed import tables
    from mpwds.stats.diagnosis import no_answer

    figures = _next(watched, interval_s)
    if figures.lost:
        print(no_answer(figures.lost), file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps({**figures.as_dict(), "lost": figures.lost}), flush=True)
    else:
        tables.console().print(tables.monitor(figures, watched.name))
