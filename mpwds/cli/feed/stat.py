"""``mpwds stat``: statistics of a feed's tensors."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mpwds.cli.feed.options import Insecure, Keys, Timeout, Urls
from mpwds.cli.options import Json


def stat(
    urls: Urls,
    batches: Annotated[int, typer.Option("-n", "--batches", min=1, help="Batches to look at.")] = 10,
    as_json: Json = False,
    timeout: Timeout = 30.0,
    keys: Keys = None,
    insecure: Insecure = False,
) -> None:
    """Compute statistics of a feed's tensors over some batches.

    Shows shape, range, mean, standard deviation, a histogram and the number of NaNs of each tensor.
    Trainers still get the batches of feed servers; those of tensorcom's zpull are lost to others.
    """
    from rich.console import Console

    from mpwds.cli.console import report
    from mpwds.cli.feed import tables
    from mpwds.cli.feed.watched import watch
    from mpwds.viewing.tensors import TensorStatistics

    statistics = TensorStatistics()
    watched = watch(urls, keys, insecure)
    try:
        if len({server.fingerprint for server in watched.read().servers}) > 1:
            print(
                "warning: the servers have different datasets, whose batches are mixed here", file=sys.stderr
            )
        with Console(stderr=True).status(f"receiving {batches} batches from {watched.name}"):
            for _ in range(batches):
                statistics.add(watched.peek(timeout))
    finally:
        watched.close()
    if as_json:
        report(as_json, [tensor.as_dict() for tensor in statistics.read()])
    else:
        tables.console().print(tables.tensors(statistics.read()))
