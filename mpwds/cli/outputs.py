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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpwds.cli.options import Part
from mpwds.errors import WrongArgument
from mpwds.storage.caches.locks import lock, release
from mpwds.storage.streams.ahead import work_ahead
from mpwds.storage.streams.gopen import exists, gopen
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
    strict: bool = False,
) -> Iterator[set[str]]:
    """Starts a run, or resumes one that ended early; yields the shards and files that are complete.

    The journal says what is made of what. Shards get their names when they are complete and on the disk, so
    those that exist while there is a journal are complete. It stays locked inside ``with``. At the end,
    standard error names older shards of the same series.

    With a ``part``, other processes write the other parts of ``shards``. All parts, and a run of the whole,
    have the same journal, which is not locked then: two processes that do the same part write the same bytes.
    That also holds for a journal that is not local.

    ``run`` says what is made of what, as JSON can have it: a run that continues must have the same. ``force``
    begins again, and removes the shards that exist. The ``journal``, a file beside the output by default,
    stays: the same run again finds nothing to do. ``also`` are further series and files that the run writes.
    A journal of another run that wrote no shard is replaced, unless ``strict``: a run may write others first.

    Raises ``FileExistsError`` if there are shards or files without a journal; ``ValueError`` if the journal
    is of another run, if another process has it, or if there are a ``part`` and ``force``.
    """
    if output == "-" or url_scheme(output) == "pipe":
        if part is not None:
            raise WrongArgument(f"--part: {output} is one stream, and parts write shards: name a series")
        yield set()
        return
    path = str(journal or hidden_beside(output, ".journal"))
    if part is not None or not is_local(path):
        if part is not None and force:
            raise WrongArgument("--force would remove what other parts wrote: remove it yourself")
        own = shards if part is None else part.of(shards)
        make_folders([path, *own, *(name for name in also if not is_series(name))])
        complete = _share_journal(path, output, shards, own, _journal(output, run), force, strict)
        with _removing_partial(own):
            yield complete
        for each in (output, *also):
            warn_of_older(each, (*shards, *also))
        return
    make_folders([output, *also, path])
    descriptor = lock(path, create=True)
    if descriptor is None:
        raise ValueError(f"{path} is locked: another process is writing {without_credentials(output)}")
    before = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    done: set[str] = set()
    try:
        done.update(which_exist([*shards, *also]))
        now = _journal(output, run)
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
        with _removing_partial((*shards, *also)):
            yield done
        for each in (output, *also):
            warn_of_older(each, (*shards, *also))
    except BaseException:
        if not before and not any(which_exist([name for name in shards if name not in done])):
            os.unlink(path)
        raise
    finally:
        release(descriptor)


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


def hidden_beside(output: str, ending: str) -> str:
    """The name of a file that a command has beside its output, while it has not ended or longer.

    Example:
        >>> hidden_beside("data/out-%d.tar", ".journal")
        'data/.out-.tar.journal'
    """
    folder, slash, name = (local_path(output) if is_local(output) else output).rpartition("/")
    front, _, back = parts_of_series(name)
    return f"{folder}{slash}.{front}{back}{ending}"


def _journal(output: str, run: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": 2, "output": output, **run}, indent=1).encode()


def _share_journal(
    path: str,
    output: str,
    shards: Sequence[str],
    own: Sequence[str],
    now: bytes,
    force: bool,
    strict: bool,
) -> set[str]:
    """Writes the journal of a run, unless it is there; returns what is complete of ``own``."""
    done = set(which_exist(own))
    if force:
        for name in sorted(done):
            _remove(name)
        write_whole(open_destination(path), now)
        return set()
    if _content(path) != now:
        there = existing(output) or list(itertools.islice(which_exist(shards), 1))
        # Read after looking for shards: the journal is older than all shards of its run.
        before = _content(path)
        continues = (there or strict) and _continues(before, now, without_credentials(path))
        if there and not continues:
            raise FileExistsError(already_there(there))
        if before != now:
            write_whole(open_destination(path, replace=bool(before)), now)
    return done


def _content(url: str) -> bytes:
    try:
        with gopen(url) as stream:
            return stream.read()
    except FileNotFoundError:
        return b""


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
            f"{path} says that a run was begun with different {names}: repeat it as it was, choose another "
            "name, or begin again: without --part, --force removes its local shards"
        )
    return True


def _remove(name: str) -> None:
    if not is_local(name):
        raise ValueError(f"{without_credentials(name)} exists and is not local: --force cannot remove it")
    os.unlink(local_path(name))
