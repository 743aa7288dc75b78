"""``mpwds bench``: how fast a dataset, its storage and memory can feed this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from mpwds.cli.console import console, report, table
from mpwds.cli.jobs import noted
from mpwds.cli.options import Json
from mpwds.cli.shards import load_dataset, names_servers, shard_urls
from mpwds.viewing.wording import counted, printable

if TYPE_CHECKING:
    from mpwds.cli.convert.measuring import Run

_NEGLIGIBLE = 0.005
_GAIN = 1.1


def bench(
    source: Annotated[
        list[str],
        Argument(
            metavar="SOURCE",
            help="FILE.py:NAME, a dataset that MultiLoader takes; or tar shards, or a description of them.",
        ),
    ],
    workers: Annotated[
        list[int] | None,
        Option("-w", "--workers", min=1, help="Numbers of workers: 1, 2, 4 ... processors."),
    ] = None,
    seconds: Annotated[float, Option("-s", "--seconds", min=0.5, help="For each number.")] = 3.0,
    start_method: Annotated[str | None, Option(help="forkserver, spawn or fork; as MultiLoader's.")] = None,
    as_json: Json = False,
) -> int:
    """Measure how fast a dataset can feed this machine, and what bounds it.

    Runs a MultiLoader for some seconds with each number of workers, and does nothing with what arrives. Shows
    samples and bytes a second, each stage's time, and how fast storage and memory are by themselves. Of plain
    shards it reads the samples and leaves them as they are. Ctrl-C shows what was measured until then.
    """
    from mpwds.cli.convert import measuring

    if len(source) == 1 and _names_an_object(source[0]):
        dataset = load_dataset(source[0])
        urls = measuring.shards_of(dataset)
    else:
        _refuse_other_things(source)
        urls = shard_urls(source)
        dataset = measuring.of_shards(urls)
    counts = sorted(set(workers or _usual_counts()))
    figures: dict[str, float] = {}
    runs: list[Run] = []
    stopped = False
    with console(to_stderr=True).status("copying memory") as status:
        try:
            figures["memory_bytes_per_s"] = measuring.memory_rate()
            if urls:
                status.update("reading shards")
                figures["storage_bytes_per_s"] = measuring.storage_rate(urls, seconds)
            for count in counts:
                status.update(f"running {count} workers for {seconds:g} s")
                with noted(f"in running {' '.join(source)}"):
                    run = measuring.run(dataset, count, seconds, start_method)
                if run is not None:
                    runs.append(run)
                if run is None or not run.complete:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            stopped = True
    if as_json:
        shown = [run.as_dict() for run in runs]
        report(as_json, {**figures, "runs": shown, "verdict": _verdict(runs), "stopped": stopped})
    else:
        _show(runs, figures)
        if stopped:
            print("stopped before all was measured")
    return 128 + signal.SIGINT if stopped else 0


def _names_an_object(source: str) -> bool:
    """True if this is ``FILE.py:NAME`` or ``package.module:NAME``, and no URL or path."""
    where, colon, name = source.rpartition(":")
    return (
        bool(colon)
        and where != "file"
        and name.replace(".", "_").isidentifier()
        and (where.endswith(".py") or where.replace(".", "_").isidentifier())
    )


def _refuse_other_things(sources: Sequence[str]) -> None:
    for source in sources:
        if names_servers(source):
            raise BadParameter(
                f"{source} names feed servers: mpwds monitor shows what these do; bench measures datasets "
                "(FILE.py:NAME) and shards (.tar, .json)"
            )
        if source.endswith(".py"):
            raise BadParameter(f"{source}: name a dataset in it, {source}:NAME")


def _usual_counts() -> list[int]:
    cores = len(os.sched_getaffinity(0))
    return [*(1 << power for power in range(cores.bit_length()) if 1 << power <= cores), cores]


def _show(runs: Sequence[Run], figures: dict[str, float]) -> None:
    if "memory_bytes_per_s" in figures:
        print(f"one process copies {figures['memory_bytes_per_s'] / 1e9:,.1f} GB/s of memory")
    if "storage_bytes_per_s" in figures:
        print(f"one process reads {figures['storage_bytes_per_s'] / 1e6:,.0f} MB/s of its shards")
    if not runs:
        return
    best = _best(runs)
    rates = []
    for run in runs:
        stats = run.stats
        active_s = max(worker.active_s for worker in stats.workers)
        busy = sum(worker.cpu_s for worker in stats.workers) / max(active_s, 1e-9)
        speeds = f"{run.samples_per_s:,.0f}", f"{run.bytes_per_s / 1e6:,.1f}", f"{run.batches_per_s:,.1f}"
        rates.append((str(run.workers), *speeds, f"{busy:.1f}", f"{run.first_batch_s:.2f} s"))
    columns = ("workers", "samples/s", "MB/s", "batches/s", "processors", "first batch")
    of_runs = table("", columns, rates)
    of_runs.rows[runs.index(best)].style = "bold"
    stages = []
    for stage in best.stats.stages:
        if stage.share >= _NEGLIGIBLE:
            each = f"{stage.seconds / stage.elements * 1e3:.3g}" if stage.elements else "-"
            rate = f"{stage.elements_per_s:,.0f}" if stage.elements else "-"
            stages.append((stage.name, f"{stage.share:.0%}", each, rate))
    name = f"stages ({counted(best.workers, 'worker')})"
    of_stages = table("", (name, "share", "ms each", "elements/s by one worker"), stages, (name,))
    console().print("", of_runs, "", of_stages, "", printable(_verdict(runs)), sep="\n")


def _best(runs: Sequence[Run]) -> Run:
    """The run with the fewest workers of those that are about as fast as the fastest."""
    most = max(run.samples_per_s for run in runs)
    return next(run for run in runs if run.samples_per_s * _GAIN >= most)


def _verdict(runs: Sequence[Run]) -> str:
    """Says what this machine can do, and what bounds it."""
    if not runs:
        return "nothing was measured"
    best, first = _best(runs), runs[0]
    feed = "worker feeds" if best.workers == 1 else "workers feed"
    rate = f"{best.samples_per_s:,.0f} samples/s ({best.bytes_per_s / 1e6:,.1f} MB/s)"
    words = f"{best.workers} {feed} {rate}"
    if first is not best and first.samples_per_s:
        words += f", {best.samples_per_s / first.samples_per_s:.1f} times what {first.workers} can"
    most = runs[-1]
    return (
        f"{words}; {best.verdict()}"
        if best is most
        else f"{words}; {most.workers} are not faster: {most.verdict(more_help=False)}"
    )
