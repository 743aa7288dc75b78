"""Trains for minutes while ranks, workers and servers are killed, and goes on with other numbers of them.

    python tools/chaos.py                        # three minutes
    python tools/chaos.py --minutes 120 --seed 7

A job is two epochs of tar shards, dealt to 12 streams. Its dataset, ``even=``, ``in_order=`` and whether rows
are shuffled after the loader are drawn at random. Ranks of torchrun deliver it (gloo, on the CPU) and save
their states after random steps, as JSON, by msgpack, or by torch's distributed checkpoint. Ranks, their
workers, and servers that work for them (``mpwds serve``) are killed at random times. The job goes on from its
last checkpoint, on another number of ranks with other numbers of workers, or with servers; sometimes the
state of a rank is lost. What was delivered after that checkpoint does not count, as in training.

When a job is complete, what it delivered is compared with an undisturbed run of one rank: samples that are
lost, samples that are repeated, and the order. The exit status is 1 if these differ, or if a launch fails or
hangs without a fault. ``--seed`` determines what is done; the moments of faults vary with the machine.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import chaos_training
import psutil
from chaos_training import (
    DATASETS,
    EPOCHS,
    FORMATS,
    HANGS_S,
    STREAMS,
    Job,
    Launch,
    copies_of,
    is_kept,
    merged,
)

RANKS = {1: 3, 2: 3, 3: 3, 4: 2, 6: 1, 12: 1}  # how often each number is drawn
SERVERS, WORKERS_OF_SERVER, POOL = 2, 3, 30
DROPPED = 0.2  # of an epoch at the most, where ranks end with the first of them
SERVED, SURVIVED, OF_SERVERS, STATES_LOST, ONE_RANK, AT_START = 0.3, 0.6, 0.6, 0.3, 0.6, 0.1  # how likely

Batches = list[tuple[int, Any]]
"""The batches of a job in the order of its steps and ranks: an epoch and its rows."""


@dataclass
class Tally:
    """What all jobs came to."""

    jobs: int = 0
    launches: int = 0
    samples: int = 0
    lost: int = 0
    repeated: int = 0
    out_of_order: int = 0
    refused: int = 0
    faults: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: collections.defaultdict(list)
    )
    """Of each kind: seconds lost, and those of them until the loader's first batch."""

    def __str__(self) -> str:
        lines = [
            f"{self.jobs} jobs, {self.launches} launches: {self.samples:,} samples delivered, "
            f"{self.lost} lost, {self.repeated} repeated; {self.out_of_order} epochs out of order; "
            f"{self.refused} checkpoints refused, older ones used",
            f"{'fault':40} {'survived':>8}  seconds lost: median   most   of the loader",
        ]
        for kind, lost in sorted(self.faults.items()):
            seconds, loader = zip(*lost, strict=True)
            lines.append(
                f"{kind:40} {len(lost):8}  {statistics.median(seconds):20.2f} {max(seconds):6.2f} "
                f"{statistics.median(loader):15.2f}"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint, and what the job had delivered before it."""

    folder: Path
    saved_as: str
    epoch: int
    before: Batches
    saved_at: float


class Run:
    """A job, through all its faults."""

    def __init__(self, job: Job, dice: random.Random, tally: Tally) -> None:
        self._job, self._dice, self._tally = job, dice, tally
        self._checkpoints: list[Checkpoint] = []
        self._numbers = iter(range(10**9))
        self._began = time.monotonic()

    def delivered(self) -> Batches:
        """Runs the job to its end; returns what a training would have got."""
        fault = ""
        while True:
            start = self._checkpoints[-1] if self._checkpoints else None
            launch = self._next_launch(start)
            self._tally.launches += 1
            harmed, survived = self._run(launch)
            logs = [read_log(launch.log(rank)) for rank in range(launch.ranks)]
            steps = list(zip(*[[line for line in log if "rows" in line] for log in logs], strict=False))
            if fault and steps:
                since = start.saved_at if start else self._began
                loader_s = max(line["after"] for line in steps[0])
                self._tally.faults[fault].append((max(line["at"] for line in steps[0]) - since, loader_s))
            for harm, at in survived:
                if steps and at < steps[-1][0]["at"]:
                    lost = pause_after(at, [step[0]["at"] for step in steps])
                    self._tally.faults[harm].append((lost, lost))
            before = start.before if start else []
            self._note_checkpoints(launch, before, steps)
            ends = [log[-1].get("end") if log else None for log in logs]
            if set(ends) == {"finished"}:
                return before + batches_of(steps)
            if set(ends) == {"stopped"}:
                harmed = "stopped to change"
            if not harmed:
                raise SystemExit(f"launch {launch.number} of {self._job} failed without a fault")
            fault = f"{harmed}, a state lost" if self._lose_a_state() else harmed

    def _next_launch(self, start: Checkpoint | None) -> Launch:
        done = 0 if start is None else sum(epoch == start.epoch for epoch, _ in start.before)
        possible = [ranks for ranks in RANKS if done % ranks == 0]
        (ranks,) = self._dice.choices(possible, [RANKS[each] for each in possible])
        workers = [min(self._dice.choice([0, 1, 3]), STREAMS // ranks) for _ in range(ranks)]
        launch = Launch(
            self._job, next(self._numbers), self._dice.randrange(10**9), workers, self._dice.choice(FORMATS)
        )
        if ranks <= WORKERS_OF_SERVER and self._dice.random() < SERVED:
            urls = [f"ipc://{self._job.folder}/server-{number}" for number in range(SERVERS)]
            launch = replace(launch, servers=urls, on_server_loss=self._dice.choice(["wait", "move"]))
        if start is None:
            return launch
        return replace(launch, start=str(start.folder), start_saved_as=start.saved_as, epoch=start.epoch)

    def _run(self, launch: Launch) -> tuple[str, list[tuple[str, float]]]:
        """Runs a launch and does harm; returns which harm ended it, and what it survived, when."""
        with Servers(launch) as servers:
            process = self._started(launch)
            written, written_at, survived = 0, time.monotonic(), list[tuple[str, float]]()
            harm_after = self._dice.uniform(0.2, 5)
            harm_at = written_at + harm_after if self._dice.random() < AT_START else float("inf")
            while process.poll() is None:
                time.sleep(0.02)
                now, size = time.monotonic(), sum(map(size_of, self._logs(launch)))
                if size > written:
                    written, written_at = size, now
                    harm_at = min(harm_at, now + harm_after)
                if now - written_at > HANGS_S:
                    kill([process.pid, *children_of(process)])
                    raise SystemExit(f"no step for {HANGS_S:g} s in launch {launch.number} of {self._job}")
                if now < harm_at:
                    continue
                if self._dice.random() < SURVIVED and (harm := self._harm_without_end(launch, servers)):
                    survived.append((harm, now))
                    harm_at = now + self._dice.uniform(0.5, 5)
                elif ranks := children_of(process):
                    one = self._dice.random() < ONE_RANK
                    kill([self._dice.choice(ranks)] if one else [process.pid, *ranks])
                    process.wait()
                    return "a rank killed" if one else "all ranks killed", survived
        return "", survived

    def _harm_without_end(self, launch: Launch, servers: Servers) -> str:
        """Kills a server, or a worker of it or of a rank; returns which, or nothing if there is none."""
        if servers.processes and self._dice.random() < OF_SERVERS:
            servers.kill_one(self._dice)
            return f"a server killed, {launch.on_server_loss}"
        if servers.processes:
            workers = [pid for server in servers.processes for pid in children_of(server, recursive=True)]
        else:
            last = [line for log in self._logs(launch) for line in read_log(log)[-1:]]
            workers = [pid for line in last for pid in line.get("workers", [])]
        if not workers:
            return ""
        kill([self._dice.choice(workers)])
        return "a server's worker killed" if servers.processes else "a worker killed"

    def _started(self, launch: Launch) -> subprocess.Popen[bytes]:
        plan = Path(self._job.folder, f"launch-{launch.number}.json")
        plan.write_text(json.dumps(asdict(launch)))
        words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={launch.ranks}"]
        words += ["--monitor-interval=0.1", chaos_training.__file__, str(plan)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with open(plan.with_suffix(".out"), "wb") as output:
            return subprocess.Popen(
                [sys.executable, *words], env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def _logs(self, launch: Launch) -> list[Path]:
        return [launch.log(rank) for rank in range(launch.ranks)]

    def _note_checkpoints(self, launch: Launch, before: Batches, steps: list[Any]) -> None:
        """Keeps the complete checkpoints of a launch, in order."""
        found = []
        for complete in Path(self._job.folder).glob(f"{launch.number}-*/complete"):
            told = json.loads(complete.read_text())
            kept = before + batches_of(steps[: told["steps"]])
            saved_at = told["at"]
            found.append(Checkpoint(complete.parent, launch.saved_as, told["epoch"], kept, saved_at))
        self._checkpoints += sorted(found, key=lambda checkpoint: checkpoint.saved_at)

    def _lose_a_state(self) -> bool:
        """Removes a rank's state from the last checkpoint, at random; drops checkpoints that are refused."""
        lost = False
        while self._checkpoints:
            last = self._checkpoints[-1]
            if last.saved_as == "dcp":
                break
            files = sorted(last.folder.glob("rank-*"))
            if not lost and len(files) > 1 and self._dice.random() < STATES_LOST:
                self._dice.choice(files).unlink()
                lost = True
            try:
                launch = Launch(self._job, 0, 0, [0], last.saved_as)
                launch.batches(launch.loader(0)).load_state_dict(merged(last.folder, last.saved_as))
                break
            except ValueError:
                # Streams have ended, and how far the lost ones were is unknown.
                self._tally.refused += 1
                self._checkpoints.pop()
        return lost


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; a rank that was killed may have left half a line."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class Servers:
    """The servers of a launch, if it has any."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self.processes: list[subprocess.Popen[bytes]] = []
        self._restarts: list[threading.Timer] = []

    def __enter__(self) -> Servers:
        job = self._launch.job
        if self._launch.servers:
            program = f"sys.path.append({str(Path(__file__).parent)!r})\nfrom chaos_training import Job\n"
            program = f"import sys\n{program}dataset = Job(**{asdict(job)!r}).dataset()\n"
            Path(job.folder, "served.py").write_text(program)
        self.processes = [self._started(url) for url in self._launch.servers]
        return self

    def __exit__(self, *exception: object) -> None:
        for restart in self._restarts:
            restart.cancel()
            restart.join()
        for process in self.processes:
            process.kill()
            process.wait()

    def kill_one(self, dice: random.Random) -> None:
        """Kills a server, and starts it again a little later."""
        number = dice.randrange(len(self.processes))
        self.processes[number].kill()
        self.processes[number].wait()
        self._restarts.append(threading.Timer(dice.uniform(0, 2), self._start_again, [number]))
        self._restarts[-1].start()

    def _start_again(self, number: int) -> None:
        if self.processes[number].poll() is not None:
            self.processes[number] = self._started(self._launch.servers[number])

    def _started(self, url: str) -> subprocess.Popen[bytes]:
        served = Path(self._launch.job.folder, "served.py")
        options = ["--bind", url, f"--workers={WORKERS_OF_SERVER}", "--client-timeout=3"]
        with open(served.with_suffix(".out"), "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "mpwds", "serve", f"{served}:dataset", *options],
                stdout=output,
                stderr=subprocess.STDOUT,
            )


def children_of(process: subprocess.Popen[bytes], recursive: bool = False) -> list[int]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(process.pid).children(recursive)]
    return []


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def batches_of(steps: Iterable[Any]) -> Batches:
    return [(line["epoch"], line["rows"]) for step in steps for line in step if line["rows"] is not None]


def pause_after(moment: float, times: list[float]) -> float:
    """How much longer than usual the longest step after a moment took."""
    steps = [(late, late - early) for early, late in itertools.pairwise(times)]
    usual = statistics.median([took for _, took in steps] or [0.0])
    return max([took - usual for late, took in steps if late > moment], default=0.0)


@contextlib.contextmanager
def as_rank(rank: int, ranks: int) -> Iterator[None]:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    try:
        yield
    finally:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]


def undisturbed(job: Job) -> tuple[Batches, list[int]]:
    """The batches of one rank, and how many of each epoch come in an order that ranks do not change."""
    with job.loader(0) as loader:
        whole = [(epoch, batch.tolist()) for epoch in range(EPOCHS) for batch in loader]
    if job.even is not None:
        return whole, [len(whole)] * EPOCHS
    lengths = []
    for rank in range(STREAMS):
        with as_rank(rank, STREAMS), job.loader(0) as loader:
            lengths.append([sum(1 for _ in loader) for _ in range(EPOCHS)])
    return whole, [STREAMS * min(of_epoch) for of_epoch in zip(*lengths, strict=True)]


def counted(batches: list[Any], columns: int = 3) -> collections.Counter[tuple[int, ...]]:
    return collections.Counter(tuple(row[:columns]) for rows in batches for row in rows)


def compare(job: Job, got: Batches, samples: int, tally: Tally) -> str:
    """Adds to the tally what a job lost, repeated and changed; returns that in words, or nothing.

    Which samples ``even=`` leaves out or repeats after a pool depends on the ranks. So such a job is compared
    with whole epochs.
    """
    evens_pool = job.even if job.pool else None
    whole, in_turn = undisturbed(replace(job, even=None) if evens_pool else job)
    of_dataset = collections.Counter((n, copy) for n in range(samples) if is_kept(n) for copy in copies_of(n))
    faults = []
    for epoch in range(EPOCHS):
        expected = [rows for of, rows in whole if of == epoch]
        delivered = [rows for of, rows in got if of == epoch]
        due, came = counted(expected), counted(delivered)
        lost, repeated = (due - came).total(), (came - due).total()
        if evens_pool == "drop" and lost < DROPPED * due.total():
            lost = 0
        elif evens_pool in ("pad", "wrap"):
            repeated = 0
        # An undisturbed epoch has each sample once, but for what even= leaves out or repeats.
        made = counted(expected, 2)
        lost += 0 if job.even == "drop" else (of_dataset - made).total()
        repeated += 0 if job.even in ("pad", "wrap") else (made - of_dataset).total()
        same = not job.in_order or job.pool > 0 or delivered[: in_turn[epoch]] == expected[: in_turn[epoch]]
        tally.samples += came.total()
        tally.lost += lost
        tally.repeated += repeated
        tally.out_of_order += not same
        if lost or repeated or not same:
            order = "in order" if same else "out of order"
            faults.append(f"epoch {epoch}: {lost} lost, {repeated} repeated, {order}")
    return "; ".join(faults)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    dice, tally, wrong = random.Random(arguments.seed), Tally(), False
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = chaos_training.write_shards(folder)
        while not tally.jobs or time.monotonic() < end:
            job_folder = folder / f"job-{tally.jobs}"
            job_folder.mkdir()
            even = dice.choice([None, "drop", "pad", "wrap"])
            in_order = even is not None or dice.random() < 0.7
            pool = dice.choice([0, POOL])
            job = Job(str(job_folder), dice.choice(list(DATASETS)), even, in_order, pool)
            began = time.monotonic()
            try:
                got = Run(job, dice, tally).delivered()
            except SystemExit:
                show_outputs(job_folder)
                raise
            tally.jobs += 1
            fault = compare(job, got, samples, tally)
            wrong = wrong or bool(fault)
            options = f"even={even}, in_order={in_order}, pool={pool}"
            took_s = time.monotonic() - began
            print(f"{took_s:5.0f} s  {job.kind}, {options}: {fault or 'as undisturbed'}", flush=True)
            shutil.rmtree(job_folder)
    print(tally)
    return 1 if wrong else 0


def show_outputs(folder: Path) -> None:
    for path in sorted(folder.glob("*.out"))[-2:]:
        print(f"{path.name}:\n{path.read_text()[-4000:]}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
