"""The journal of a run of a command: what is made of what, so that it continues after a kill."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpwds.cli import outputs
from mpwds.cli.options import Part
from mpwds.errors import WrongArgument
from mpwds.storage.caches.locks import lock, release
from mpwds.storage.streams.ahead import work_ahead
from mpwds.storage.streams.gopen import gopen, version_at
from mpwds.storage.streams.urls import is_local, local_path, without_credentials
from mpwds.storage.writing import destinations

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
    journal are complete. The ``journal``, by default beside the output, stays locked inside ``with``, and
    stays afterwards: the same run again finds nothing to do. At the end, standard error names older shards of
    the same series.

    With a ``part``, other processes write the other parts of ``shards``. All parts, and a run of the whole,
    have the same journal, which is not locked then, nor where it is not local: two processes that do the same
    part write the same bytes.

    ``run`` says what is made of what, as JSON can have it, and is the same when a run continues. It may be
    changed if no shard was written, but not by a part, nor if a part began it: others may be about to write.
    If each shard is made of one file, ``inputs`` names these, and a part asks for versions of its own alone.
    ``force`` begins again, and removes the shards that exist. ``also`` are further series and files that the
    run writes.
    """
    if outputs.has_no_place(output):
        if part is not None:
            raise WrongArgument(f"--part: {output} is one stream, and parts write shards: name a series")
        yield set()
        return
    outputs.refuse_own_input(inputs, output)
    if part is not None and force:
        raise WrongArgument("--force would remove what other parts wrote: remove it yourself")
    path = str(journal or hidden_beside(output, ".journal"))
    this = _Run(output, shards, also, path, part, inputs, run)
    this.versions(this.numbers)  # before there is a journal: one may be missing
    with this.begun(force) as done:
        try:
            yield done
        finally:
            # What killed workers left of them.
            destinations.remove_partial(filter(None, map(outputs.path_of, this.written)))
    for each in (output, *also):
        outputs.warn_of_older(each, (*shards, *also))


@dataclass(eq=False)
class _Run:
    """A run, of which this process writes all shards, or those of a ``part``: ``own``, by their ``numbers``.

    For n parts, n files beside the journal note the versions of inputs, each those of one part. A file is
    older than its shards. So a part, the whole, and parts of another number find what a shard that exists was
    made of, and ask for no more versions than they need.
    """

    output: str
    shards: Sequence[str]
    also: Sequence[str]
    path: str
    part: Part | None
    inputs: Sequence[str]
    what: Mapping[str, Any]

    def __post_init__(self) -> None:
        part = self.part or Part(0, 1)
        self.numbers, self._notes = part.of(range(len(self.shards))), _notes_of(self.path, part)
        self.own = [self.shards[number] for number in self.numbers]
        self.written = self.own if self.part is not None else [*self.shards, *self.also]
        self.is_alone = self.part is None and is_local(self.path)
        self._now = {"version": 3, "output": self.output, "parts": part.count, **self.what}
        self._versions: dict[str, str] = {}

    @contextlib.contextmanager
    def begun(self, force: bool) -> Iterator[set[str]]:
        """Begins or continues the run."""
        files = [name for name in self.also if not destinations.is_series(name)]
        names = self.own if self.part is not None else (self.output, *self.also)
        outputs.make_folders([self.path, self._notes, *names, *files])
        done: set[str] = set()
        with self._locked(done) if self.is_alone else contextlib.nullcontext() as descriptor:
            done.update(outputs.which_exist(self.written))
            there = sorted(done.union(*map(outputs.existing, (self.output, *self.also))))
            strict = self.part is not None or bool(there)
            begun = _checked(_content(self.path), self.path)
            begins = force or not self._is_in(begun, strict)
            if force:
                _remove(done)
            elif begins:
                if not there and self.part is not None and not self.inputs:
                    there = list(itertools.islice(outputs.which_exist(self.shards), 1))
                # Again after looking for shards: a journal is older than all shards of its run.
                begun = _content(self.path)
                begins = not self._is_in(begun, strict)
                if begins and there:
                    raise FileExistsError(outputs.already_there(there))
            if begins:
                begun = self._write_journal(descriptor, replace=bool(begun))
            self._compare_versions(begun, begins and self.part is None)
            yield done
            # Two that began at the same moment may both have written a server's journal.
            self._is_in(_content(self.path), strict=True)

    @contextlib.contextmanager
    def _locked(self, done: set[str]) -> Iterator[int]:
        """Locks the journal; after an error, removes a new one if no shards exist but those ``done``."""
        descriptor = lock(self.path, create=True)
        if descriptor is None:
            os.stat(self.path)  # an error if no file can be made here
            output = without_credentials(self.output)
            raise ValueError(f"{self.path} is locked: another process is writing {output}")
        is_new = not os.fstat(descriptor).st_size
        try:
            yield descriptor
        except BaseException:
            if is_new and not any(outputs.which_exist([name for name in self.shards if name not in done])):
                for name in (self.path, self._notes):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name)
            raise
        finally:
            release(descriptor)

    def _write_journal(self, descriptor: int | None, replace: bool) -> bytes:
        """Writes the journal, in place if it is locked; returns what it holds."""
        if descriptor is not None:
            os.ftruncate(descriptor, 0)
            with open(descriptor, "wb", buffering=0, closefd=False) as file:
                destinations.write_all(file, _encoded(self._now), self.path)
            os.fsync(descriptor)
            return _encoded(self._now)
        begun = _write_shared(self.path, self._now, replace)
        if not self._is_in(begun, strict=True):
            why = "another process begins at this moment, or was killed when it did"
            raise ValueError(f"{self.path} is not complete: {why}: repeat this command, or remove the file")
        return begun

    def _is_in(self, journal: bytes, strict: bool) -> bool:
        """True if a journal's content is of this run, false if it is empty. ``ValueError`` if of another.

        If not ``strict``, one of a single process does not count.
        """
        try:
            old = json.loads(journal)
        except ValueError:  # empty, or cut short: then no shard was begun
            return False
        if not strict and old.get("parts", 1) == 1:
            return False
        changed = [name for name in self._now if name != "parts" and old.get(name) != self._now[name]]
        if changed:
            what = ", ".join([name for name in changed if name not in _FOLLOWING] or changed)
            raise self._other_run(what)
        return True

    def versions(self, numbers: Sequence[int]) -> list[str]:
        """The versions that the inputs of shards have now, or had when they were first asked for."""
        if not self.inputs:
            return []
        urls = [self.inputs[number] for number in numbers]
        new = [url for url in dict.fromkeys(urls) if url not in self._versions]
        self._versions.update(zip(new, versions_of(new), strict=True))
        return [self._versions[url] for url in urls]

    def _compare_versions(self, begun: bytes, begins: bool) -> None:
        """Raises ``ValueError`` if inputs have changed since a journal was ``begun``, and notes new ones."""
        if not self.inputs:
            return
        parts, run = json.loads(begun)["parts"], digest([begun])
        noted: dict[int, str] = {}
        for first in sorted({number % parts for number in self.numbers}):
            part = Part(first, parts)
            name, those = _notes_of(self.path, part), part.of(range(len(self.shards)))
            versions = None if begins else _noted(name, run)
            if versions is None and not begins:
                there = list(outputs.which_exist([self.shards[number] for number in those]))
                versions = _noted(name, run)  # after looking for shards
                if versions is None and there:
                    raise FileExistsError(outputs.already_there(there))
            if versions is None:
                noting = {"run": run, "versions": self.versions(those)}
                _write_shared(name, noting, replace=begins or bool(_content(name)))
                versions = _noted(name, run) or []
            noted.update(zip(those, versions, strict=False))
        for number, version in zip(self.numbers, self.versions(self.numbers), strict=True):
            if noted.get(number) != version:
                raise self._other_run(f"inputs: {without_credentials(self.inputs[number])} has changed")

    def _other_run(self, what: str) -> ValueError:
        path = without_credentials(self.path)
        return ValueError(
            f"{path} says that a run was begun with different {what}: repeat it as it was, choose another "
            f"name, or begin again: when nothing writes there any more, remove {path}* and the shards; or "
            "without --part, --force removes local shards"
        )


def digest(parts: Iterable[object]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(repr(part).encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def version_of(url: str) -> object:
    """The size and time of a local file, or the version that a server tells; ``None`` of a command.

    What this process alone has open is something else each time. Raises ``OSError`` if there is no such file.
    """
    if outputs.is_own(url):
        return os.urandom(8)
    if outputs.is_stream(url):
        return None
    if (path := outputs.path_of(url)) is not None:
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    return version_at(url)


def versions_of(urls: Iterable[str]) -> list[str]:
    """Short digests of the versions of files."""
    return [digest([found.result()])[:16] for _, found in work_ahead(version_of, urls, _VERSIONS)]


def hidden_beside(output: str, ending: str) -> str:
    """The name of a file that a command has beside its output, while it has not ended or longer.

    Example:
        >>> hidden_beside("data/out-%d.tar", ".journal")
        'data/.out-.tar.journal'
    """
    folder, slash, name = (outputs.path_of(output) or output).rpartition("/")
    front, _, back = destinations.parts_of_series(name)
    return f"{folder}{slash}.{front}{back}{ending}"


def _notes_of(path: str, part: Part) -> str:
    return f"{path}.{part.index}-of-{part.count}"


def _encoded(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode()


def _write_shared(path: str, content: Mapping[str, Any], replace: bool) -> bytes:
    """Writes a file that processes share; returns what it holds, which another may have written."""
    with contextlib.suppress(FileExistsError):
        destinations.write_whole(destinations.open_destination(path, replace=replace), _encoded(content))
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


def _remove(done: set[str]) -> None:
    """Removes shards, and leaves the set empty."""
    for name in sorted(done):
        if not is_local(name):
            raise ValueError(f"{without_credentials(name)} exists and is not local: --force cannot remove it")
        os.unlink(local_path(name))
    done.clear()
