"""What ``mpwds proc`` writes down, so that the next run goes on where a killed one was."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from mpwds.cli.outputs import already_there, existing, exists
from mpwds.cli.resharding.proc_jobs import Processing
from mpwds.feed.definition import fingerprint
from mpwds.storage.caches.locks import lock, release
from mpwds.storage.streams.urls import is_local, local_path, url_scheme, without_credentials


@contextlib.contextmanager
def begun(processing: Processing, journal: Path | None, force: bool) -> Iterator[set[str]]:
    """Begins a run, or continues one that ended early; yields the shards that are complete.

    The journal says what is made of what. Shards get their names when they are complete, so those that exist
    while there is a journal are complete. It stays locked inside ``with``.

    Args:
        processing: What to do.
        journal: The file; ``None`` for one beside the output.
        force: Begin anew, and remove the shards that exist.

    Raises:
        FileExistsError: Shards exist without a journal.
        ValueError: The journal is of another run, or another process has it; or the output is not local and
            ``journal`` is ``None``.
    """
    output = processing.output
    if output == "-" or url_scheme(output) == "pipe":
        yield set()
        return
    path = str(journal or _beside(output))
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise FileNotFoundError(errno.ENOENT, "cannot write here, the directory does not exist", path)
    descriptor = lock(path, create=True)
    if descriptor is None:
        raise ValueError(f"{path} is locked: another process is writing {without_credentials(output)}")
    try:
        outputs = [job.output for job in processing.jobs]
        done = set(filter(exists, outputs))
        before = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        now = _described(processing)
        there = sorted(done.union(existing(output)))
        if force or not there or not _continues(before, now, path):
            if there and not force:
                raise FileExistsError(already_there(there))
            for name in sorted(done):
                _remove(name)
            done = set()
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, now, 0)
            os.fsync(descriptor)
        _remove_partial(outputs)
        try:
            yield done
        finally:  # an error or Ctrl-C ended workers while they wrote
            _remove_partial(outputs)
    finally:
        release(descriptor)


def _beside(output: str) -> str:
    if not is_local(output):
        raise ValueError(
            f"{without_credentials(output)} is not local: say where to keep the journal, --journal FILE"
        )
    directory, name = os.path.split(local_path(output))
    return os.path.join(directory, f".{re.sub('%0?[0-9]*d', '', name)}.proc")


def _described(processing: Processing) -> bytes:
    description = {
        "version": 1,
        "shards": processing.urls,
        "output": processing.output,
        "rounds": processing.rounds,
        "seed": processing.seed,
        "stages": fingerprint(processing.dataset),
    }
    return json.dumps(description, indent=1).encode()


def _continues(before: bytes, now: bytes, path: str) -> bool:
    """Whether there is a journal, and of the same run. Raises ``ValueError`` if it is of another."""
    try:
        old, new = json.loads(before), json.loads(now)
    except ValueError:  # empty, or cut short: then no shard was begun
        return False
    changed = ", ".join(name for name in new if old.get(name) != new[name])
    if changed:
        raise ValueError(
            f"{path} says that a run was begun with different {changed}: repeat it as it was to finish it, "
            "or begin anew with --force, which removes its shards"
        )
    return True


def _remove(name: str) -> None:
    if not is_local(name):
        raise ValueError(f"{without_credentials(name)} exists and is not local: --force cannot remove it")
    os.unlink(local_path(name))


def _remove_partial(outputs: list[str]) -> None:
    """Removes what processes that were killed left of the shards that they were writing."""
    paths = [local_path(name) for name in outputs if is_local(name)]
    names = {os.path.basename(path)[:50] for path in paths}
    for directory in set(map(os.path.dirname, paths)):
        for path in glob.iglob(os.path.join(glob.escape(directory), ".*.partial")):
            if os.path.basename(path)[1 : -len(".01234567.partial")] in names:
                os.unlink(path)
