"""Programs of users, run for what they do and what they leave."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path
from typing import NamedTuple

from tests.loader.faults import processes

PREAMBLE = """
    import itertools, os, signal, subprocess, sys, threading, time
    import numpy as np
    import mpwds
    from inside import nothing_left

    numbers = [np.full(20_000, number) for number in range(12)]

    def loader(dataset=numbers, workers=2):
        if sys.argv[1] == "DataLoader":
            return mpwds.DataLoader(dataset, None, num_workers=workers, collate_fn=lambda array: array)
        return mpwds.MultiLoader(dataset, workers=workers, start_method=sys.argv[1], output="numpy")

    def endless():
        while True:
            yield np.zeros(20_000)

    def run(loading):
        received = [int(array[-1]) for array in loading]
        assert received == list(range(12)), received
        return loading

"""


def with_loader(text):
    """A program with ``loader()``, of the kind that its first argument says, and ``run(loader)``."""
    return PREAMBLE + text


class Outcome(NamedTuple):
    """How a program ended: its exit status (``-n``: signal ``n``), what it printed, what it complained of."""

    status: int
    output: str
    errors: str


class Program:
    """A program that runs in folders of its own, where it must leave nothing, as must its processes.

    It may import ``inside``.

    Args:
        text: The program.
        folder: Gets the program and its folders: ``work``, the working directory, ``home`` and ``temporary``.
        arguments: Its arguments.
        name: Its file's name.
        within: Shell commands before it, in the shell that it replaces: ``ulimit -n 256``.
        wrapped: A command that runs the shell: ``["unshare", "-m"]``.
        environment: Variables to set, or to remove if ``None``.
    """

    def __init__(
        self, text, folder, arguments=(), *, name="train.py", within=":", wrapped=(), environment=None
    ):
        self.token = uuid.uuid4().hex
        self.folder = folder
        for part in ("work", "home", "temporary"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        path = folder / name
        path.write_text(textwrap.dedent(text))
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(Path(__file__).parent)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "temporary"),
            processes.TOKEN: self.token,
            **(environment or {}),
        }
        command = f'cd "{folder}/work"; {within}; exec "$0" "$@"'
        self.process = subprocess.Popen(
            [*wrapped, "bash", "-c", command, sys.executable, str(path), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={key: value for key, value in variables.items() if value is not None},
        )

    def line(self):
        """The next line that it prints."""
        return self.process.stdout.readline().strip()

    def descendants(self):
        """Pids of all processes that it started, and those they started."""
        return [pid for pid in processes.with_token(self.token) if pid != self.process.pid]

    def signal(self, number):
        self.process.send_signal(number)

    def interrupt(self):
        """Ctrl-C: SIGINT to the whole foreground group, workers included."""
        os.killpg(self.process.pid, signal.SIGINT)

    def finish(self, leaves=()):
        """Waits for its end and looks for what it left: nothing but the files named in ``leaves``."""
        output, errors = self.process.communicate(timeout=processes.PATIENCE_S)
        processes.wait_until(lambda: not processes.with_token(self.token), "the program's processes to end")
        processes.wait_until(lambda: not processes.shared_memory_left(), "its shared memory to go")
        found = {path.name for part in ("work", "home", "temporary") for path in self._files(part)}
        assert found == set(leaves)
        return Outcome(self.process.returncode, output, errors)

    def end(self):
        """Kills what is left of it, for tests that have failed."""
        self.process.kill()  # unless it has been waited for: its number may be another's by now
        for pid in processes.with_token(self.token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _files(self, part):
        folder = self.folder / part
        return folder.iterdir() if folder.exists() else ()
