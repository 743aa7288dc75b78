"""``mpwds monitor``, ``stat`` and ``keygen``, and the arguments that commands about feeds share."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from typer import Argument, Option

from mpwds.cli.console import console, report
from mpwds.cli.options import Json
from mpwds.errors import MpwdsError

if TYPE_CHECKING:
    from mpwds.feed.status_client import StatusSource

Urls = Annotated[
    list[str],
    Argument(
        metavar="URL",
        help="Feed servers, such as tcp://cpu{1..4}:7880, ipc:///run/feed or file:servers.txt; or "
        "tensorcom's zsub://host:port.",
    ),
]
Keys = Annotated[
    Path | None, Option(metavar="DIR", help="Folder of the keys, which servers on other machines need.")
]
Insecure = Annotated[bool, Option("--insecure", help="Connect to other machines without keys.")]
Timeout = Annotated[float, Option(min=0, metavar="SECONDS", help="How long to wait for a batch.")]


def monitor(
    urls: Urls,
    once: Annotated[bool, Option("--once", help="Print one reading, and end.")] = False,
    as_json: Json = False,
    interval: Annotated[float, Option(min=0.1, metavar="SECONDS", help="Between readings.")] = 1.0,
    keys: Keys = None,
    insecure: Insecure = False,
) -> None:
    """Show what feed servers do, live: rates, workers, stages, clients, and what bounds the feed.

    Figures and verdict are about the time of the last ten readings. For tensorcom's sockets it shows rates
    and shapes, about the time since the last reading. With --json, each reading is a line.
    """
    from mpwds.cli.feed.sources import open_source

    with contextlib.closing(open_source(urls, keys, insecure)) as source:
        source.read()  # rates begin here
        if not once:
            _follow(source, interval, as_json)
        _print_next(source, interval, as_json)


def _follow(source: StatusSource, interval_s: float, as_json: bool) -> NoReturn:
    from rich.live import Live
    from rich.text import Text

    from mpwds.cli.feed import tables

    screen = console(soft_wrap=False)
    while as_json or not screen.is_terminal:
        _print_next(source, interval_s, as_json)
    with Live(console=screen, auto_refresh=False, screen=True) as live:
        while True:
            try:
                time.sleep(interval_s)
                reading = source.read()
                live.update(tables.fitting(reading, source.name, screen, screen.height), refresh=True)
            except MpwdsError as error:  # it may pass
                live.update(Text(str(error), "bold red"), refresh=True)


def _print_next(source: StatusSource, interval_s: float, as_json: bool) -> None:
    from mpwds.cli.feed import tables
    from mpwds.stats.diagnosis import no_answer

    time.sleep(interval_s)
    reading = source.read()
    if reading.lost:
        print(no_answer(reading.lost), file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps(reading.as_dict()), flush=True)
    else:
        console(soft_wrap=False).print(tables.monitor(reading, source.name))


def stat(
    urls: Urls,
    batches: Annotated[int, Option("-n", "--batches", min=1, help="Batches to look at.")] = 10,
    as_json: Json = False,
    timeout: Timeout = 30.0,
    keys: Keys = None,
    insecure: Insecure = False,
) -> None:
    """Compute statistics of a feed's tensors over some batches.

    Shows shape, range, mean, standard deviation, a histogram and the number of NaNs of each tensor.
    Trainers still get the batches of feed servers; those of tensorcom's zpull are lost to others.
    """
    from mpwds.cli.feed import tables
    from mpwds.cli.feed.sources import open_source
    from mpwds.viewing.tensors import TensorStatistics

    statistics = TensorStatistics()
    with contextlib.closing(open_source(urls, keys, insecure)) as source:
        if len({server.fingerprint for server in source.read().servers}) > 1:
            print("warning: the servers have different datasets; batches are mixed here", file=sys.stderr)
        with console(to_stderr=True).status(f"receiving {batches} batches from {source.name}"):
            for _ in range(batches):
                statistics.add(source.peek(timeout))
    if as_json:
        report(as_json, [tensor.as_dict() for tensor in statistics.read()])
    else:
        console(soft_wrap=False).print(tables.tensors(statistics.read()))


def keygen(
    folder: Annotated[Path, Argument(metavar="DIR", help="Folder for the keys, made if it is missing.")],
    client: Annotated[
        str | None, Option(metavar="NAME", help="Make the keys of one more client, client-NAME.")
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
