"""Outputs of commands: their names, and never over data that exists."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mpwds.errors import WrongArgument
from mpwds.storage.streams.ahead import work_ahead
from mpwds.storage.streams.gopen import exists
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

_FILE = re.compile(r"\.(tar(\.\w+)?|tgz|tbz2|txz|msgpacks?|msg|mp|cbors?)$", re.IGNORECASE)
_OWN = re.compile(r"(file:(//)?)?/(dev/(std(in|out)$|fd/)|proc/self/fd/)")
_STDOUT = re.compile(r"-|(file:(//)?)?/(dev/(stdout|fd/1)|proc/self/fd/1)")
_REQUESTS = 64  # at a time
_NUMBER = re.compile(r"[-_.]?%(?:0\d+)?d")
_DIRECTIVE = re.compile(r"%(?=0\d+d)")
_BRACES = re.compile(r"\{\d+\.\.\d+\}")


def is_stream(url: str) -> bool:
    """True if a URL names standard input or output, or a command's, which is read or written once."""
    return is_own(url) or url_scheme(url) == "pipe"


def is_own(url: str) -> bool:
    """True if a URL names what this process alone has open: standard input, a shell's ``<(command)``.

    Example:
        >>> is_own("-"), is_own("/dev/fd/63"), is_own("pipe:cat x.tar")
        (True, True, False)
    """
    return url == "-" or _OWN.match(url) is not None


def is_stdout(output: str) -> bool:
    """True if an output is standard output: what a command says goes to standard error, then."""
    return _STDOUT.fullmatch(output) is not None


def dashed(output: str) -> str:
    """The output, which is ``-`` if it is standard output: under other names that may be a file that exists.

    Example:
        >>> dashed("/dev/stdout"), dashed("x.tar")
        ('-', 'x.tar')
    """
    return "-" if is_stdout(output) else output


def has_no_place(output: str) -> bool:
    """True if an output is a stream, or a local pipe or device: no file can be beside it."""
    path = path_of(output)
    return is_stream(output) or (path is not None and os.path.exists(path) and not os.path.isfile(path))


def path_of(url: str) -> str | None:
    """The path of a local file or series; ``None`` if the URL names a stream, or what is elsewhere.

    Example:
        >>> path_of("file:///data/my%20x-%06d.tar"), path_of("s3://bucket/x.tar")
        ('/data/my x-%06d.tar', None)
    """
    if url == "-" or not is_local(url):
        return None
    # The %06 of a series' %06d is no escape.
    return local_path(_DIRECTIVE.sub("%25", url) if url_scheme(url) == "file" else url)


def is_file(output: str) -> bool:
    """True if an argument names one file or a series, a device or a command, rather than a folder.

    Example:
        >>> is_file("x.tar.gz"), is_file("https://host/put?key=1"), is_file("x-%d"), is_file("data-1.0")
        (True, True, True, False)
    """
    if is_stream(output) or is_series(output):
        return True
    if is_local(output):
        path = local_path(output)
        return not os.path.isdir(path) and (_FILE.search(output) is not None or os.path.exists(path))
    name, query, _ = output.partition("?")
    return bool(query) or _FILE.search(name) is not None


def shard_pattern(output: str, split: str = "", splits: Collection[str] = (), ending: str = ".tar") -> str:
    """The pattern or the name that a command's argument stands for: a folder holds ``SPLIT-%06d``.

    A ``split``, of the ``splits`` that there are, replaces ``%s``, or the name of a split with which the
    pattern begins; else the pattern begins with it.

    Example:
        >>> shard_pattern("data/x-%04d.tar", "val"), shard_pattern("train-%d.tar", "val", ["train", "val"])
        ('data/val-x-%04d.tar', 'val-%d.tar')
        >>> shard_pattern("s3://bucket/data/", "val"), shard_pattern("data"), shard_pattern("%s/x.tar", "val")
        ('s3://bucket/data/val-%06d.tar', 'data/shard-%06d.tar', 'val/x.tar')
    """
    if _BRACES.search(output) and url_scheme(output) != "pipe":
        series = _BRACES.sub("%06d", output)
        raise WrongArgument(f"{output}: braces are for shards to read: name the series to write {series}")
    if "%s" in output and not split:
        raise WrongArgument(f"{output}: %s stands for the split, and there is only one")
    if "%s" in output:
        return output.replace("%s", split)
    if is_stdout(output) and len(splits) > 1:
        raise WrongArgument("standard output is one stream, and there are splits: write %s-%06d.tar")
    if is_stdout(output):
        return dashed(output)
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
    """The names of shards of a series, or of one shard."""
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

    A pattern stands for all local files that are of its series, and for the first shard on a server.
    """
    if force:
        return
    there = [found for name in names for found in existing(name)]
    there += which_exist([numbered(name, 0) for name in names if not is_local(name)])
    if there:
        raise FileExistsError(already_there(there))


def refuse_limits(output: str, limit: object) -> None:
    """Raises ``WrongArgument`` if a limit is given for what is one file by its name."""
    if limit and not is_series(output) and is_file(output):
        raise WrongArgument(f"{output} is one file, so limits mean nothing: name a series, as out-%06d.tar")


def refuse_own_input(inputs: Sequence[str], output: str) -> None:
    """Raises ``WrongArgument`` if what is read would be replaced, as the output or a part of its series."""
    paths = filter(None, map(path_of, (output, *existing(output))))
    replaced = set(map(os.path.realpath, filter(os.path.exists, paths)))
    for url in inputs if replaced else ():
        if (path := path_of(url)) and os.path.realpath(path) in replaced:
            raise WrongArgument(f"{url} is read, so it cannot be written as well: choose another output")


def refuse_inside(source: str, output: str) -> None:
    """Raises ``WrongArgument`` if shards would lie in the folder that is read: a next run would read them."""
    paths = [os.path.realpath(path) for path in map(path_of, (source, output)) if path]
    if len(paths) == 2 and os.path.isdir(paths[0]) and os.path.commonpath(paths) == paths[0]:
        raise WrongArgument(f"{output} would lie in {source}, which is read: choose another folder")


def make_folders(urls: Sequence[str]) -> None:
    """Makes the local folders that the files are to be in, and removes what killed writers left of them."""
    paths = list(filter(None, map(path_of, urls)))
    for folder in filter(None, {os.path.dirname(path) for path in paths}):
        os.makedirs(folder, exist_ok=True)
    remove_partial(paths)


def warn_of_older(target: str, written: Iterable[str]) -> None:
    """Names local shards of the series on standard error that are not among those written now."""
    older = sorted({*existing(target)} - {*map(path_of, written)})
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
    if (path := path_of(target)) is None:
        return []
    directory, name = os.path.split(path)
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


def write_png(path: str | os.PathLike[str], image: Any) -> None:
    """Writes an image to a PNG, which appears under its name when it is complete; makes its folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    image.save(data := io.BytesIO(), "PNG")
    write_whole(open_destination(path, sync=False), data.getvalue())
