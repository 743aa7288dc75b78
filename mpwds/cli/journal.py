"""The journal of a run of a command: what is made of what, so that it continues after a kill."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mpwds.cli.options import Part
from mpwds.cli.outputs import (
    already_there,
    existing,
    make_folders,
    refuse_own_input,
    warn_of_older,
    which_exist,
)
from mpwds.errors import WrongArgument
from mpwds.storage.caches.locks import lock, release
from mpwds.storage.streams.gopen import gopen, version_at
from mpwds.storage.streams.urls import is_local, local_path, url_scheme, without_credentials
from mpwds.storage.writing.destinations import (
    is_series,
    open_destination,
    parts_of_series,
    remove_partial,
    write_whole,
)

_VERSIONS = 16  # requests for these at a time
_BEGINNING = b'{\n "version"'
_FOLLOWING = frozenset(["samples", "inputs"])  # they may differ because something else does


@contextlib.contextmanager
def resume_or_start(
    output: str,
    shards: Sequence[str],
    run: Mapping[str, Any],
    force: bool,
    journal: Path | None = None,
    also: Sequence[str] = (),
    part: Part | None = None,
    inputs: Sequence[str] = (),
) -> Iterator[set[str]]:
    """Starts a run, or resumes one that ended early; yields the shards and files that are complete.

    Shards get their names when they are complete and on the disk, so those that exist while there is a
    journal are complete. It stays locked inside ``with``. At the end, standard error names older shards of
    the same series.

    With a ``part``, other processes write the other parts of ``shards``. All parts, and a run of the whole,
    have the same journal, which is not locked then: two processes that do the same part write the same bytes.
    That also holds for a journal that is not local.

    ``run`` says what is made of what, as JSON can have it: a run that continues must have the same. It may be
    changed if no shard was written, but not by a part, nor if one of several began it: others may be about to
    write. If each shard is made of one file, ``inputs`` names these, and a part asks for versions of its own
    alone. ``force`` begins again, and removes the shards that exist. The ``journal``, by default beside
    the output, stays: the same run again finds nothing to do. ``also`` are further series and files that the
    run writes.

    Raises ``FileExistsError`` if there are shards or files without a journal; ``ValueError`` if the journal
    is of another run, if another process has it, if an input would be replaced, or if there are a ``part``
    and ``force``.
    """
    if output == "-" or url_scheme(output) == "pipe":
        if part is not None:
            raise WrongArgument(f"--part: {output} is one stream, and parts write shards: name a series")
        yield set()
        return
    refuse_own_input(inputs, output)
    if part is not None and force:
        raise WrongArgument("--force would remove what other parts wrote: remove it yourself")
    path = str(journal or hidden_beside(output, ".journal"))
    this = _RunPart(output, shards, also, path, part, _Versions(shards, inputs), run)
    this.versions.ask(this.numbers)  # before there is a journal: one may be missing
    begun = _begun_by_parts if part is not None or not is_local(path) else _begun_alone
    with begun(this, force) as done:
        yield done
    for each in (output, *also):
        warn_of_older(each, (*shards, *also))


class _RunPart:
    """What a process writes: all shards of a run, or a ``part`` of them. ``now`` is its journal."""

    def __init__(
        self,
        output: str,
        shards: Sequence[str],
        also: Sequence[str],
        path: str,
        part: Part | None,
        versions: _Versions,
        run: Mapping[str, Any],
    ) -> None:
        self.output, self.shards, self.also = output, shards, also
        self.path = path
        this = part or Part(0, 1)
        self.is_part = part is not None
        self.numbers, self.notes = this.of(range(len(shards))), _notes_of(path, this)
        self.versions = versions
        self.now = {"version": 3, "output": output, "parts": this.count, **run}


@contextlib.contextmanager
def _begun_by_parts(this: _RunPart, force: bool) -> Iterator[set[str]]:
    """Begins or continues a run whose journal several processes may write."""
    path, now = this.path, this.now
    own = [this.shards[number] for number in this.numbers]
    make_folders([path, this.notes, *own, *(name for name in this.also if not is_series(name))])
    done = set(which_exist(own))
    strict = this.is_part or bool(done)
    begun = _checked(_content(path), path)
    begins = force or not _is_same_run(begun, now, path, strict)
    if force:
        for name in sorted(done):
            _remove(name)
        done = set()
    elif begins:
        others = this.shards if this.is_part and not this.versions.inputs else ()
        there = sorted(done) or existing(this.output) or list(itertools.islice(which_exist(others), 1))
        begun = _content(path)  # after looking for shards: it is older than all shards of its run
        begins = not _is_same_run(begun, now, path, strict)
        if begins and there:
            raise FileExistsError(already_there(there))
    if begins:
        begun = _write_shared(path, now, replace=bool(begun))
        if not _is_same_run(begun, now, path, strict=True):
            why = "another process begins at this moment, or was killed when it did"
            raise ValueError(f"{path} is not complete: {why}: repeat this command, or remove the file")
    this.versions.compare(path, begun, this.numbers, begins and not this.is_part)
    with _removing_partial(own):
        yield done
    # Two that began at the same moment may both have written a server's journal.
    _is_same_run(_content(path), now, path, strict=True)


@contextlib.contextmanager
def _begun_alone(this: _RunPart, force: bool) -> Iterator[set[str]]:
    """Begins or continues a run of this process alone, which locks the journal."""
    path, written = this.path, (*this.shards, *this.also)
    make_folders([this.output, *this.also, path, this.notes])
    descriptor = lock(path, create=True)
    if descriptor is None:
        raise ValueError(f"{path} is locked: another process is writing {without_credentials(this.output)}")
    before = begun = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    done: set[str] = set()
    try:
        _checked(before, path)
        done.update(which_exist(written))
        there = sorted(done.union(*map(existing, (this.output, *this.also))))
        begins = force or not _is_same_run(before, this.now, path, bool(there))
        if begins:
            if there and not force:
                raise FileExistsError(already_there(there))
            for name in sorted(done):
                _remove(name)
            done = set()
            begun = _encoded(this.now)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, begun, 0)
            os.fsync(descriptor)
        this.versions.compare(path, begun, this.numbers, begins)
        with _removing_partial(written):
            yield done
    except BaseException:
        if not before and not any(which_exist([name for name in this.shards if name not in done])):
            for name in (path, this.notes):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
        raise
    finally:
        release(descriptor)


class _Versions:
    """Versions of the inputs of shards. For n parts, n files beside the journal each note those of one.

    A file is older than its shards. So a part, the whole, and parts of another number find what a shard that
    exists was made of, and ask for no more than they need.
    """

    def __init__(self, shards: Sequence[str], inputs: Sequence[str]) -> None:
        self._shards = shards
        self.inputs = inputs
        self._asked: dict[str, str] = {}

    def ask(self, numbers: Sequence[int]) -> list[str]:
        """The versions that the inputs of shards have now, or had when they were first asked for."""
        if not self.inputs:
            return []
        urls = [self.inputs[number] for number in numbers]
        new = [url for url in dict.fromkeys(urls) if url not in self._asked]
        self._asked.update(zip(new, versions_of(new), strict=True))
        return [self._asked[url] for url in urls]

    def compare(self, path: str, begun: bytes, numbers: Sequence[int], begins: bool) -> None:
        """Raises ``ValueError`` if inputs have changed since a journal was ``begun``, and notes new ones."""
        if not self.inputs:
            return
        parts, run = json.loads(begun)["parts"], digest([begun])
        noted: dict[int, str] = {}
        for first in sorted({number % parts for number in numbers}):
            part = Part(first, parts)
            name, those = _notes_of(path, part), part.of(range(len(self._shards)))
            versions = None if begins else _noted(name, run)
            if versions is None and not begins:
                there = list(which_exist([self._shards[number] for number in those]))
                versions = _noted(name, run)  # after looking for shards
                if versions is None and there:
                    raise FileExistsError(already_there(there))
            if versions is None:
                noting = {"run": run, "versions": self.ask(those)}
                _write_shared(name, noting, replace=begins or bool(_content(name)))
                versions = _noted(name, run) or []
            noted.update(zip(those, versions, strict=False))
        for number, version in zip(numbers, self.ask(numbers), strict=True):
            if noted.get(number) != version:
                raise _other_run(path, f"inputs: {without_credentials(self.inputs[number])} has changed")


@contextlib.contextmanager
def _removing_partial(names: Iterable[str]) -> Iterator[None]:
    """Removes at the end what killed workers left of local files."""
    paths = [local_path(name) for name in names if is_local(name)]
    try:
        yield
    finally:
        remove_partial(paths)


def digest(parts: Iterable[object]) -> str:
    """A digest of what a run depends on."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(repr(part).encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def version_of(url: str) -> object:
    """The size and time of a local file, or the version that a server tells; ``None`` of a pipe.

    Raises ``OSError`` if there is no such file.
    """
    if url == "-" or url_scheme(url) == "pipe":
        return None
    if is_local(url):
        status = os.stat(local_path(url))
        return status.st_size, status.st_mtime_ns
    return version_at(url)


def versions_of(urls: Iterable[str]) -> list[str]:
    """Short digests of the versions of files."""
    with ThreadPoolExecutor(_VERSIONS) as threads:
        return [digest([version])[:16] for version in threads.map(version_of, urls)]


def hidden_beside(output: str, ending: str) -> str:
    """The name of a file that a command has beside its output, while it has not ended or longer.

    Example:
        >>> hidden_beside("data/out-%d.tar", ".journal")
        'data/.out-.tar.journal'
    """
    folder, slash, name = (local_path(output) if is_local(output) else output).rpartition("/")
    front, _, back = parts_of_series(name)
    return f"{folder}{slash}.{front}{back}{ending}"


def _notes_of(path: str, part: Part) -> str:
    return f"{path}.{part.index}-of-{part.count}"


def _encoded(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode()


def _write_shared(path: str, content: Mapping[str, Any], replace: bool) -> bytes:
    """Writes a file that processes share; returns what it holds, which another may have written."""
    with contextlib.suppress(FileExistsError):
        write_whole(open_destination(path, replace=replace), _encoded(content))
    return _content(path)


def _content(url: str) -> bytes:
    try:
        with gopen(url) as stream:
            return stream.read()
    except FileNotFoundError:
        return b""


def _noted(name: str, run: str) -> list[str] | None:
    """The versions in a file, if they are of this run."""
    with contextlib.suppress(ValueError):  # empty, or cut short
        noted = json.loads(_content(name))
        return noted["versions"] if noted["run"] == run else None
    return None


def _checked(content: bytes, path: str) -> bytes:
    """The content, which may be cut short. ``FileExistsError`` if it is another file's than a journal's."""
    if not content.startswith(_BEGINNING[: len(content)]):
        raise FileExistsError(
            f"{without_credentials(path)} exists, and is no journal of a run: pass another name as --journal"
        )
    return content


def _is_same_run(before: bytes, now: Mapping[str, Any], path: str, strict: bool) -> bool:
    """True if there is a journal, and of the same run. Raises ``ValueError`` if it is of another.

    If not ``strict``, one of a single process does not count.
    """
    try:
        old = json.loads(before)
    except ValueError:  # empty, or cut short: then no shard was begun
        return False
    if not strict and old.get("parts", 1) == 1:
        return False
    changed = [name for name in now if name != "parts" and old.get(name) != now[name]]
    if changed:
        raise _other_run(path, ", ".join([name for name in changed if name not in _FOLLOWING] or changed))
    return True


def _other_run(path: str, what: str) -> ValueError:
    path = without_credentials(path)
    return ValueError(
        f"{path} says that a run was begun with different {what}: repeat it as it was, choose another name, "
        f"or begin again: when nothing writes there any more, remove {path}* and the shards; or without "
        "--part, --force removes local shards"
    )


def _remove(name: str) -> None:
    if not is_local(name):
        raise ValueError(f"{without_credentials(name)} exists and is not local: --force cannot remove it")
    os.unlink(local_path(name))
