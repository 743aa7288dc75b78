"""Outputs of commands: their names, never over data that exists, and journals to resume after a kill."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpwds.cli.options import Part
from mpwds.errors import WrongArgument
from mpwds.storage.caches.locks import lock, release
from mpwds.storage.streams.ahead import work_ahead
from mpwds.storage.streams.base import stream_version
from mpwds.storage.streams.gopen import exists, gopen, open_at
from mpwds.storage.streams.urls import is_local, local_path, url_scheme, without_credentials
from mpwds.storage.writing.destinations import (
    is_series,
    numbered,
    open_destination,
    parts_of_series,
    remove_partial,
    write_whole,
)
from mpwds.viewing.wording import printable

if TYPE_CHECKING:
    from PIL.Image import Image

_FILE = re.compile(r"\.(tar(\.\w+)?|tgz|tbz2|txz|msgpacks?|msg|mp|cbors?)$", re.IGNORECASE)
_REQUESTS = 64  # at a time
_VERSIONS = 16  # requests for these at a time
_NUMBER = re.compile(r"[-_.]?%(?:0\d+)?d")
_FOLLOWING = frozenset(["samples", "inputs"])  # they may differ because something else does


def is_file(output: str) -> bool:
    """True if an argument names one file or a series, or a command, rather than a folder.

    Example:
        >>> is_file("x.tar.gz"), is_file("https://host/x.tar?key=1"), is_file("x-%d"), is_file("data-1.0")
        (True, True, True, False)
    """
    if output == "-" or url_scheme(output) == "pipe" or is_series(output):
        return True
    if is_local(output):
        return _FILE.search(output) is not None and not os.path.isdir(local_path(output))
    return _FILE.search(output.partition("?")[0]) is not None


def shard_pattern(output: str, split: str = "", splits: Collection[str] = (), ending: str = ".tar") -> str:
    """The place that a command's argument names for shards: a pattern with a ``%`` directive, or one name.

    The argument is one of these, or a folder for shards called ``SPLIT-%06d``. A ``split``, of the ``splits``
    that there are, replaces ``%s``, or the name of a split with which the pattern begins; else the pattern
    begins with it. Raises ``ValueError`` if there is no split for ``%s``.

    Example:
        >>> shard_pattern("data/x-%04d.tar", "val"), shard_pattern("train-%d.tar", "val", ["train", "val"])
        ('data/val-x-%04d.tar', 'val-%d.tar')
        >>> shard_pattern("s3://bucket/data/", "val"), shard_pattern("data"), shard_pattern("%s/x.tar", "val")
        ('s3://bucket/data/val-%06d.tar', 'data/shard-%06d.tar', 'val/x.tar')
    """
    if "%s" in output and not split:
        raise WrongArgument(f"{output}: %s stands for the split, and there is only one")
    if output == "-" or "%s" in output:
        return output.replace("%s", split)
    if split and url_scheme(output) == "pipe":
        raise WrongArgument(f"the split {split!r} cannot be a part of {output!r}: write %s for it")
    folder, slash, name = output.rpartition("/")
    if not is_file(output):
        return f"{output.rstrip('/') or '/'}/{split or 'shard'}-%06d{ending}"
    if not split:
        return output
    begins = re.match(f"({'|'.join(map(re.escape, splits or [split]))})(?![A-Za-z0-9])", name)
    return f"{folder}{slash}{split}{name[begins.end() :] if begins else f'-{name}'}"


def shard_names(output: str, count: int) -> list[str]:
    """The names of shards of a series; raises ``WrongArgument`` if the output is one, and these are more.

    Example:
        >>> shard_names("out-%d.tar", 2), shard_names("out.tar", 1)
        (['out-0.tar', 'out-1.tar'], ['out.tar'])
    """
    if not is_series(output) and count > 1:
        raise WrongArgument(
            f"{output} is one shard, but {count} are to be written: name a series, such as out-%06d.tar"
        )
    return [numbered(output, number) for number in range(count)]


def beside(pattern: str, ending: str) -> str:
    """The name of a file that describes the shards of a pattern.

    Example:
        >>> beside("data/train-%06d.tar", ".json")
        'data/train.json'
    """
    folder, slash, name = pattern.rpartition("/")
    name = _NUMBER.sub("", _FILE.sub("", name))
    return f"{folder}{slash}{name or 'dataset'}{ending}"


def beside_shard(shard: str, ending: str) -> list[str]:
    """The names that ``beside`` gives for a shard's series, and for a shard that is none.

    Example:
        >>> beside_shard("data/train-000007.tar", ".json"), beside_shard("val.tar", ".json")
        (['data/train.json', 'data/train-000007.json'], ['val.json'])
    """
    folder, slash, name = _FILE.sub("", shard).rpartition("/")
    patterns = (re.sub(r"\d+(?=\D*$)", "%d", name), name)
    return list(dict.fromkeys(beside(f"{folder}{slash}{each}", ending) for each in patterns))


def refuse_existing(names: Sequence[str], force: bool = False) -> None:
    """Raises ``FileExistsError`` if a file that is to be written exists, unless ``force``.

    A pattern stands for all local files that are of its series.
    """
    there: list[str] = []
    for name in names:
        there += existing(name) or filter(exists, [numbered(name, 0)])
    if there and not force:
        raise FileExistsError(already_there(there))


def refuse_limits(output: str, limit: object) -> None:
    """Raises ``WrongArgument`` if a limit is given for what is one file by its name."""
    if limit and not is_series(output) and is_file(output):
        raise WrongArgument(
            f"{output} is one file, so limits mean nothing: name a series, such as out-%06d.tar"
        )


def refuse_own_input(inputs: Sequence[str], output: str) -> None:
    """Raises ``WrongArgument`` if what is read would be replaced, as the output or a part of its series."""
    if not is_local(output) or output == "-":
        return
    replaced = {os.path.realpath(local_path(each)) for each in (output, *existing(output))}
    for url in inputs:
        if url != "-" and is_local(url) and os.path.realpath(local_path(url)) in replaced:
            raise WrongArgument(f"{url} is read, so it cannot be written as well: choose another output")


def make_folders(urls: Sequence[str]) -> None:
    """Makes the local folders that the files are to be in, and removes what killed writers left of them."""
    paths = [local_path(url) for url in urls if url != "-" and is_local(url)]
    for folder in filter(None, {os.path.dirname(path) for path in paths}):
        os.makedirs(folder, exist_ok=True)
    remove_partial(paths)


def warn_of_older(target: str, written: Iterable[str]) -> None:
    """Names local shards of the series on standard error that are not among those written now."""
    older = sorted({*existing(target)} - {local_path(name) for name in written if is_local(name)})
    if older:
        more = f" and {len(older) - 1} more of the series are" if older[1:] else " of the series is"
        print(f"{printable(older[0])}{more} of an earlier run: remove what is not needed", file=sys.stderr)


def which_exist(names: Sequence[str]) -> Iterator[str]:
    """Yields the names of files and objects that exist. Servers are asked for many at a time."""
    if all(map(is_local, names)):
        yield from filter(exists, names)
    else:
        asked = work_ahead(exists, names, _REQUESTS)
        yield from (name for name, found in asked if found.result())


def existing(target: str) -> list[str]:
    """The local files that a target names, or that belong to its series, sorted."""
    if target == "-" or not is_local(target):
        return []
    directory, name = os.path.split(local_path(target))
    front, directive, back = parts_of_series(name)
    if not directive:
        return [target] if exists(target) else []
    of_series = re.compile(re.escape(front) + r"\d+" + re.escape(back))
    names = os.listdir(directory or ".") if os.path.isdir(directory or ".") else []
    return [os.path.join(directory, each) for each in sorted(filter(of_series.fullmatch, names))]


def already_there(names: list[str]) -> str:
    """The error for shards that exist."""
    others = f" and {len(names) - 1} more of its series exist" if len(names) > 1 else " exists"
    return f"{without_credentials(names[0])}{others} already: choose another name, or --force to replace"


def write_png(path: str | os.PathLike[str], image: Image) -> None:
    """Writes an image to a PNG, which appears under its name when it is complete; makes its folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    image.save(data := io.BytesIO(), "PNG")
    write_whole(open_destination(path, sync=False), data.getvalue())


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

    The journal says what is made of what. Shards get their names when they are complete and on the disk, so
    those that exist while there is a journal are complete. It stays locked inside ``with``. At the end,
    standard error names older shards of the same series.

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
    is of another run, if another process has it, or if there are a ``part`` and ``force``.
    """
    if output == "-" or url_scheme(output) == "pipe":
        if part is not None:
            raise WrongArgument(f"--part: {output} is one stream, and parts write shards: name a series")
        yield set()
        return
    path = str(journal or hidden_beside(output, ".journal"))
    this = part or Part(0, 1)
    numbers, notes = this.of(range(len(shards))), _notes_of(path, this)
    versions = _Versions(shards, inputs)
    versions.ask(numbers)  # before there is a journal: one may be missing
    now = {"version": 3, "output": output, "parts": this.count, **run}
    if part is not None or not is_local(path):
        if part is not None and force:
            raise WrongArgument("--force would remove what other parts wrote: remove it yourself")
        own = [shards[number] for number in numbers]
        make_folders([path, notes, *own, *(name for name in also if not is_series(name))])
        done = set(which_exist(own))
        strict = part is not None or bool(done)
        begun = _content(path)
        begins = force or not _is_same_run(begun, now, path, strict)
        if force:
            for name in sorted(done):
                _remove(name)
            done = set()
        elif begins:
            others = shards if part is not None and not inputs else ()
            there = sorted(done) or existing(output) or list(itertools.islice(which_exist(others), 1))
            begun = _content(path)  # after looking for shards: it is older than all shards of its run
            begins = not _is_same_run(begun, now, path, strict)
            if begins and there:
                raise FileExistsError(already_there(there))
        if begins:
            begun = _write_shared(path, now, replace=bool(begun))
            if not _is_same_run(begun, now, path, strict=True):
                why = "another process begins at this moment, or was killed when it did"
                raise ValueError(f"{path} is not complete: {why}: repeat this command, or remove the file")
        versions.compare(path, begun, numbers, begins and part is None)
        with _removing_partial(own):
            yield done
        # Two that began at the same moment may both have written a server's journal.
        _is_same_run(_content(path), now, path, strict=True)
        for each in (output, *also):
            warn_of_older(each, (*shards, *also))
        return
    make_folders([output, *also, path, notes])
    descriptor = lock(path, create=True)
    if descriptor is None:
        raise ValueError(f"{path} is locked: another process is writing {without_credentials(output)}")
    before = begun = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    done = set()
    try:
        done.update(which_exist([*shards, *also]))
        there = sorted(done.union(*map(existing, (output, *also))))
        begins = force or not _is_same_run(before, now, path, bool(there))
        if begins:
            if there and not force:
                raise FileExistsError(already_there(there))
            for name in sorted(done):
                _remove(name)
            done = set()
            begun = _encoded(now)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, begun, 0)
            os.fsync(descriptor)
        versions.compare(path, begun, numbers, begins)
        with _removing_partial((*shards, *also)):
            yield done
        for each in (output, *also):
            warn_of_older(each, (*shards, *also))
    except BaseException:
        if not before and not any(which_exist([name for name in shards if name not in done])):
            for name in (path, notes):
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
        self._inputs = inputs
        self._asked: dict[str, str] = {}

    def ask(self, numbers: Sequence[int]) -> list[str]:
        """The versions that the inputs of shards have now, or had when they were first asked for."""
        if not self._inputs:
            return []
        urls = [self._inputs[number] for number in numbers]
        new = [url for url in dict.fromkeys(urls) if url not in self._asked]
        self._asked.update(zip(new, versions_of(new), strict=True))
        return [self._asked[url] for url in urls]

    def compare(self, path: str, begun: bytes, numbers: Sequence[int], begins: bool) -> None:
        """Raises ``ValueError`` if inputs have changed since a journal was ``begun``, and notes new ones."""
        if not self._inputs:
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
                raise _other_run(path, f"inputs: {without_credentials(self._inputs[number])} has changed")


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
    with open_at(url, read_ahead=0) as stream:
        return stream_version(stream)


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
