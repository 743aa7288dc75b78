"""Measures what happens when workers of a data loader are killed (SIGKILL) in the middle of an epoch.

    python tools/bench/faults.py                     # about four minutes
    python tools/bench/faults.py --quick             # about a minute
    python tools/bench/faults.py --only mpwds litdata
    python tools/bench/faults.py --epoch 15 --every 3

A small training program (``loading/checkpointed.py``) reads an epoch of texts of 4 kB, each of which begins
with its number, in batches of 8, with two workers. A step takes 10 ms. Every 50 steps the program saves the
loader's state, beside that of the model. Each package shuffles, and reads its own format.

Each has an undisturbed epoch, and one in which a worker is killed again and again: ``--every`` seconds after
the first batch, or after the last kill. If the program ends with an error, or no step ends for 10 s, it
starts again from its last state. Steps that it repeats replace those that it did before. So a sample is lost
if it is in no step that counts, and repeated if it is in several. After four times the undisturbed time, the
epoch is given up.

- mpwds: ``MultiLoader`` with ``on_worker_death="restart"``, and with the default, ``"raise"``.
- webdataset in torch's ``DataLoader``: without a state. A program that starts again has its model, but begins
  the epoch anew.
- webdataset in torchdata's ``StatefulDataLoader``: the dataset's ``state_dict`` is the number of its batches,
  which are skipped then. (Without one, torchdata 0.11.0 counts skipped batches twice after a second start.)
- mosaicml-streaming: ``clean_stale_shared_memory()`` comes before each start.
- litdata: its ``StreamingDataset`` and ``StreamingDataLoader``.
- Energon: shards prepared by ``energon prepare``; ``repeat=False``, ``get_savable_loader`` and
  ``save_state_rank``.

The first table is about the first kill: what the training loop sees, how long after it, the longest pause
between two steps, and how many processes are left a second after the program ended. The second table is about
all kills. Steps done again are those since the last state.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from loading.checkpointed import BATCH, CONTESTANTS, STEP_S, WORKERS, train

HANGS_S, START_S = 10, 60  # without a step, and before the first one
LONGEST_S, LIMIT = 300, 4  # of an undisturbed epoch; of a disturbed one, times the undisturbed one


@dataclass
class Run:
    """What the supervisor saw of an epoch."""

    wall_s: float = 0
    kills: list[float] = field(default_factory=list)  # when
    starts: int = 0
    left: list[int] = field(default_factory=list)  # processes, each time that the program ended
    events: list[dict[str, Any]] = field(default_factory=list)
    ended: bool = False

    def trained(self) -> Counter[int]:
        """How often each sample counts, in steps that no later one replaced."""
        steps = {event["step"]: event["numbers"] for event in self.events if "step" in event}
        return Counter(number for numbers in steps.values() for number in numbers)


def supervise(key: str, data: Path, every_s: float, limit_s: float) -> Run:
    """Runs an epoch, with a worker killed each ``every_s``; starts the program again when it fails."""
    run, began = Run(), time.time()
    with tempfile.TemporaryDirectory() as folder:
        while not run.ended and time.time() < began + limit_s:
            start(key, data, Path(folder), every_s, began + limit_s, run)
    run.wall_s = time.time() - began
    return run


def start(key: str, data: Path, folder: Path, every_s: float, until: float, run: Run) -> None:
    run.starts += 1
    began, last, due, rest = time.time(), None, None, ""
    with (folder / "output").open("w") as output, (folder / "log").open("w+") as log:
        program = subprocess.Popen(
            program_of("train", key, data, folder), stdout=output, stderr=output, start_new_session=True
        )
        try:
            over = False
            while not over:
                over = program.poll() is not None
                lines, _, rest = (rest + log.read()).rpartition("\n")
                for event in map(json.loads, lines.splitlines()):
                    run.events.append(event)
                    last = event if "step" in event else last
                now = time.time()
                if now > until or now - (last["at"] if last else began) > (HANGS_S if last else START_S):
                    run.events.append({"error": "hangs" if now <= until else "time is up", "at": now})
                    break
                if last and now >= (due := due or now + every_s) and kill_one(last["pids"], len(run.kills)):
                    run.kills.append(now)
                    due = now + every_s
                time.sleep(0.005)
            run.ended = program.returncode == 0
        finally:
            run.left.append(end_session(program))
    if program.returncode and "error" not in run.events[-1]:
        run.events.append({"error": f"exit code {program.returncode}", "at": time.time()})
    if not (run.ended or run.kills):
        raise RuntimeError(f"{run.events[-1]}\n{(folder / 'output').read_text()[-2000:]}")


def program_of(*words: Any) -> list[str]:
    return [sys.executable, __file__, "--part", *map(str, words)]


def kill_one(pids: list[int], number: int) -> bool:
    """Kills one of the workers, in turn, unless it is dead already."""
    with contextlib.suppress(psutil.NoSuchProcess):
        worker = psutil.Process(pids[number % len(pids)])
        if worker.status() != psutil.STATUS_ZOMBIE:
            worker.kill()
            return True
    return False


def end_session(program: subprocess.Popen[bytes]) -> int:
    """How many processes of a program are there a second after it ended; kills them."""
    until = time.time() + 1 if program.poll() is not None else 0
    while (left := session(program.pid)) and time.time() < until:
        time.sleep(0.02)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    program.wait()
    return len(left) if until else 0


def session(leader: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def show_first(title: str, run: Run) -> None:
    if not run.kills:
        print(f"{title:32} the epoch ended before a worker was killed", flush=True)
        return
    at, until = [*run.kills, float("inf")][:2]
    steps = [event["at"] for event in run.events if "step" in event]
    begins = max(step for step in steps if step <= at)
    pauses_s = [after - before for before, after in pairwise(steps) if begins <= before < until]
    pause = f"{max(pauses_s):8.2f} s" if pauses_s else f"{'no more':>10}"
    error = next((event for event in run.events if "error" in event and at <= event["at"] < until), None)
    seen = f"{error['error']:24} {error['at'] - at:8.2f} s" if error else f"{'goes on':24} {'':10}"
    print(f"{title:32} {seen} {pause} {run.left[0]:6}", flush=True)


def show_all(title: str, run: Run, samples: int, undisturbed: Run) -> None:
    trained, done = run.trained(), [event["step"] for event in run.events if "step" in event]
    over = f"{run.wall_s / undisturbed.wall_s:6.2f}" if run.ended else f"{'no end':>6}"
    print(
        f"{title:32} {len(run.kills):5} {60 * len(run.kills) / run.wall_s:6.1f} {run.starts - 1:8} "
        f"{run.wall_s:7.1f} s {over} {len(done) - len(set(done)):12} {samples - len(trained):8,} "
        f"{trained.total() - len(trained):8,}",
        flush=True,
    )
    if (whole := undisturbed.trained()) != Counter(range(samples)):
        lost, repeated = samples - len(whole), whole.total() - len(whole)
        print(f"  undisturbed, {lost:,} samples were lost and {repeated:,} repeated")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epoch", type=float, default=8, help="seconds that the steps take")
    parser.add_argument("--every", type=float, default=2, help="seconds from one kill to the next")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--quick", action="store_true", help="an epoch of 2 s, and a kill each second")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)  # of this program, in its own process
    options = parser.parse_args()
    if options.part:
        part, key, folder, last = options.part
        if part == "write":
            CONTESTANTS[key].write(Path(folder), int(last))
        else:
            train(CONTESTANTS[key], Path(folder), Path(last))
        return
    epoch_s, every_s = (2, 1) if options.quick else (options.epoch, options.every)
    samples = int(epoch_s / STEP_S) // (64 * WORKERS) * 64 * WORKERS * BATCH
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{samples:,} samples, {samples // BATCH:,} steps; a worker is killed every {every_s:g} s")
    runs: dict[str, tuple[Run, Run]] = {}
    print(f"\n{'the first kill':32} {'the loop sees':24} {'after':>10} {'pause':>10} {'left':>6}")
    for key in options.only:
        contestant = CONTESTANTS[key]
        with tempfile.TemporaryDirectory() as folder:
            written = subprocess.run(
                program_of("write", key, folder, samples), capture_output=True, text=True
            )
            if written.returncode:
                print(f"{contestant.title:32} left out: {written.stderr.splitlines()[-1]}", flush=True)
                continue
            undisturbed = supervise(key, Path(folder), float("inf"), LONGEST_S)
            run = supervise(key, Path(folder), every_s, LIMIT * undisturbed.wall_s)
            runs[key] = undisturbed, run
            show_first(contestant.title, run)
    print(
        f"\n{'all kills':32} {'kills':>5} {'a min.':>6} {'restarts':>8} {'wall time':>9} {'ratio':>6} "
        f"{'steps redone':>12} {'lost':>8} {'repeated':>8}"
    )
    for key, (undisturbed, run) in runs.items():
        show_all(CONTESTANTS[key].title, run, samples, undisturbed)


if __name__ == "__main__":
    main()
