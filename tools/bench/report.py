"""Runs the benchmarks one after the other, and writes a page of what they print, on which machine.

    python tools/bench/report.py                         # all, about an hour and a half
    python tools/bench/report.py --only loader resume    # these again; the others stay as they are
    python tools/bench/report.py --only transport -- --quick

The page is ``docs/proof/report.md``. The same as JSON is beside it, and so are the pictures of the figures
(``tools/plot.py``). What a package that is not installed would show is left out, and the benchmark says so.
Words after ``--`` go to each benchmark. Without them, some have fewer rounds than by default, as their
commands on the page say.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
import plot  # noqa: E402

BENCHMARKS = {
    "transport": "Ready batches, from workers to the training loop",
    "loader": "From what is stored to the training loop",
    "images": "Images",
    "pipeline": "Reading and grouping samples",
    "overlap": "Calls that wait",
    "rebatch": "Shuffling rows in the training process",
    "startup": "Start, and the memory of workers",
    "large": "Large datasets in memory",
    "feed": "Servers",
    "streams": "Logical streams",
    "resume": "Resuming",
    "faults": "Faults",
    "object_store": "Object storage",
    "shard_lists": "Long lists of shards",
    "growth": "How costs grow",
    "descriptions": "Descriptions of many samples",
    "indexed": "Samples by number",
    "mds": "MDS",
    "shuffles": "Orders, and how well they mix",
    "shard_tools": "Commands from shards to shards",
    "cache": "The cache of shards",
    "stages": "What statistics cost",
    "programs": "Programs with another import",
    "device": "The way to a GPU",
}
OPTIONS = {
    "transport": "--rounds 3",
    "images": "--workers 2",
    "pipeline": "--rounds 3",
    "rebatch": "--rounds 2 --seconds 0.5",
    "startup": "--rounds 3",
    "large": "--gb 1 --strings 1000000",
    "feed": "--rounds 3 --seconds 1",
    "streams": "--rounds 5 --seconds 2",
    "resume": "--rounds 5",
    "growth": "--rounds 2 --seconds 0.5",
    "mds": "--rounds 3",
    "shard_tools": "--quick",
    "stages": "--rounds 3",
    "programs": "--rounds 2 --epochs 3",
}
"""Words for a benchmark that would take too long without them."""
PACKAGES = (
    *("torch", "numpy", "pyzmq", "webdataset", "mosaicml-streaming", "litdata", "spdl-core", "grain"),
    *("torchdata", "torchvision", "megatron-energon", "nvidia-dali-cuda120", "datasets", "ray"),
    *("tensorflow-cpu", "array_record", "tensorcom", "s3fs", "boto3", "simplejpeg", "obstore", "urllib3"),
)
PEERS = Path(sys.prefix, "peers")
"""The folder of packages whose own requirements do not fit beside the others (``tools/peers.txt``)."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), metavar="NAME")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs/proof")
    parser.add_argument("options", nargs="*", help="words for each benchmark, after --")
    arguments = parser.parse_args(words)
    file = arguments.folder / "report.json"
    report = json.loads(file.read_text()) if file.exists() else {}
    failed = []
    for name in arguments.only:
        print(f"{name}: {BENCHMARKS[name]}", flush=True)
        try:
            report[name] = run(name, arguments.options)
        except subprocess.CalledProcessError as error:
            print(error.output, error.stderr, file=sys.stderr)
            failed.append(name)
        file.write_text(json.dumps(report, indent=1) + "\n")
        (arguments.folder / "report.md").write_text(page(report))
        plot.draw(report, arguments.folder)
    if failed:
        print(
            f"These failed, and the page has what they printed before: {', '.join(failed)}", file=sys.stderr
        )
    return len(failed)


def run(name: str, options: list[str]) -> dict[str, Any]:
    """What a benchmark printed, and where and when. Raises ``CalledProcessError`` if it fails."""
    words = [f"tools/bench/{name}.py", *(options or OPTIONS.get(name, "").split())]
    began, load = time.time(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder, "figures.json")
        done = subprocess.run(
            [sys.executable, *words, *(["--json", str(figures)] if name in plot.MEASURED else [])],
            cwd=ROOT,
            capture_output=True,  # warnings of peers, on stderr, are no figures
            text=True,
            check=True,
        )
        drawn = {"figures": json.loads(figures.read_text())} if figures.exists() else {}
    return {
        "command": " ".join(["python", *words]),
        "date": time.strftime("%Y-%m-%d", time.gmtime(began)),
        "seconds": round(time.time() - began),
        "load": round(load, 1),
        "machine": machine(),
        "commit": commit(),
        "versions": versions(),
        "output": done.stdout,
        **drawn,
    }


def machine() -> str:
    processor = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as file:
        names = [line.partition(": ")[2].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({(names or [processor])[0]}), {memory:.0f} GiB, Linux"


def versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        for each in metadata.distributions(name=package, path=[*sys.path, str(PEERS)]):
            found.setdefault(package, each.version)
    for each in metadata.distributions(name="webdataset", path=[str(PEERS)]):
        found["wids (in webdataset)"] = each.version
    return found


def commit() -> str:
    """The commit that is checked out; empty outside a repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def page(report: dict[str, Any]) -> str:
    lines = [
        "# Report",
        "",
        "`make bench-report` writes this page: what each benchmark printed, and on which machine.",
        "",
        "A `goal` is a ratio that the project aims at. Where the ratio beside it is lower, it is missed.",
        "[Where mpwds is slower](benchmarks.md#where-mpwds-is-slower) lists what loses.",
    ]
    for name, title in BENCHMARKS.items():
        if (run := report.get(name)) is None:
            continue
        shown = ", ".join(f"{package} {version}" for package, version in run["versions"].items())
        if run.get("commit"):
            shown = f"mpwds at {run['commit']}, {shown}"
        lines += ["", f"## {title}", "", explained(name), "", f"`{run['command']}`", ""]
        lines += ["```text", run["output"].strip("\n"), "```", ""]
        took = f"{run['date']}, {run['seconds']} s; load {run['load']} when it began"
        lines += [f"{took}. {run['machine']}. {shown}."]
    return "\n".join(lines) + "\n"


def explained(name: str) -> str:
    """What a benchmark's file says of it, without its commands."""
    text = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text())) or ""
    parts = [part for part in text.split("\n\n") if not part.startswith("    ")]
    return "\n\n".join(parts).replace("``", "`")


if __name__ == "__main__":
    sys.exit(main())
