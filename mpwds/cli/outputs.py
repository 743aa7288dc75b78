"""Where commands write shards: patterns and folders, never over data that exists."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence

from mpwds.errors import StreamNotFound
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.urls import is_local, local_path, url_scheme, without_credentials
from mpwds.storage.writing.destinations import open_destination

_FILE = re.compile(r"\.(tar|tgz|tbz2|txz)(\.\w+)?$|\.\w+$")
_DIRECTIVE = re.compile(r"[-_.]?%\d*d")
_DIRECTIVE_ALONE = re.compile(r"%\d*d")
_SIZE = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\d+)?) *([kKmMgGtT]?[iI]?[bB]?)")
_UNITS = {
    f"{letter}{binary}{byte}": (1024 if binary else 1000) ** power
    for power, letter in enumerate(("", "k", "m", "g", "t"))
    for binary in ("", "i")
    for byte in ("", "b")
}


def shard_pattern(output: str, split: str = "", ending: str = ".tar") -> str:
    """Where a command's argument says that shards go: a pattern with a ``%`` directive, or one name.

    Args:
        output: Such a pattern, the name of an archive, ``"-"``, or a folder for shards called ``SPLIT-%06d``.
        split: The split, with which names begin; empty if there is only one.
        ending: Of shards in a folder.

    Example:
        >>> shard_pattern("data/x-%04d.tar", "train"), shard_pattern("x.tar.gz")
        ('data/train-x-%04d.tar', 'x.tar.gz')
        >>> shard_pattern("s3://bucket/data/", "val"), shard_pattern("data")
        ('s3://bucket/data/val-%06d.tar', 'data/shard-%06d.tar')
    """
    if output == "-":
        return output
    folder, slash, name = output.rpartition("/")
    if "%" not in name and not _FILE.search(name):
        return f"{output.rstrip('/') or '/'}/{split or 'shard'}-%06d{ending}"
    return f"{folder}{slash}{split}-{name}" if split else output


def numbered(pattern: str, number: int) -> str:
    """The name of a shard; only the last part of a pattern has a directive, as ``%20`` may be in a URL.

    Raises ``ValueError`` if that part has no directive for a number, or several.
    """
    folder, slash, name = pattern.rpartition("/")
    with contextlib.suppress(TypeError, ValueError):
        if name % 0 != name % 1:
            return f"{folder}{slash}{name % number}"
    raise ValueError(f"{name!r} needs one % directive for the number, such as %06d, to name several shards")


def beside(pattern: str, ending: str) -> str:
    """The name of a file that describes the shards of a pattern.

    Example:
        >>> beside("data/train-%06d.tar", ".json")
        'data/train.json'
    """
    folder, slash, name = pattern.rpartition("/")
    return f"{folder}{slash}{_DIRECTIVE.sub('', _FILE.sub('', name)) or 'dataset'}{ending}"


def write_file(url: str, data: bytes) -> None:
    """Writes a small file, which appears when it is complete."""
    destination = open_destination(url)
    try:
        destination.stream.write(data)
    except BaseException:
        destination.discard()
        raise
    destination.publish()


def refuse_existing(urls: Sequence[str], force: bool = False) -> None:
    """Raises ``FileExistsError`` if one of the files that are to be written exists, unless ``force``."""
    existing = [] if force else [url for url in urls if _exists(url)]
    if existing:
        others = f" and {len(existing) - 1} others exist" if len(existing) > 1 else " exists"
        raise FileExistsError(
            f"{without_credentials(existing[0])}{others} already: write elsewhere, or replace by --force"
        )


def refuse_existing_shards(pattern: str, force: bool = False) -> None:
    """``refuse_existing`` for shards whose number is unknown: any that a pattern names.

    Of shards that are not local, only the first is looked for.
    """
    folder, _, name = pattern.rpartition("/")
    if "%" not in name:
        refuse_existing([pattern], force)
    elif force or not is_local(pattern):
        refuse_existing([numbered(pattern, 0)], force)
    else:
        number = re.compile(_DIRECTIVE_ALONE.sub(r"\\d+", re.escape(name)))
        there = (
            sorted(os.listdir(local_path(folder) or ".")) if os.path.isdir(local_path(folder) or ".") else []
        )
        refuse_existing([f"{folder or '.'}/{each}" for each in there if number.fullmatch(each)])


def parse_size(text: str) -> int:
    """The bytes that a size says: ``500MB``, ``1.5GB``, ``64MiB``, ``3e9``.

    Raises ``ValueError`` if it is no size, or not positive.

    Example:
        >>> parse_size("1.5GB"), parse_size("64KiB")
        (1500000000, 65536)
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if size < 1:
        raise ValueError(f"{text!r} is not a size, such as 500MB, 1.5GB or 64MiB")
    return size


def make_folders(urls: Sequence[str]) -> None:
    """Makes the local folders that the files are to be in."""
    for folder in {os.path.dirname(local_path(url)) for url in urls if url != "-" and is_local(url)}:
        if folder:
            os.makedirs(folder, exist_ok=True)


def _exists(url: str) -> bool:
    if url == "-" or url_scheme(url) == "pipe":
        return False
    if is_local(url):
        return os.path.isfile(local_path(url))
    with contextlib.suppress(StreamNotFound, FileNotFoundError):
        gopen(url).close()
        return True
    return False
