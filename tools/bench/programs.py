"""Measures three programs written for torch's DataLoader, as they are and with the import changed.

    python tools/bench/programs.py             # all, about six minutes
    python tools/bench/programs.py --rounds 1 --epochs 2 --only ddp

The programs are those of tests/examples/programs: an image classifier over a folder of JPEG files, a
language model on packed documents, and distributed training. The data is made here. Each program runs with
torch's class and with ours in turn, once with its training and once iterating its loaders only. A figure is
the best epoch of all rounds, the first epoch of each left out; the first epochs, which start what there is to
start, have a column of their own (the best of the rounds too).
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

PROGRAMS = Path(__file__).parents[2] / "tests" / "examples" / "programs"
TORCH, OURS = (
    "from torch.utils.data import DataLoader, ",
    "from mpwds import DataLoader\nfrom torch.utils.data import ",
)


@dataclass(frozen=True)
class Program:
    """One of the programs, and the options that make it as large as in life."""

    name: str
    options: Sequence[str]
    ranks: int = 1

    def seconds(self, script: Path, data: Path, epochs: int, training: bool) -> list[float]:
        """Runs it; the time of each epoch."""
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        command = [
            sys.executable,
            *(launcher if self.ranks > 1 else []),
            str(script),
            str(data),
            f"--epochs={epochs}",
            *self.options,
            *([] if training else ["--no-training"]),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        return [float(line.split()[1]) for line in output.splitlines() if line.startswith("seconds ")]


ALL = (
    Program("image_folder", ["--batch-size=32", "--crop=224", "--workers=2"]),
    Program("token_packing", ["--batch-size=16", "--block-size=512", "--workers=2"]),
    Program("ddp", ["--batch-size=64", "--workers=1"], ranks=2),
)


def make_data(folder: Path) -> None:
    sys.path.insert(0, str(PROGRAMS))
    import make_data

    make_data.photographs(folder, per_class=200, size=256)
    make_data.tokens(folder, documents=4000, mean_length=200)
    make_data.vectors(folder, rows=40_000, width=256)


def changed(program: Program, folder: Path) -> Path:
    """The program with its import changed."""
    text = (PROGRAMS / f"{program.name}.py").read_text()
    if TORCH not in text:
        raise SystemExit(f"{program.name}.py does not import DataLoader as expected: {TORCH}")
    script = folder / f"{program.name}.py"
    script.write_text(text.replace(TORCH, OURS))
    return script


def main() -> None:
    parser = argparse.ArgumentParser(description="torch's DataLoader against ours, in three programs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--only", choices=[program.name for program in ALL])
    arguments = parser.parse_args()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {versions}")
    print(f"{'program':16}{'':10}{'torch':>9}{'mpwds':>9}{'ratio':>8}{'first: torch':>15}{'mpwds':>9}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder)
        for program in ALL:
            if arguments.only in (None, program.name):
                scripts = PROGRAMS / f"{program.name}.py", changed(program, folder)
                for training in (True, False):
                    report(program, scripts, folder, training, arguments.rounds, arguments.epochs)


def report(
    program: Program, scripts: tuple[Path, Path], data: Path, training: bool, rounds: int, epochs: int
) -> None:
    runs: tuple[list[list[float]], list[list[float]]] = ([], [])
    for _ in range(rounds):
        for script, of_script in zip(scripts, runs, strict=True):
            of_script.append(program.seconds(script, data, epochs, training))
    torchs, ours = (min(min(seconds[1:]) for seconds in of_script) for of_script in runs)
    first_torchs, first_ours = (min(seconds[0] for seconds in of_script) for of_script in runs)
    what = "training" if training else "loading"
    print(
        f"{program.name:16}{what:10}{torchs:8.2f}s{ours:8.2f}s{torchs / ours:8.2f}"
        f"{first_torchs:14.2f}s{first_ours:8.2f}s",
        flush=True,
    )


if __name__ == "__main__":
    main()
