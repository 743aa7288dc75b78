"""A journal of a command that writes many shards. After a kill, the same command resumes from it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mpwds.cli.outputs import (
    already_there,
    existing,
    make_folders,
    warn_of_older,
    which_exist,
)
from mpwds.storage.caches.locks import lock, release
from mpwds.storage.streams.urls import is_local, local_path, url_scheme, without_credentials
from mpwds.storage.writing.destinations import parts_of_series, remove_partial

_FOLLOWING = frozenset(["samples", "inputs"])  # they may differ because something else does


@contextlib.contextmanager
def resume_or_start(
    output: str,
    shards: Sequence[str],
    run: Mapping[str, Any],
    force: bool,
    journal: Path | None = None,
    keep: bool = False,
    also: Sequence[str] = (),
) -> Iterator[set[str]]:
    """Starts a run, or resumes one that ended early; yields the shards and files that are complete.

    The journal says what is made of what. Shards get their names when they are complete and on the disk, so
    those that exist while there is a journal are complete. It stays locked inside ``with``. At the end,
    standard error names older shards of the same series.

    ``run`` says what is made of what, as JSON can have it: a run that continues must have the same. ``force``
    begins again, and removes the shards that exist. The ``journal`` is a file beside the output by default;
    ``keep`` leaves it when all is done, so that the same run again finds nothing to do. ``also`` are further
    series and files that the run writes.

    Raises ``FileExistsError`` if there are shards or files without a journal; ``ValueError`` if the journal
    is of another run, if another process has it, or if the output is not local and there is no ``journal``.
    """
    if output == "-" or url_scheme(output) == "pipe":
        yield set()
        return
    path = str(journal or _beside(output))
    make_folders([output, *also, path])
    descriptor = lock(path, create=True)
    if descriptor is None:
        raise ValueError(f"{path} is locked: another process is writing {without_credentials(output)}")
    before = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    done: set[str] = set()
    try:
        done.update(which_exist([*shards, *also]))
        now = json.dumps({"version": 2, "output": output, **run}, indent=1).encode()
        there = sorted(done.union(*map(existing, (output, *also))))
        if force or not there or not _continues(before, now, path):
            if there and not force:
                raise FileExistsError(already_there(there))
            for name in sorted(done):
                _remove(name)
            done = set()
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, now, 0)
            os.fsync(descriptor)
        paths = [local_path(name) for name in (*shards, *also) if is_local(name)]
        try:
            yield done
        except BaseException:
            remove_partial(paths)
            raise
        for each in (output, *also):
            warn_of_older(each, (*shards, *also))
        if not keep:
            os.unlink(path)
    except BaseException:
        if not before and not any(which_exist([name for name in shards if name not in done])):
            os.unlink(path)
        raise
    finally:
        release(descriptor)


def digest(parts: Iterable[object]) -> str:
    """A digest of what a run depends on."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(repr(part).encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def _beside(output: str) -> str:
    if not is_local(output):
        raise ValueError(
            f"{without_credentials(output)} is not local: say where to keep the journal, --journal FILE"
        )
    directory, name = os.path.split(local_path(output))
    front, _, back = parts_of_series(name)
    return os.path.join(directory, f".{front}{back}.journal")


def _continues(before: bytes, now: bytes, path: str) -> bool:
    """True if there is a journal, and of the same run. Raises ``ValueError`` if it is of another."""
    try:
        old, new = json.loads(before), json.loads(now)
    except ValueError:  # empty, or cut short: then no shard was begun
        return False
    changed = [name for name in new if old.get(name) != new[name]]
    if changed:
        names = ", ".join([name for name in changed if name not in _FOLLOWING] or changed)
        raise ValueError(
            f"{path} says that a run was begun with different {names}: repeat it as it was to finish it, "
            "or begin again with --force, which removes its shards"
        )
    return True


def _remove(name: str) -> None:
    if not is_local(name):
        raise ValueError(f"{without_credentials(name)} exists and is not local: --force cannot remove it")
    os.unlink(local_path(name))
