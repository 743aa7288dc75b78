"""A trainer in a process of its own."""

import os
import subprocess
import sys

from tests.feed.serving import ROOT

TRAINER = """
import sys
import mpwds
from tests.feed.serving import bits

with mpwds.RemoteLoader(sys.argv[1], output="numpy", **eval(sys.argv[2])) as loader:
    for epoch in range(int(sys.argv[3])):
        for batch in loader:
            print(bits(batch), flush=True)
            del batch
            sys.stdin.readline()
"""


class Trainer:
    """A trainer in a process of its own, which waits after each batch until it is told to go on."""

    def __init__(self, url, epochs=1, environment=None, within=(), **options):
        options = {"heartbeat_timeout": 60.0, **options}
        self.process = subprocess.Popen(
            [*within, sys.executable, "-c", TRAINER, url, repr(options), str(epochs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )

    def batch(self):
        return self.process.stdout.readline().strip()

    def go_on(self, times=1):
        self.process.stdin.write("\n" * times)
        self.process.stdin.flush()

    def rest(self):
        """Lets it run to its end; the batches that it still gets."""
        self.go_on(10_000)
        return self.process.stdout.read().split()

    def signal(self, number):
        self.process.send_signal(number)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stdin.close()
