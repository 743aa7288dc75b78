"""Group the members of a tar shard into samples, by their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpwds.errors import ShardError
from mpwds.storage.tar import read_members

Sample = dict[str, Any]


def read_samples(url: str, offset: int = 0) -> Iterator[tuple[int, int | None, Sample]]:
    """Reads a shard's samples one after the other.

    Args:
        url: The shard.
        offset: Byte offset of a sample's first header, at which to start.

    Yields:
        A sample's offset, the offset of the sample that follows (``None`` for the last), and the sample.

    Raises:
        ShardError: The shard is damaged, or a sample has two members of the same name.
    """
    sample: Sample | None = None
    start = 0
    for member in read_members(url, offset):
        key, suffix = split_name(member.name)
        if not key:
            continue
        if sample is None or key != sample["__key__"]:
            if sample is not None:
                yield start, member.offset, sample
            sample = {"__key__": key, "__url__": url}
            start = member.offset
        if suffix in sample:
            raise ShardError(
                f"{member.name} at offset {member.offset} of {url}: sample {key!r} has a member "
                f"{suffix!r} already; in a shard each extension of a sample is there once"
            )
        sample[suffix] = member.data
    if sample is not None:
        yield start, None, sample


def split_name(name: str) -> tuple[str, str]:
    """A member's sample key and its extension in lower case; two empty strings if it is part of no sample.

    Example:
        >>> split_name("train/a.b/0017.seg.PNG"), split_name("README"), split_name("__meta__/x.png")
        (('train/a.b/0017', 'seg.png'), ('', ''), ('', ''))
    """
    if name.startswith("__"):
        top = name.partition("/")[0]
        if len(top) >= 4 and top.endswith("__"):
            return "", ""
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot < 0 or dot == 0:
        return "", ""
    if dot == base and "." in name[name.rfind("/", 0, base - 1) + 1 : base]:
        return "", ""
    return name[:dot], name[dot + 1 :].lower()
