"""Shards of a directory into which another program writes: claimed, read, then removed or renamed.

A reader claims a shard in three steps: it locks the file (``flock``), checks that the file still has its
name, and renames it. It holds the lock until it has removed the file or renamed it again. The kernel releases
the lock when the process ends, so a claimed shard that can be locked has lost its reader.

A local file system has one kernel, whose locks tell of every claim. On a network file system, a lock may be
known only to the machine that holds it, so a claim's name identifies kernel and file system (``_domain``).
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import os
import re
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NoReturn

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import check_choice
from mpwds.pipeline.iterable_sources import IterableSource, iter_elements
from mpwds.pipeline.randomness import Draws, worker_draws
from mpwds.pipeline.stream import Address, BaseStream, Description, Stream
from mpwds.storage.caches.locks import lock, release
from mpwds.storage.streams.patterns import Names
from mpwds.storage.streams.urls import is_local, local_path, without_credentials
from mpwds.storage.writing.destinations import rename_to_free
from mpwds.suggestions import shown
from mpwds.warn import warn

_CLAIMED = re.compile(r"(?P<name>.+)\._\d+(-(?P<domain>[0-9a-f]{16})-(?P<time_ns>\d+))?_")
_NO_LOCKS = "0" * 16
_LOCAL_SYSTEMS = frozenset(("ext2", "ext3", "ext4", "xfs", "f2fs", "zfs", "tmpfs", "overlay"))
_WITHOUT_POLL_S = 0.05

SHARDS = "*.{tar,tgz,tar.gz,tar.bz2,tar.xz,tar.zst}"
"""Names of shards in a directory, by default."""


@dataclass(eq=False, repr=False)
class DirectoryShardList(IterableSource):
    """Source of a pipeline: the shards in a directory, also those that appear later, as ``{"url": ...}``.

    Readers share the shards: each claims the next one by renaming it (``x.tar`` becomes ``x.tar._4711_``,
    where 4711 is the process), so nothing is divided among nodes and workers. A shard counts as read when
    the next one is requested; ``mode`` then decides what happens to it. A shard that is not read to its end
    gets its name back in every mode: at once when the iterator is dropped or the process exits, and at the
    next reader's scan when the process was killed. If a reader is killed between the last sample of a shard
    and the next shard, the shard is read twice.

    Readers may run in several containers on one machine, and readers on several machines may share a network
    directory. There, a reader cannot see whether a process on another machine still runs, or claimed its
    shard before this machine was restarted. It leaves such claims alone: pass ``claim_timeout``, or rename
    the files, to read the shards again. On a file system without locks this holds for every claim.

    An epoch cannot be resumed, because its shards are gone. A loader delivers batches as they come, with any
    ``in_order``. Give shards their final name only when they are complete (``mpwds.ShardWriter`` does).

    Args:
        path: The directory, ending in ``/``.
        pattern: Names to take, with ``*``, ``?`` and braces.
        poll: Seconds between scans while there are no shards; ``None`` ends the epoch instead.
        timeout: Seconds without a new shard after which the epoch ends.
        mode: What happens to a shard that has been read: ``"resample"`` gives it its name back, so that it
            is read again, ``"unlink"`` removes it, ``"keep"`` renames it to ``x.tar._done_``. ``None`` means
            ``"resample"``. If another shard has the name by then, it becomes ``x-1.tar``, and so on.
        select: Which shard to take: ``"random"`` or ``"oldest"``.
        fate: A function to call with the path of a shard that has been read, instead of ``mode``.
        claim_timeout: Seconds after which a claim of another machine (see above) counts as abandoned: more
            than any reader needs for a shard. ``None``: never.

    Raises:
        ValueError: ``path`` does not end in a slash or is not a directory, or an option is unknown.

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

    path: str | os.PathLike[str]
    pattern: str = SHARDS
    poll: float | None = 1
    timeout: float = 1e12
    mode: Literal["resample", "unlink", "keep"] | None = "resample"
    select: Literal["random", "oldest"] = "random"
    fate: Callable[[str], Any] | None = None
    claim_timeout: float | None = None

    in_any_order = True

    def __post_init__(self) -> None:
        self.path = path = os.fspath(self.path)
        if not path.endswith("/") or not os.path.isdir(path):
            raise ValueError(f"DirectoryShardList: {path!r} must be a directory, and end with a slash")
        check_choice("DirectoryShardList", "mode", self.mode, "resample", "unlink", "keep", None)
        check_choice("DirectoryShardList", "select", self.select, "random", "oldest")
        if self.fate is not None and not callable(self.fate):
            raise ValueError(
                f"DirectoryShardList: fate is a function of a shard's path, got {shown(self.fate)}"
            )
        self.mode = self.mode or "resample"

    def __str__(self) -> str:
        return f"DirectoryShardList({self.path!r}, mode={self.mode!r})"

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        stream = _Claimed(self, worker_draws("directory", context))
        weakref.finalize(stream, _give_back, stream.claims)  # at the end of the process too
        return stream

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The shards alone. After a ``break`` the last one stays claimed until the process ends."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        return iter_elements(_Claimed(self, worker_draws("directory", Context.current(epoch))))

    def recycle(self, activename: str) -> None:
        """Removes or renames a claimed shard that has been read, as ``mode`` or ``fate`` says."""
        if self.fate is not None:
            self.fate(activename)
        elif self.mode == "unlink":
            os.unlink(activename)
        else:
            _rename(activename, _unclaimed(activename) + ("._done_" if self.mode == "keep" else ""))

    def cleanup_files_without_processes(self) -> None:
        """Gives shards whose reader has died their names back."""
        for path in glob.glob(glob.escape(os.fspath(self.path)) + "*._*_"):
            match = _CLAIMED.fullmatch(path)
            if match is None:
                continue
            with contextlib.suppress(FileNotFoundError), contextlib.closing(_Lock(path)) as found:
                if found.tells_all or match["domain"] == found.domain != _NO_LOCKS:
                    is_abandoned = found.is_held
                else:
                    age_s = time.time() - int(match["time_ns"] or time.time_ns()) / 1e9
                    is_abandoned = self.claim_timeout is not None and age_s > self.claim_timeout
                if is_abandoned:
                    _rename(path, match["name"])

    def candidates(self) -> list[str]:
        """The shards that nobody has claimed, sorted by name."""
        names = _files(self.path, self.pattern)
        return [name for name in names if not name.endswith("._done_") and not _CLAIMED.fullmatch(name)]


class _Claimed(BaseStream[Any]):
    def __init__(self, shards: DirectoryShardList, draws: Draws) -> None:
        self._shards = shards
        self._draws = draws
        self._drawn = 0
        self.claims: list[_Lock] = []  # of the shard that is being read

    def __next__(self) -> tuple[Address, dict[str, Any]]:
        shards = self._shards
        while self.claims:
            self.claims.pop().end(shards.recycle)
        deadline = time.monotonic() + shards.timeout
        while True:
            shards.cleanup_files_without_processes()
            for candidate in self._in_order(shards.candidates()):
                claim = _claim(candidate)
                if claim is not None:
                    self.claims.append(claim)
                    return claim.path, {"url": claim.path}
            if shards.poll is None or time.monotonic() >= deadline:
                raise StopIteration
            time.sleep(shards.poll or _WITHOUT_POLL_S)

    def _in_order(self, candidates: list[str]) -> list[str]:
        """The candidates, with the one to take first in front."""
        if self._shards.select == "oldest":
            return sorted(candidates, key=_modified)
        start = self._draws.index(self._drawn, len(candidates)) if candidates else 0
        self._drawn += 1
        return candidates[start:] + candidates[:start]

    def fetch(self, address: Any) -> dict[str, Any]:
        return {"url": address}

    def describe(self, address: Any, element: object = None) -> Description:
        return Description(f"shard {address}", address)

    def state_dict(self) -> NoReturn:
        raise LookupError(
            f"{self._shards} has no state: the shards it gave are gone, so the epoch cannot be resumed"
        )

    def load_state_dict(self, state: dict[str, Any]) -> NoReturn:
        self.state_dict()


def _claim(path: str) -> _Lock | None:
    """Claims a shard; ``None`` if another reader has claimed it."""
    with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
        claim = stack.enter_context(contextlib.closing(_Lock(path)))
        if claim.is_held or claim.domain == _NO_LOCKS:
            origin = "" if claim.tells_all else f"-{claim.domain}-{time.time_ns()}"
            claim.path = f"{path}._{os.getpid()}{origin}_"
            os.rename(path, claim.path)
            stack.pop_all()
            return claim
    return None


def _give_back(claims: list[_Lock]) -> None:
    """Gives shards that are not read to their end their names back. Any thread may call this."""
    while claims:
        claims.pop().end(lambda path: _rename(path, _unclaimed(path)))


def _rename(path: str, name: str) -> None:
    """Renames a claimed shard; to ``x-1.tar`` and so on, if another shard is called ``x.tar`` by now."""
    folder, base = os.path.split(name)
    beginning, dot, extensions = base.partition(".")
    for number in itertools.count(1):
        with contextlib.suppress(FileExistsError):
            rename_to_free(path, name)
            return
        name = os.path.join(folder, f"{beginning}-{number}{dot}{extensions}")


def _unclaimed(path: str) -> str:
    match = _CLAIMED.fullmatch(path)
    return match["name"] if match else path


class _Lock:
    """An attempt to lock a shard's file, which ``close`` unlocks again."""

    def __init__(self, path: str) -> None:
        self.path = path  # a claim changes it
        self.domain = _NO_LOCKS  # identifies the kernel and the mounted file system, if that has locks
        self.tells_all = False  # no other kernel uses the file system: a reader that runs holds its lock
        self._pid = os.getpid()
        self._descriptor: int | None = None
        device = os.stat(path).st_dev
        with contextlib.suppress(OSError):  # the file system has no locks, or not for this file
            self._descriptor = lock(path)
            self.domain, self.tells_all = _domain(device), _is_of_one_kernel(device)

    @property
    def is_held(self) -> bool:
        """True if the lock was free, and the file still has its name."""
        return self._descriptor is not None

    def end(self, recycle: Callable[[str], Any]) -> None:
        """Renames or removes the claimed shard by ``recycle(path)``, unlocks it; does nothing in a fork."""
        if self._pid == os.getpid():
            with contextlib.closing(self), contextlib.suppress(FileNotFoundError):  # the user took it
                recycle(self.path)

    def close(self) -> None:
        if self._descriptor is not None:
            release(self._descriptor)
            self._descriptor = None


@lru_cache
def _domain(device: int) -> str:
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        kernel = socket.gethostname()
    return "".join(hashlib.sha256(part.encode()).hexdigest()[:8] for part in (kernel, str(device)))


def _is_of_one_kernel(device: int) -> bool:
    """True if only this machine uses a file system, as far as its type tells."""
    number = f" {os.major(device)}:{os.minor(device)} "
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    return any(number in mount and mount.partition(" - ")[2].split()[0] in _LOCAL_SYSTEMS for mount in mounts)


def shards_in(path: str | os.PathLike[str]) -> list[str]:
    """The tar archives in a directory (a path or a ``file:`` URL), compressed or not, sorted by name."""
    path = os.fspath(path)
    directory = local_path(path) if is_local(path) else ""
    if not os.path.isdir(directory):
        raise ValueError(
            f"{without_credentials(path)!r} is not a directory on this machine: a URL that ends in a slash "
            "means the shards in a local directory; name shards elsewhere one by one, or with braces"
        )
    shards = list(filter(os.path.isfile, _files(directory, SHARDS)))
    claimed = list(filter(_CLAIMED.fullmatch, _files(directory, "*._*_")))
    if claimed:
        warn(
            f"{len(claimed)} shards in {directory} are claimed by a DirectoryShardList and not read here "
            f"(such as {os.path.basename(claimed[0])}); if no such program runs, rename them",
            UserWarning,
        )
    if not shards and any(".mds" in name for name in os.listdir(directory)):
        raise FileNotFoundError(
            f"there are shards of an MDS dataset in {directory}, and no index: its writer did not finish"
        )
    if not shards:
        raise ValueError(f"no shards in {directory}: no file there has a name like {SHARDS}")
    return shards


def _files(directory: str | os.PathLike[str], pattern: str) -> list[str]:
    start = os.path.join(glob.escape(os.fspath(directory)), "")
    return sorted({name for each in Names(pattern) for name in glob.glob(start + each)})


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return float("inf")
