"""Shards of a directory into which another program writes: each is claimed, read, and then dealt with."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, NoReturn

from braceexpand import braceexpand

from mpwds.pipeline.beginnings import Beginning
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import plain
from mpwds.pipeline.place import Place
from mpwds.pipeline.sources.draws import Draws, worker_draws
from mpwds.pipeline.stream import Address, Stream
from mpwds.storage.streams.urls import is_local, local_path, without_credentials
from mpwds.warn import warn

_CLAIMED = re.compile(r"(.+)\._(\d+)_")
_TAKEN = re.compile(r".+\._(\d+|done)_")
_WITHOUT_POLL_S = 0.05

SHARDS = "*.{tar,tgz,tar.gz,tar.bz2,tar.xz,tar.zst}"
"""What shards in a directory are called, unless a pattern says so."""


class DirectoryShardList(Beginning):
    """Beginning of a pipeline: the shards that lie in a directory or appear there, as ``{"url": ...}``.

    A shard is claimed by renaming it (``x.tar`` becomes ``x.tar._4711_``, 4711 being the process), so of many
    workers and programs that read the directory each gets others, and nothing is divided among nodes and
    workers. When the next shard is asked for, the last one has been read and is dealt with by ``mode``.
    Shards whose claimant has died are dealt with by whoever comes next; so all that read a directory must run
    on one machine. What is read cannot be read again: such an epoch cannot be resumed. A loader delivers
    what its workers make of them as it comes, whatever its ``in_order``: a worker without a shard may wait
    for long.

    A shard whose reading is left off, because the iterator is dropped or the process ends, is given back
    under its own name, whatever the mode.

    Give shards their final name only when they are complete (``mpwds.ShardWriter`` does).

    Args:
        path: The directory, ending in ``/``.
        pattern: Names to take, with ``*``, ``?`` and braces.
        poll: Seconds between looks for shards when there are none; ``None`` ends the epoch then.
        timeout: Seconds without a new shard after which the epoch ends.
        mode: What becomes of a shard that has been read: ``"resample"`` gives it back, so that it is read
            again, ``"unlink"`` removes it, ``"keep"`` renames it to ``x.tar._done_``. ``None`` means
            ``"resample"``.
        select: Which to take: ``"random"`` or ``"oldest"``.
        fate: A function to call with the path of a shard that has been read, in place of ``mode``.

    Raises:
        ValueError: ``path`` does not end in a slash or is no directory, or an option is unknown.

    Source:
        ``webdataset.shardlists.DirectoryShardList``, whose default pattern matches nothing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     open(directory + "/x.tar", "w").close()
        ...     shards = DirectoryShardList(directory + "/", mode="unlink", poll=None)
        ...     urls = [shard["url"] for shard in shards]
        >>> len(urls)
        1
    """

    in_any_order: ClassVar[bool] = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        pattern: str = SHARDS,
        poll: float | None = 1,
        timeout: float = 1e12,
        mode: Literal["resample", "unlink", "keep"] | None = "resample",
        select: Literal["random", "oldest"] = "random",
        fate: Callable[[str], Any] | None = None,
    ) -> None:
        path = os.fspath(path)
        if not path.endswith("/") or not os.path.isdir(path):
            raise ValueError(
                f"DirectoryShardList: {path!r} must be a directory, and written with a slash behind it"
            )
        if mode not in ("resample", "unlink", "keep", None):
            raise ValueError(f"DirectoryShardList: mode must be 'resample', 'unlink' or 'keep', got {mode!r}")
        if select not in ("random", "oldest"):
            raise ValueError(f"DirectoryShardList: select must be 'random' or 'oldest', got {select!r}")
        if fate is not None and not callable(fate):
            raise ValueError(f"DirectoryShardList: fate is a function of a shard's path, got {fate!r}")
        self.path = path
        self.pattern = pattern
        self.poll = poll
        self.timeout = timeout
        self.mode = mode or "resample"
        self.select = select
        self.fate = fate

    def __str__(self) -> str:
        return f"DirectoryShardList({self.path!r}, mode={self.mode!r})"

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return _Claimed(self, worker_draws("directory", context), gives_back=True)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The shards by themselves. Whoever breaks off keeps the last one, which has been handed out."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        return plain(_Claimed(self, worker_draws("directory", Context.current(epoch)), gives_back=False))

    def recycle(self, activename: str) -> None:
        """Deals with a claimed shard that has been read.

        Args:
            activename: Its path, as claimed.
        """
        match = _CLAIMED.fullmatch(activename)
        name = match[1] if match else activename
        try:
            if self.fate is not None:
                self.fate(activename)
            elif self.mode == "unlink":
                os.unlink(activename)
            else:
                os.rename(activename, name if self.mode == "resample" else name + "._done_")
        except FileNotFoundError:
            pass  # whoever else saw that its claimant died was faster, or the user took it away

    def cleanup_files_without_processes(self) -> None:
        """Deals with the shards whose claimant has died."""
        for name in glob.glob(glob.escape(self.path) + "*._*_"):
            match = _CLAIMED.fullmatch(name)
            if match and not _is_running(int(match[2])):
                self.recycle(name)

    def candidates(self) -> list[str]:
        """The shards that nobody has claimed, by name."""
        start = glob.escape(self.path)
        names = {name for pattern in braceexpand(self.pattern) for name in glob.glob(start + pattern)}
        return sorted(name for name in names if not name.endswith("_") or not _TAKEN.fullmatch(name))


class _Claimed:
    def __init__(self, shards: DirectoryShardList, draws: Draws, gives_back: bool) -> None:
        self._shards = shards
        self._draws = draws
        self._drawn = 0
        self._claim = _Claim()
        if gives_back:
            weakref.finalize(self, self._claim.give_back)  # at the end of the process too

    def __iter__(self) -> _Claimed:
        return self

    def __next__(self) -> tuple[Address, dict[str, Any]]:
        shards = self._shards
        done = self._claim.drop()
        if done is not None:
            shards.recycle(done)
        shards.cleanup_files_without_processes()
        last = time.monotonic()
        while True:
            for candidate in self._in_order(shards.candidates()):
                claimed = f"{candidate}._{os.getpid()}_"
                try:
                    os.rename(candidate, claimed)
                except FileNotFoundError:  # another one was faster
                    continue
                self._claim.take(claimed)
                return claimed, {"url": claimed}
            if shards.poll is None or time.monotonic() - last >= shards.timeout:
                raise StopIteration
            time.sleep(shards.poll or _WITHOUT_POLL_S)
            shards.cleanup_files_without_processes()

    def _in_order(self, candidates: list[str]) -> list[str]:
        """The candidates, the one to take first."""
        if self._shards.select == "oldest":
            return sorted(candidates, key=_modified)
        start = self._draws.index(self._drawn, len(candidates)) if candidates else 0
        self._drawn += 1
        return candidates[start:] + candidates[:start]

    def fetch(self, address: Any) -> dict[str, Any]:
        return {"url": address}

    def describe(self, address: Any, element: object = None) -> Place:
        return Place(f"shard {address}", address)

    def state_dict(self) -> NoReturn:
        raise self._no_state()

    def load_state_dict(self, state: dict[str, Any]) -> NoReturn:
        raise self._no_state()

    def _no_state(self) -> LookupError:
        return LookupError(
            f"{self._shards} has no state: the shards it gave are gone, so the epoch cannot be resumed"
        )


class _Claim:
    """The shard that a stream has claimed and not read to its end.

    Outlives the stream. A finalizer calls ``give_back`` in any thread: it only renames.
    """

    def __init__(self) -> None:
        self._path: str | None = None
        self._pid = 0

    def take(self, path: str) -> None:
        self._path, self._pid = path, os.getpid()

    def drop(self) -> str | None:
        """The claimed shard, which from now on is the caller's; ``None`` in a fork of its claimant."""
        path, self._path = self._path, None
        return path if self._pid == os.getpid() else None

    def give_back(self) -> None:
        path = self.drop()
        match = _CLAIMED.fullmatch(path or "")
        if path is not None and match is not None:
            with contextlib.suppress(FileNotFoundError):  # the user took it away
                os.rename(path, match[1])


def shards_in(path: str | os.PathLike[str]) -> list[str]:
    """The shards that lie in a directory, by name: tar archives, compressed or not.

    Args:
        path: The directory; a path or a ``file:`` URL.

    Raises:
        ValueError: It is no directory on this machine, or there is no shard in it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     for name in "b.tar", "a.tar.zst", "c.tar.partial":
        ...         open(f"{directory}/{name}", "w").close()
        ...     [os.path.basename(shard) for shard in shards_in(directory)]
        ['a.tar.zst', 'b.tar']
    """
    path = os.fspath(path)
    directory = local_path(path) if is_local(path) else ""
    if not os.path.isdir(directory):
        raise ValueError(
            f"{without_credentials(path)!r} is no directory on this machine: a URL that ends in a slash "
            "stands for the shards in a directory; name shards that are elsewhere one by one, or by braces"
        )
    start = os.path.join(glob.escape(directory), "")
    found = {name for pattern in braceexpand(SHARDS) for name in glob.glob(start + pattern)}
    shards = sorted(filter(os.path.isfile, found))
    claimed = sorted(filter(_CLAIMED.fullmatch, glob.glob(start + "*._*_")))
    if claimed:
        warn(
            f"{len(claimed)} shards in {directory} are claimed by a DirectoryShardList and not read here, "
            f"{os.path.basename(claimed[0])} for one; if no such program runs, rename them",
            UserWarning,
        )
    if not shards:
        raise ValueError(f"no shards in {directory}: no file there has a name like {SHARDS}")
    return shards


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return float("inf")


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs, as another user
        pass
    return True
