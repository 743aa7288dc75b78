"""``mpwds demo --remote``: trains from two servers, of which one is killed half way."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import mpwds
from mpwds.cli.demo.training import default_cache_dir, digits_task, ensure_digits, train

_SERVERS = 2
_WORKERS = 2  # of each server
_HEARTBEAT_S = 2.0

ensure_digits(_directory := default_cache_dir().absolute())
task = digits_task(_directory)
dataset = task.train  # the servers' ``mpwds serve mpwds.cli.demo.remote:dataset``


def run(epochs: int, lr: float) -> int:
    """Trains, kills a server, and compares what arrived with what undisturbed local workers deliver."""
    with contextlib.ExitStack() as ends, warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", flush=True)
        folder = ends.enter_context(tempfile.TemporaryDirectory())
        urls = [f"ipc://{folder}/server{number}" for number in range(_SERVERS)]
        servers = [ends.enter_context(_server(url)) for url in urls]
        print(f"started {_SERVERS} servers of {_WORKERS} workers: {' '.join(urls)}", flush=True)
        loader = ends.enter_context(
            mpwds.RemoteLoader(urls, on_server_loss="move", heartbeat_timeout=_HEARTBEAT_S)
        )
        victim = _KillingLoader(loader, servers[0], epochs)
        outcome = train(task, epochs=epochs, workers=_SERVERS * _WORKERS, lr=lr, loader=victim)
    with mpwds.MultiLoader(task.train, workers=_SERVERS * _WORKERS) as local:
        expected = [digest(batch) for _ in range(epochs) for batch in local]
    same = victim.digests == expected
    workers = f"{_SERVERS * _WORKERS} workers that nothing happens to"
    print(
        f"""
  servers    {_SERVERS} of {_WORKERS} workers each; one was killed after {victim.killed_at} batches
  batches    {len(victim.digests)} arrived; {len(expected)} come from {workers}
  compared   {"all are the same, bit for bit, in the same order" if same else "THEY DIFFER"}
  accuracy   {outcome.accuracy:.1%} on the held-out samples
"""
    )
    return 0 if same and victim.killed_at else 1


def digest(batch: Any) -> bytes:
    """A digest of a batch's bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in batch:
        digest.update(tensor.numpy().tobytes())
    return digest.digest()


class _KillingLoader:
    """A loader that kills a server half way, and takes a digest of each batch."""

    def __init__(self, loader: Any, server: subprocess.Popen[bytes], epochs: int) -> None:
        self._loader = loader
        self._server = server
        self._half = epochs // 2
        self._epoch = 0
        self.killed_at = 0
        self.digests: list[bytes] = []

    def __iter__(self) -> Iterator[Any]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        for number, batch in enumerate(self._loader):
            if epoch == self._half and number == 1:
                self._server.kill()
                self.killed_at = len(self.digests)
                print(
                    f"killed a server (pid {self._server.pid}) in the middle of epoch {epoch + 1}", flush=True
                )
            self.digests.append(digest(batch))
            yield batch

    def stats(self, since: Any = "epoch") -> Any:
        return self._loader.stats(since)


@contextlib.contextmanager
def _server(url: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "mpwds", "serve", "mpwds.cli.demo.remote:dataset"]
    words = [*command, "--bind", url, "--workers", str(_WORKERS)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:  # which writes but a few lines
        assert process.stdout is not None
        try:
            process.stdout.readline()  # it serves
            yield process
        finally:
            process.terminate()
