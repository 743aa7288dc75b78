"""Names of a shard's members: which sample a member belongs to, and its extension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def split_name(name: str, allow_meta: bool = False) -> tuple[str, str]:
    """The key of a member's sample, and the member's extension in lower case.

    The key reaches up to the first dot of the name's last part. Both are empty for a name without a dot
    there, a hidden file in the root or in a folder that has a dot in its name, and, unless ``allow_meta``,
    a member that describes the shard.

    Example:
        >>> split_name("train/0017.seg.PNG"), split_name("README"), split_name("__meta__/x.json")
        (('train/0017', 'seg.png'), ('', ''), ('', ''))
    """
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot <= base and (dot <= 0 or "." in name[name.rfind("/", 0, base - 1) + 1 : base]):
        return "", ""
    if name.startswith("__") and not allow_meta and is_meta(name):
        return "", ""
    return name[:dot], name[dot + 1 :].lower()


def is_meta(name: str) -> bool:
    """True if a member describes the shard: ``__meta__``, ``__meta__/x.json``."""
    top = name.partition("/")[0]
    return name.startswith("__") and top.endswith("__") and (len(top) >= 4 or top == name)


def group(members: Iterable[tuple[str, T]]) -> Iterator[tuple[str, list[tuple[str | None, T]]]]:
    """Groups successive members, given as (name, anything), into samples.

    Yields each sample's key and its members as (extension, anything). A member that belongs to no sample has
    the extension ``None``: it goes with the sample after it, or with the last one. An archive without samples
    gives the key ``""``, if it has members. Two members of a sample may have one extension.

    Example:
        >>> list(group([("a.png", 1), ("a.cls", 2), ("README", 3), ("b.png", 4)]))
        [('a', [('png', 1), ('cls', 2)]), ('b', [(None, 3), ('png', 4)])]
    """
    key = ""
    sample: list[tuple[str | None, T]] = []
    between: list[tuple[str | None, T]] = []  # members of no sample since the last that has one
    for name, member in members:
        found, extension = split_name(name)
        if not found:
            between.append((None, member))
            continue
        if found != key:
            if key:
                yield key, sample
            key, sample = found, []
        if between:
            sample += between
            between = []
        sample.append((extension, member))
    if sample or between:
        yield key, sample + between
