"""Where the writers of MDS datasets put their files."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from mpwds.storage.caches.locks import lock, release
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.resuming import Retries, retrying
from mpwds.storage.streams.urls import is_local, local_path, without_credentials
from mpwds.storage.writing.destinations import PendingFile, open_destination, write_whole

_SHARD = r"shard\.\d{5,}\.mds(\.(br|bz2|gz|snappy|zstd))?"
_DATASET = re.compile(rf"index\.json|{_SHARD}|\.(index\.json|{_SHARD})\.[0-9a-f]{{8}}\.partial")
_CLAIM = ".writer.lock"  # in the folder, while its writer lives
_MOST_THREADS = 4


class Output:
    """The files of one dataset: shards in any order, then, once all of them are complete, the index.

    Shards are made and stored in threads. A file appears under its name when it is complete. The first error
    of a thread is raised by the next ``add``, or by ``finish``; then there will be no index.

    Args:
        out: The dataset's folder or URL, or both, of which the folder comes first.
        keep_local: Whether a dataset that goes to a URL stays in the folder, too.
        exist_ok: Whether to remove a dataset that is in the folder. Other files stay there.
        index_name: The index's name.
        own: Matches the names of the writer's files; the folder may have others. ``None`` if it may not.
        threads: Number of threads; each holds a shard in memory.
        retries: Further attempts, when sending a file fails.
        compresses: Whether shards are compressed, so that more than one thread is worth its memory.

    Raises:
        FileExistsError: The folder is not empty, another writer writes to it, or the URL has an index.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | tuple[str, str],
        keep_local: bool,
        exist_ok: bool,
        index_name: str,
        own: re.Pattern[str] | None = None,
        threads: int | None = None,
        retries: int = 2,
        compresses: bool = False,
    ) -> None:
        self.local, self.remote = _places(out, keep_local)
        self._keep_local = keep_local or self.remote is None
        self._retries = retries
        self._refuses: str | None = None  # an index that must not be there
        claims: dict[str, int] = {}
        self._release = weakref.finalize(self, _release, claims, os.getpid())
        try:
            if self.local is not None and self._keep_local:
                _prepare(self.local, exist_ok, own, claims)
            if self.remote is not None and is_local(self.remote):
                _prepare(self.remote, exist_ok, own, claims)
            elif self.remote is not None and not exist_ok:
                self._refuses = f"{self.remote}/{index_name}"
                refuse_existing(self._refuses)
        except BaseException:
            self._release()
            raise
        self._index_name = index_name
        if not threads:
            is_slow = compresses or self.remote is not None
            threads = min(_MOST_THREADS, os.cpu_count() or 1) if is_slow else 1
        self._threads = ThreadPoolExecutor(threads, "storing shards")
        self._most = threads
        self._running: list[Future[None]] = []
        self._finished = False

    def check_open(self) -> None:
        """Raises ``ValueError`` if the dataset is finished or given up."""
        if self._finished:
            raise ValueError("the dataset is finished: no more samples can be written to it")

    def add(self, store: Callable[[], None]) -> None:
        """Runs a function that makes a shard and calls ``store``. Waits while there are many already."""
        while len(self._running) >= self._most or (self._running and self._running[0].done()):
            self._running[0].result()
            del self._running[0]
        self._running.append(self._threads.submit(store))

    def store(self, name: str, data: bytes | bytearray) -> None:
        """Writes a file, and sends it to the URL."""
        if self.local is not None and self._keep_local:
            write_whole(PendingFile(os.path.join(self.local, name), replace=False), data)
        if self.remote is not None:
            target, tries = f"{self.remote}/{name}", Retries(self._retries + 1)
            retrying(lambda: write_whole(open_destination(target, replace=False, retries=tries), data), tries)

    def finish(self, make_index: Callable[[], bytes | bytearray]) -> None:
        """Waits until all shards are stored, then stores the index. Does nothing the second time.

        Raises:
            FileExistsError: Another writer has finished a dataset at the URL meanwhile.
        """
        if self._finished:
            return
        try:
            for each in self._running:
                each.result()
            if self._refuses is not None:  # there are no locks at a URL
                refuse_existing(self._refuses)
            self.store(self._index_name, make_index())
        finally:
            self.discard()

    def discard(self) -> None:
        """Ends without an index. Shards that are complete stay."""
        if not self._finished:
            self._finished = True
            self._running.clear()
            self._threads.shutdown(wait=True, cancel_futures=True)
            self._release()

    def __del__(self) -> None:
        if not getattr(self, "_finished", True) and not sys.is_finalizing():
            self._threads.shutdown(wait=False, cancel_futures=True)
            warnings.warn(
                f"the MDS dataset {self.local or self.remote} has no index: its writer was dropped before it "
                "was finished; use `with`, or call finish()",
                RuntimeWarning,
                stacklevel=2,
            )


def _places(out: str | os.PathLike[str] | tuple[str, str], keep_local: bool) -> tuple[str | None, str | None]:
    """The folder and the URL."""
    if isinstance(out, (tuple, list)):
        if len(out) != 2:
            raise ValueError(f"out must be a folder, a URL, or a folder and a URL, got {out!r}")
        local: str | None = os.fspath(out[0])
        remote = os.fspath(out[1])
    elif is_local(out):
        return os.path.abspath(os.path.expanduser(local_path(out))), None
    else:
        local, remote = (tempfile.mkdtemp() if keep_local else None), os.fspath(out)
    if is_local(remote):
        remote = os.path.abspath(os.path.expanduser(local_path(remote)))
    return None if local is None else os.path.abspath(os.path.expanduser(local)), remote.rstrip("/")


def _prepare(folder: str, exist_ok: bool, own: re.Pattern[str] | None, claims: dict[str, int]) -> None:
    """Makes a folder that this writer alone writes to, without a dataset in it."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, _CLAIM)
    try:
        claim = lock(path, create=True)
    except OSError:  # a file system without locks
        pass
    else:
        if claim is None:
            raise FileExistsError(
                f"another writer writes to {folder}: give each one a folder of its own, and merge the indexes"
            )
        claims[path] = claim
    names = sorted(name for name in os.listdir(folder) if own is None or own.fullmatch(name))
    names = [name for name in names if name != _CLAIM]
    if names and not exist_ok:
        raise FileExistsError(
            f"{folder} holds files already ({names[0]}), and nothing there is overwritten: choose another "
            "folder, or remove the dataset in it: MDSWriter(exist_ok=True), mpwds convert --force"
        )
    for name in filter(_DATASET.fullmatch, names):  # the index first
        os.unlink(os.path.join(folder, name))


def _release(claims: dict[str, int], pid: int) -> None:
    if os.getpid() == pid:  # a fork has closed them
        for path, claim in claims.items():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            release(claim)


def refuse_existing(url: str) -> None:
    """Raises ``FileExistsError`` if there is something at ``url``, and ``StreamError`` if nobody can say."""
    try:
        with gopen(url) as stream:
            stream.read(1)
    except FileNotFoundError:
        return
    raise FileExistsError(
        f"{without_credentials(url)} exists, and no dataset is overwritten: choose another place, or pass "
        "exist_ok=True"
    )
