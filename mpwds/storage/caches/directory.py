"""The files of a cache directory: their names, marks, bytes in all, and their removal.

The files of a shard::

    000.tar                               a complete shard: the raw bytes that were fetched
    .mpwds/000.tar.offsets                where its samples begin, if they were read by number
    .mpwds/000.tar.mark                   source and size of a shard that the cache fetched; touched at each
                                          use. A shard without a mark was put there by hand
    .mpwds/partial/000.tar.0f1e...partial a shard that is being fetched
    .mpwds/lock                           locked while files get names and are removed

When a shard is complete, its mark gets its name, then the shard; removal goes in the opposite order. Readers
share a lock on the shard that they read, which keeps it from being removed.

The size is kept by removing the least recently used shards. The lock file notes the bytes of all complete
files, so that a fetch need not look at each of them. The space for a shard that is being fetched is reserved
by the size of its partial file, which is sparse at its end.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from mpwds.storage.caches.locks import lock, lock_open, release, remove_unlocked, same_file
from mpwds.storage.streams.urls import quoted_name, url_to_cache_name, without_credentials
from mpwds.suggestions import shown
from mpwds.warn import warn

PRIVATE = ".mpwds"
"""The folder of a cache directory for marks, partial files and the lock file."""

PARTIALS = "partial"
"""The folder in ``PRIVATE`` for shards that are being fetched."""

BUFFER_BYTES = 256 * 1024

_AHEAD_BYTES = 64 << 20  # reserved at a time, where there is room and the shard's size is unknown
_RECOUNT_S = 600.0
_LOCK_TIMEOUT_S = 60.0
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"\?([^\s'\"#]*)")
_NAME_BYTES = 200  # of 255 that file systems allow: partial files and marks have longer names

# Kinds of signed URLs: what all their queries have, and the parameters that differ between two signatures of
# an object. Other parameters may select an object: versionId, snapshot.
_SIGNATURES = [
    (
        ("x-amz-signature=",),
        "x-amz-algorithm x-amz-credential x-amz-date x-amz-expires x-amz-signedheaders x-amz-signature "
        "x-amz-security-token x-amz-s3session-token x-amz-region-set",
    ),
    (("awsaccesskeyid=", "signature=", "expires="), "awsaccesskeyid signature expires x-amz-security-token"),
    (
        ("x-goog-signature=",),
        "x-goog-algorithm x-goog-credential x-goog-date x-goog-expires x-goog-signedheaders x-goog-signature",
    ),
    (("googleaccessid=", "signature=", "expires="), "googleaccessid signature expires"),
    (("key-pair-id=", "signature="), "key-pair-id signature expires policy hash-algorithm"),
    (  # Azure: a shared access signature always has its version, which is a date
        (r"sv=\d{4}-\d\d-\d\d(&|$)", "sig="),
        "sv ss srt sp se st spr sip sig sr si sdd ses scid saoid suoid skoid sktid skt ske sks skv",
    ),
]


def cache_name(url: str, url_to_name: Callable[[str], str] = url_to_cache_name) -> str:
    """The checked name of a URL's file, relative to the cache directory.

    ``url_to_name`` returns the name, or another URL, as :func:`mpwds.pipe_cleaner` does. Raises ``TypeError``
    if it is not a string, ``ValueError`` if it leads out of the cache directory or is too long.
    """
    name = url_to_name(url)
    named = without_credentials(url)
    if not isinstance(name, str):
        raise TypeError(f"url_to_name must return a file name, got {shown(name)} for {shown(named)}")
    if "://" in name:
        name = url_to_cache_name(name)
    name = name or quoted_name(url)
    parts = name.split("/")
    leads_out = {"", ".", ".."} & set(parts) or parts[0] == PRIVATE or "\0" in name
    if leads_out or max(len(os.fsencode(part)) for part in parts) > _NAME_BYTES:
        raise ValueError(
            f"url_to_name gives {shown(name)} for {shown(named)}, which does not name a file inside the "
            f"cache directory, or has more than {_NAME_BYTES} bytes"
        )
    return name


def distinct_name(name: str, source: str) -> str:
    """The name of a shard whose own name is taken by another URL's shard.

    Example:
        >>> distinct_name("train/000.tar.gz", "0f1e2d3c4b5a6978")
        'train/000-0f1e2d3c4b5a6978.tar.gz'
    """
    directory, slash, last = name.rpartition("/")
    stem, dot, extensions = last.partition(".")
    return f"{directory}{slash}{stem}-{source}{dot}{extensions}"


def mark_path(directory: str, name: str) -> str:
    """The path of a shard's mark."""
    return os.path.join(directory, PRIVATE, name + ".mark")


def offsets_path(directory: str, name: str) -> str:
    """The path of the offsets of a tar shard's samples (:mod:`mpwds.storage.indexed.offsets`)."""
    return os.path.join(directory, PRIVATE, name + ".offsets")


def source_digest(url: str) -> str:
    """Identifies the object that a URL names, by 16 hexadecimal digits.

    Leaves out user names, passwords and the parameters of signatures (S3, Google, Azure, CloudFront).
    """
    identity = _QUERY.sub(_without_signature, _USERINFO.sub("", url))
    return hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _without_signature(match: re.Match[str]) -> str:
    query = match[1]
    for patterns, names in _SIGNATURES:
        if all(re.search(rf"(?i)(^|&){pattern}", query) for pattern in patterns):
            kept = [each for each in query.split("&") if each.partition("=")[0].lower() not in names.split()]
            return "?" + "&".join(kept) if kept else ""
    return match[0]


@dataclass(frozen=True)
class CacheEntry:
    """The files of one URL in a cache directory; ``source`` is the URL's ``source_digest``."""

    directory: str
    name: str
    source: str

    @staticmethod
    def of(directory: str, url: str, url_to_name: Callable[[str], str] = url_to_cache_name) -> CacheEntry:
        """The entry of a URL. Raises as ``cache_name``."""
        return CacheEntry(directory, cache_name(url, url_to_name), source_digest(url))

    @property
    def path(self) -> str:
        return os.path.join(self.directory, self.name)

    @property
    def mark(self) -> str:
        return mark_path(self.directory, self.name)

    @property
    def partial(self) -> str:
        name = f"{os.path.basename(self.name)}.{self.source}.partial"
        return os.path.join(self.directory, PRIVATE, PARTIALS, name)

    def chosen(self) -> CacheEntry:
        """This entry, or one of another name if another URL's shard has the name."""
        other = CacheEntry(self.directory, distinct_name(self.name, self.source), self.source)
        is_free = _read_mark(self.mark)[0] in (None, self.source) or not os.path.exists(self.path)
        return self if is_free and not os.path.exists(other.path) else other

    def open(self) -> BinaryIO | None:
        """Opens the complete shard, locked against removal; ``None`` if it is not there.

        A shard that is shorter than it was when it was fetched, as after a power failure, is removed.
        """
        while True:
            entry = self.chosen()
            try:
                file = open(entry.path, "rb", buffering=BUFFER_BYTES)  # noqa: SIM115
            except (FileNotFoundError, NotADirectoryError):
                return None
            with contextlib.ExitStack() as stack:
                stack.enter_context(file)
                lock_open(file.fileno(), shared=True, timeout_s=0.5)  # others lock it only for a moment
                source, size = _read_mark(entry.mark)
                if same_file(file.fileno(), entry.path) and source in (None, self.source):
                    if os.fstat(file.fileno()).st_size >= size:
                        with contextlib.suppress(OSError):  # no mark, or another user's
                            os.utime(entry.mark)
                        stack.pop_all()
                        return file
                    warn(f"{entry.path} is shorter than when it was fetched: it is fetched again")
                    os.unlink(entry.path)
            # It was removed meanwhile: look again.

    def publish(self) -> None:
        """Gives the complete partial file its name, unless a file put there by hand has it."""
        new_mark = self.partial + ".mark"
        with open(new_mark, "w", encoding="ascii") as file:
            json.dump({"source": self.source, "size": os.stat(self.partial).st_size}, file)
            file.flush()
            os.fsync(file.fileno())
        with locked_usage(self.directory) as usage:
            entry = self.chosen()
            if os.path.exists(entry.path):
                os.unlink(new_mark)
                return
            for path in (entry.mark, entry.path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(new_mark, entry.mark)
            os.rename(self.partial, entry.path)
            usage.total += os.stat(entry.path).st_size


def _read_mark(path: str) -> tuple[str | None, int]:
    """Source and size of a shard; ``None`` and 0 for one without a mark."""
    try:
        with open(path, encoding="ascii") as file:
            noted = json.load(file)
        return str(noted["source"]), int(noted["size"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, 0


@dataclass
class Usage:
    """The bytes of all complete files in a cache directory, and when they were counted, by ``time.time()``.

    They may be wrong: users add and remove files, and processes are killed. So they are counted again before
    anything is removed, every ten minutes, and when the note cannot be read.
    """

    total: int = 0
    counted_s: float = 0.0


@contextlib.contextmanager
def locked_usage(directory: str) -> Iterator[Usage]:
    """Locks a cache directory, for up to a minute of waiting. Changes of the usage are noted at the end."""
    path = os.path.join(directory, PRIVATE, "lock")
    descriptor = lock(path, create=True, timeout_s=_LOCK_TIMEOUT_S)
    if descriptor is None:
        raise TimeoutError(errno.ETIMEDOUT, f"others have held the lock for {_LOCK_TIMEOUT_S:.0f} s", path)
    try:
        try:
            total, counted_s = json.loads(os.pread(descriptor, 1000, 0))
            usage = Usage(int(total), float(counted_s))
        except (ValueError, TypeError):
            usage = Usage()
        yield usage
        text = json.dumps([usage.total, usage.counted_s]).encode()
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))
    finally:
        release(descriptor)


@dataclass(frozen=True)
class SizeLimit:
    """The limit of a cache directory's size (negative for none), which all its processes keep together."""

    directory: str
    size_bytes: int
    verbose: bool = False

    def reserve(self, partial: str, needed: int, size: int | None) -> int:
        """Makes room for a partial file, and returns the bytes that it may have now; 0 if there is no room.

        ``needed`` is the size that it is about to have, ``size`` that of the complete shard, if known.
        """
        if self.size_bytes < 0:
            return sys.maxsize
        needed = max(needed, size or 0)
        with locked_usage(self.directory) as usage:
            if abs(time.time() - usage.counted_s) > _RECOUNT_S:
                self._count(usage)
            free = self.size_bytes - usage.total - self.reserved_beside(partial)
            granted = min(free, needed if size else needed + _AHEAD_BYTES)
            if granted < needed:
                granted = needed if self._evict(usage, partial, needed) else 0
            if granted:
                os.truncate(partial, granted)
        return granted

    def reserved_beside(self, partial: str) -> int:
        """The bytes that other partial files may have."""
        folder = os.path.join(self.directory, PRIVATE, PARTIALS)
        own = os.path.basename(partial)
        return sum(status.st_size for name, status in files_in(folder) if name != own)

    def _evict(self, usage: Usage, partial: str, needed: int) -> bool:
        """Removes shards until ``needed`` bytes are free; returns whether that succeeded."""
        remove_abandoned(self.directory)
        allowed = self.size_bytes - needed - self.reserved_beside(partial)
        shards = sorted(self._count(usage))
        if usage.total - sum(size for _, _, size in shards) > allowed:
            return False
        removed = 0
        for _, name, size in shards:
            # A sixteenth goes at once, so that the shards are rarely counted.
            if usage.total <= allowed and (removed == 0 or removed >= len(shards) // 16):
                break
            if remove(self.directory, name, self.verbose):
                usage.total -= size
                removed += 1
        return usage.total <= allowed

    def _count(self, usage: Usage) -> list[tuple[int, str, int]]:
        """Counts the files' bytes; returns last use, name and size of each that the cache fetched."""
        usage.total = 0
        usage.counted_s = time.time()
        shards = []
        for name, status in files_in(self.directory):
            usage.total += status.st_size
            with contextlib.suppress(FileNotFoundError):
                shards.append((os.stat(mark_path(self.directory, name)).st_mtime_ns, name, status.st_size))
        return shards


def files_in(directory: str, below: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Relative name and status of a cache directory's files, without private ones and symbolic links."""
    try:
        entries = list(os.scandir(os.path.join(directory, below)))
    except FileNotFoundError:
        return
    for entry in entries:
        name = os.path.join(below, entry.name)
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            if entry.is_file(follow_symlinks=False):
                yield name, entry.stat(follow_symlinks=False)
            elif entry.is_dir(follow_symlinks=False) and name != PRIVATE:
                yield from files_in(directory, name)


def remove(directory: str, name: str, verbose: bool = False) -> bool:
    """Removes a file of a cache directory unless it is being read; returns whether it is gone."""
    path = os.path.join(directory, name)
    if not remove_unlocked(path, mark_path(directory, name), offsets_path(directory, name)):
        return not os.path.exists(path)
    if verbose:
        print(f"# deleting {path}", file=sys.stderr)
    return True


def remove_abandoned(directory: str) -> None:
    """Removes the partial files of processes that were killed."""
    folder = os.path.join(directory, PRIVATE, PARTIALS)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.endswith(".partial"):
            remove_unlocked(path, path + ".mark")
