"""``mpwds demo``: trains a small network from tar shards, on its own data or the user's, or from servers."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

from typer import BadParameter, Option

from mpwds.cli.shards import expanded
from mpwds.viewing.wording import counted

_EXPECTED_ACCURACY = 0.95
_MUCH_WAITING = 0.2
_DEFAULT_SIZE = 64

_SERVERS = 2
_WORKERS = 2  # of each server
_HEARTBEAT_S = 2.0
_SERVED = """\
from mpwds.cli.demo.training import default_cache_dir, digits_task

dataset = digits_task(default_cache_dir().absolute()).train
"""


def demo(
    data: Annotated[
        list[str] | None,
        Option(metavar="PATTERN", help="Shards to train on: 'DIR/{000..009}.tar', ..."),
    ] = None,
    test: Annotated[
        list[str] | None, Option(metavar="PATTERN", help="Shards with the held-out samples.")
    ] = None,
    size: Annotated[
        int | None,
        Option(
            min=8, max=1024, metavar="PIXELS", help=f"Height and width of images, by default {_DEFAULT_SIZE}."
        ),
    ] = None,
    epochs: Annotated[int, Option(min=1, metavar="N")] = 12,
    workers: Annotated[int, Option(min=0, metavar="N", help="Worker processes.")] = 2,
    batch_size: Annotated[int, Option(min=1, metavar="N")] = 64,
    lr: Annotated[float, Option(min=0, metavar="RATE", help="Learning rate.")] = 3e-3,
    cache_dir: Annotated[
        Path | None,
        Option(metavar="DIR", help="Folder of the digits; by default in $XDG_CACHE_HOME or ~/.cache."),
    ] = None,
    remote: Annotated[
        bool, Option("--remote", help="Train from two servers, of which one is killed half way.")
    ] = False,
    cluster: Annotated[
        bool, Option("--cluster", help="Train from servers on two nodes of Ray, of which one is killed.")
    ] = False,
) -> int:
    """Train a small network from tar shards, on handwritten digits or your own images.

    Writes scikit-learn's 1,797 handwritten digits to 16 tar shards in a cache folder, then trains a
    small network from them through MultiLoader, and tests it on the digits of 4 shards that were held out.

    With --data it trains on your own shards: samples with an image (jpg, png, webp, ...) and a label, a whole
    number in cls. About one sample in ten is held out, unless --test says where the held-out ones are.
    """
    if math.isnan(lr):
        raise BadParameter("--lr: expected a number from 0, got nan")
    if not data and (test or size is not None):
        raise BadParameter("--test and --size are for your own shards: name these with --data")
    if data and cache_dir is not None:
        raise BadParameter("--cache-dir is for the digits, which --data replaces")
    if remote or cluster:
        if data or cache_dir is not None:
            option = "--cluster" if cluster else "--remote"
            raise BadParameter(f"{option} serves the digits in their usual folder")
        return _train_remotely(epochs, lr, _two_nodes if cluster else _two_servers)
    began_s = time.perf_counter()
    from mpwds.cli.demo import training
    from mpwds.cli.outputs import write_png
    from mpwds.viewing.contact_sheet import contact_sheet

    if data:
        test = test or []
        place = " ".join((*data, *test))
        options = {"size": size or _DEFAULT_SIZE, "batch_size": batch_size, "workers": workers}
        task = training.image_task(expanded(data), expanded(test), **options)
    else:
        directory = (cache_dir or training.default_cache_dir()).absolute()
        place = str(directory)
        written = "wrote" if training.ensure_digits(directory) else "found"
        print(f"{written} {training.SAMPLES:,} handwritten digits in {directory}", flush=True)
        task = training.digits_task(directory, batch_size)
    # One worker reads a shard, so more workers than shards would have nothing to do.
    workers = min(workers, task.shards)
    outcome = training.train(task, epochs=epochs, workers=workers, lr=lr)
    stats = outcome.stats
    picture = training.default_cache_dir().parent / "demo.png"
    labels = [task.names[number] for number in outcome.labels.tolist()]
    title = f"The first {len(labels)} of {task.train_samples:,} training images, as the loader delivered them"
    write_png(picture, contact_sheet((outcome.images, labels), title))
    print(f"""
  data       {place} ({counted(task.shards, "shard")})
  samples    {task.train_samples:,} to train on, {task.held_out_samples:,} held out, {len(task.names)} classes
  accuracy   {outcome.accuracy:.1%} on the held-out samples
  speed      {stats.samples_per_s:,.0f} samples/s with {counted(workers, "worker")}
  waiting    {stats.waiting_share:.0%} of the time, and {stats.first_batch_s:.1f} s before first batches
  picture    {picture}
  time       {time.perf_counter() - began_s:.1f} s in all
""")
    if not data:
        print("Next, your own image shards: mpwds demo --data 'DIR/{000..009}.tar'")
    elif stats.waiting_share > _MUCH_WAITING and workers < task.shards:
        more = min(task.shards, max(2, 2 * workers))
        print(f"Next, let more workers decode: the same command with --workers {more}")
    else:
        print(f"Next, train longer: the same command with --epochs {2 * epochs}")
    if not data and outcome.accuracy < _EXPECTED_ACCURACY:
        print(
            f"mpwds demo: {outcome.accuracy:.1%} is below the {_EXPECTED_ACCURACY:.0%} that the demo reaches "
            "with its default settings",
            file=sys.stderr,
        )
        return 1
    return 0


Feed = tuple[Any, Callable[[], str]]
"""A loader of two servers, and a function that kills one and says which."""


def _train_remotely(
    epochs: int, lr: float, feed: Callable[[Path], contextlib.AbstractContextManager[Feed]]
) -> int:
    """Trains, kills a server, and compares what arrived with what undisturbed local workers deliver."""
    import mpwds
    from mpwds.cli.demo import training

    training.ensure_digits(directory := training.default_cache_dir().absolute())
    task = training.digits_task(directory)
    with contextlib.ExitStack() as ends, warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", flush=True)
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        (folder / "served.py").write_text(_SERVED)
        victim = _KillingLoader(*ends.enter_context(feed(folder)), epochs)
        outcome = training.train(task, epochs=epochs, workers=_SERVERS * _WORKERS, lr=lr, loader=victim)
    with mpwds.MultiLoader(task.train, workers=_SERVERS * _WORKERS) as local:
        expected = [_digest(batch) for _ in range(epochs) for batch in local]
    same = victim.digests == expected
    workers = f"{_SERVERS * _WORKERS} workers that nothing happens to"
    print(f"""
  servers    {_SERVERS} of {_WORKERS} workers each; one was killed after {victim.killed_at} batches
  batches    {len(victim.digests)} arrived; {len(expected)} come from {workers}
  compared   {"all are the same, bit for bit, in the same order" if same else "THEY DIFFER"}
  accuracy   {outcome.accuracy:.1%} on the held-out samples
""")
    return 0 if same and victim.killed_at else 1


def _digest(batch: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in batch:
        digest.update(tensor.numpy().tobytes())
    return digest.digest()


class _KillingLoader:
    """A loader that calls ``kill`` half way, and takes a digest of each batch."""

    def __init__(self, loader: Any, kill: Callable[[], str], epochs: int) -> None:
        self._loader = loader
        self._kill = kill
        self._half = epochs // 2
        self._epoch = 0
        self.killed_at = 0
        self.digests: list[bytes] = []

    def __iter__(self) -> Iterator[Any]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        for number, batch in enumerate(self._loader):
            if epoch == self._half and number == 1:
                killed = self._kill()
                self.killed_at = len(self.digests)
                print(f"killed {killed} in the middle of epoch {epoch + 1}", flush=True)
            self.digests.append(_digest(batch))
            yield batch

    def stats(self, since: Any = "epoch") -> Any:
        return self._loader.stats(since)


@contextlib.contextmanager
def _two_servers(folder: Path) -> Iterator[Feed]:
    import mpwds

    with contextlib.ExitStack() as ends:
        urls = [f"ipc://{folder}/server{number}" for number in range(_SERVERS)]
        servers = [ends.enter_context(_server(folder, url)) for url in urls]
        print(f"started {_SERVERS} servers of {_WORKERS} workers: {' '.join(urls)}", flush=True)
        options: dict[str, Any] = {"on_server_loss": "move", "heartbeat_timeout": _HEARTBEAT_S}
        loader = ends.enter_context(mpwds.RemoteLoader(urls, **options))

        def kill() -> str:
            servers[0].kill()
            return f"a server (pid {servers[0].pid})"

        yield loader, kill


@contextlib.contextmanager
def _two_nodes(folder: Path) -> Iterator[Feed]:
    """Two nodes of Ray on this machine, with a server each."""
    import mpwds
    from mpwds.imports import require

    ray = require("ray", "--cluster needs Ray: pip install 'mpwds[ray]'")
    from ray.cluster_utils import Cluster

    with contextlib.ExitStack() as ends:
        ends.enter_context(contextlib.redirect_stdout(_WithoutRay(sys.stdout)))
        memory: dict[str, Any] = {"object_store_memory": 80 << 20}
        head = {"num_cpus": 0, "include_dashboard": False, **memory}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ends.callback(_silently, cluster.shutdown)
        nodes = [cluster.add_node(num_cpus=_WORKERS, **memory) for _ in range(_SERVERS)]
        ray.init(cluster.address, log_to_driver=False, logging_level="error")
        ends.callback(_silently, ray.shutdown)
        source = f"{folder}/served.py:dataset"
        fleet = ends.enter_context(
            mpwds.cluster.ServerFleet(source, servers=_SERVERS, workers_per_server=_WORKERS)
        )
        while len(urls := fleet()) < _SERVERS:
            time.sleep(0.1)
        print(f"started {_SERVERS} nodes of Ray with a server each: {' '.join(urls)}", flush=True)
        options: dict[str, Any] = {"min_servers": _SERVERS, "heartbeat_timeout": _HEARTBEAT_S}
        loader = ends.enter_context(mpwds.RemoteLoader(fleet, **options))

        def kill() -> str:
            cluster.remove_node(nodes[0], allow_graceful=False)
            return "a node"

        yield loader, kill


def _silently(end: Callable[[], None]) -> None:
    """Ends a part of Ray without what it prints of a node that is lost."""
    with contextlib.redirect_stdout(io.StringIO()):
        end()


class _WithoutRay:
    """A text stream without what Ray prints about nodes that are lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread().name.startswith("ray_") else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _server(folder: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "mpwds", "serve", f"{folder}/served.py:dataset"]
    words = [*command, "--bind", url, "--workers", str(_WORKERS)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:  # which writes but a few lines
        assert process.stdout is not None
        try:
            process.stdout.readline()  # it serves
            yield process
        finally:
            process.terminate()
