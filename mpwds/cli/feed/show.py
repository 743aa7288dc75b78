"""``mpwds show``: a batch of a feed in the terminal, in a picture, or on a page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from mpwds.cli.feed.options import Insecure, Keys, Timeout, Urls

if TYPE_CHECKING:
    from mpwds.feed.viewing.watching import Watched


def show(
    urls: Urls,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a contact sheet, as PNG, in place of showing it."),
    ] = None,
    web: Annotated[
        bool, typer.Option("--web", help="Serve a page that shows the feed, to this machine only.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0 takes one that is free.")] = 0,
    timeout: Timeout = 30.0,
    keys: Keys = None,
    insecure: Insecure = False,
) -> None:
    """Show a batch of a feed: in the terminal, as a picture, or on a page.

    Pictures have labels, shapes and histograms; batches without images are shown as waveforms or texts.
    Trainers still get the batches of feed servers; those of tensorcom's zpull are lost to others.
    """
    if web and save is not None:
        raise typer.BadParameter("--save writes one batch, and --web shows new ones: take one of them")
    if port and not web:
        raise typer.BadParameter("--port is for the page: add --web")
    from mpwds.cli.feed.watched import watch

    watched = watch(urls, keys, insecure)
    try:
        if web:
            _serve(watched, port)
        batch = watched.peek(timeout)
    finally:
        watched.close()
    if save is None:
        _print(batch)
        return
    from mpwds.viewing.contact_sheet import write_contact_sheet

    write_contact_sheet(save, batch, f"A batch of {watched.name}")
    print(f"wrote {save}")


def _print(batch: Any) -> None:
    from rich.console import Console

    from mpwds.cli.feed import tables
    from mpwds.viewing.pictures import pictures
    from mpwds.viewing.tensors import TensorStatistics

    statistics = TensorStatistics()
    statistics.add(batch)
    console = Console()
    console.print(tables.batch_pictures(pictures(batch), console.width, console.color_system is not None))
    console.print()
    console.print(tables.tensors(statistics.read()))


def _serve(watched: Watched, port: int) -> NoReturn:
    from mpwds.feed.viewing.page import Page

    with Page(watched, port) as page:
        print(
            f"open {page.url} in a browser on this machine; the link works once, Ctrl-C ends the page",
            flush=True,
        )
        while True:
            time.sleep(3600)
