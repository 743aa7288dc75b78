"""``mpwds show``: samples of shards, or a batch of a feed, as pictures."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from typer import Argument, BadParameter, Option

from mpwds.cli import options
from mpwds.cli.console import console, report, table
from mpwds.cli.feed.commands import Insecure, Keys, Timeout
from mpwds.cli.outputs import write_png
from mpwds.cli.shards import names_servers
from mpwds.viewing.wording import number as in_short

if TYPE_CHECKING:
    from rich.table import Table

    from mpwds.feed.status_client import StatusSource
    from mpwds.viewing.pictures import Pictures
    from mpwds.viewing.tensors import TensorFigures

Urls = Annotated[
    list[str],
    Argument(
        metavar="SHARDS",
        help="Shards: paths, URLs, train-{000..131}.tar, or - for standard input. Or feed servers, such as "
        "tcp://cpu{1..4}:7880, ipc:///run/feed or file:servers.txt; or tensorcom's zsub://host:port.",
    ),
]
Limit = Annotated[int, Option(min=1, metavar="N", help="Of shards: how many samples the histograms show.")]


def show(
    urls: Urls,
    chosen: options.Chosen,
    save: Annotated[
        Path | None, Option(metavar="FILE", help="Write a contact sheet, as PNG, in place of showing it.")
    ] = None,
    limit: Limit = 1000,
    web: Annotated[
        bool, Option("--web", help="Of a feed: serve a page that shows it, to this machine only.")
    ] = False,
    port: Annotated[int, Option(min=0, max=65535, help="Of the page; 0 takes one that is free.")] = 0,
    timeout: Timeout = 30.0,
    keys: Keys = None,
    insecure: Insecure = False,
    as_json: options.Json = False,
) -> int:
    """Show samples of shards, or a batch of a feed: in the terminal, as a picture, or on a page.

    Images have labels; sound is shown as waveforms, text by its beginning. Histograms show labels and sizes.
    Trainers still get the batches of feed servers; those of tensorcom's zpull are lost to others.
    """
    if web and save is not None:
        raise BadParameter("--save writes one batch, and --web shows new ones: take one of them")
    if save is not None and save.suffix.lower() != ".png":  # it may be a shard, which would be replaced
        raise BadParameter(f"--save {save}: a contact sheet is a PNG image: name it sheet.png")
    if port and not web:
        raise BadParameter("--port is for the page: add --web")
    from mpwds.cli.feed.tables import tensors
    from mpwds.viewing.contact_sheet import draw_sheet

    problems = 0
    if any(map(names_servers, urls)):
        if any(vars(chosen).values()):
            raise BadParameter("--key, --number, --where and --fields are for shards, not for feeds")
        from mpwds.cli.feed.sources import open_source

        with contextlib.closing(open_source(urls, keys, insecure)) as source:
            if web:
                _serve(source, port)
            sections, figures = _batch(source, timeout, with_title=save is not None)
        figure_table = tensors(figures)
    else:
        if web:
            raise BadParameter("--web is for feeds; --save writes a contact sheet of shards")
        from mpwds.cli.inspect.selection import SampleSelection
        from mpwds.cli.inspect.sheet import draw

        selection = SampleSelection(urls, chosen, limit)
        sections, figures = draw(selection)
        problems, figure_table = selection.problems, _histograms(figures)
    if save is None:
        if as_json:
            report(as_json, [each.as_dict() for each in figures])
        else:
            _print(sections, figure_table)
    elif not figures:
        raise ValueError(f"there is no sample to show: {save} is not written")
    else:
        write_png(save, draw_sheet(sections, figures))
        report(as_json, {"file": str(save)}, f"wrote {save}")
    return int(problems > 0)


def _batch(
    source: StatusSource, timeout_s: float, with_title: bool
) -> tuple[list[tuple[str, Pictures]], list[TensorFigures]]:
    """A feed's next batch as pictures, and the figures of its tensors."""
    from mpwds.viewing.pictures import pictures
    from mpwds.viewing.tensors import TensorStatistics

    batch = source.peek(timeout_s)
    source.read()  # which learns the names of classes
    statistics = TensorStatistics()
    statistics.add(batch)
    title = f"A batch of {source.name}" if with_title else ""
    return [(title, pictures(batch, classes=source.classes))], statistics.read()


def _print(sections: Sequence[tuple[str, Pictures]], figures: Table) -> None:
    from mpwds.cli.feed import tables

    screen = console(soft_wrap=False)
    has_colours = screen.color_system is not None and not screen.no_color
    for title, shown in sections:
        if title:
            screen.print(title, style="bold")
        screen.print(tables.batch_pictures(shown, screen.width, has_colours), "", sep="\n")
    screen.print(figures)


def _histograms(figures: Sequence[TensorFigures]) -> Table:
    from mpwds.cli.feed.tables import sparkline

    rows = [
        (each.path, f"{each.elements:,}", *map(in_short, (each.low, each.mean, each.high)), sparkline(each))
        for each in figures
    ]
    return table("", ("histogram of", "samples", "least", "mean", "largest", ""), rows, ("histogram of", ""))


def _serve(source: StatusSource, port: int) -> NoReturn:
    from mpwds.feed.page import Page

    with Page(source, port) as page:
        print(
            f"open {page.url} in a browser on this machine; the link works once, Ctrl-C ends the page",
            flush=True,
        )
        while True:
            time.sleep(3600)
