"""Group the members of a tar shard into samples, by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from mpwds.errors import ShardError
from mpwds.pipeline.notes import add_note
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.tar.entries import MAX_DECOMPRESSED_BYTES, OpenAt, read_entries

Sample = dict[str, Any]

_KNOWN_LIMIT = 1 << 14
_NO_EXTENSION = "/"


def read_samples(
    url: str,
    offset: int = 0,
    *,
    open: OpenAt = open_at,
    select: Callable[[str], object] | None = None,
    rename: Callable[[str], str] | None = None,
    on_error: Callable[[Exception], object] | None = None,
    local_path: str | None = None,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Iterator[tuple[int, int | None, Sample]]:
    """Reads a shard's samples one after the other.

    A sample that was begun when the shard turns out to be damaged is not yielded: it may lack members.

    Args:
        url: The shard, as ``open`` understands it.
        offset: Byte offset of a sample's first header, at which to start.
        open: Opens ``url`` at a byte offset.
        select: Takes a member's name, returns whether to read it; what is not selected is skipped unread.
        rename: Takes a member's name, returns the one to give it, which ``select`` and grouping then see.
            Members under names like ``__meta__`` are left out before.
        on_error: Called with errors that concern one member alone: ``select`` or ``rename`` raised, or the
            sample has a member of that name. Their attributes ``member`` and ``offset`` say which. If it
            returns, the member is left out; by default they are raised.
        local_path: What each sample gets as ``__local_path__``; no such field where ``None``.
        max_decompressed_bytes: The most data that a member of a compressed shard may have.

    Yields:
        A sample's offset, the offset of the sample that follows (``None`` for the last), and the sample.

    Raises:
        ShardError: The shard is damaged, or a sample has two members of the same name.

    Example:
        >>> import io, tarfile, tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".tar") as shard:
        ...     with tarfile.open(shard.name, "w") as archive:
        ...         for name in "a/0.png", "a/0.cls", "a/1.png":
        ...             archive.addfile(tarfile.TarInfo(name), io.BytesIO())
        ...     for sample in read_samples(shard.name, select=lambda name: name.endswith(".png")):
        ...         print(sample[:2], sample[2]["__key__"], list(sample[2])[2:])
        (0, 1024) a/0 ['png']
        (1024, None) a/1 ['png']
    """
    choose, split = None, split_name
    if select is not None or rename is not None:
        choose, split = _chooser(url, select, rename, on_error), _split
    sample: Sample = {}
    key: str | None = None
    start = 0
    dotted = ""  # the last key that had dots in it, ...
    beginning: str | tuple[str, ...] = ()  # ... and what the names of its members begin with
    with closing(read_entries(url, offset, open, choose, True, max_decompressed_bytes)) as entries:
        for name, member_offset, data in entries:
            # Most often what precedes the first dot is the key, of the same sample or the next. But that dot
            # may be one of a directory or of a hidden file, and names like __meta__ are of no sample.
            found, dot, rest = name.partition(".")
            suffix = _NO_EXTENSION
            if dot and name[0] != "_" and (found == key or found[-1:] > "/"):
                suffix = _extensions[rest]
            if suffix is _NO_EXTENSION:
                if name.startswith(beginning):
                    found, suffix = dotted, _extensions[name[len(dotted) + 1 :]]
                if suffix is _NO_EXTENSION:
                    found, suffix = split(name)
                    if not found:
                        continue
                    if "." in found and found[0] != "_":
                        dotted, beginning = found, f"{found}."
            if found != key:
                if sample:
                    yield start, member_offset, sample
                start, key = member_offset, found
                sample = {"__key__": key, "__url__": url}
                if local_path is not None:
                    sample["__local_path__"] = local_path
            if suffix in sample:
                error = ShardError(
                    f"{name} at offset {member_offset} of {url}: sample {key!r} has a member {suffix!r} "
                    "already; in a shard each extension of a sample is there once"
                )
                _report(error, name, on_error)
            else:
                sample[suffix] = data
    if sample:
        yield start, None, sample


def split_name(name: str) -> tuple[str, str]:
    """A member's sample key and its extension in lower case; two empty strings if it is part of no sample.

    Example:
        >>> split_name("train/a.b/0017.seg.PNG"), split_name("README"), split_name("__meta__/x.png")
        (('train/a.b/0017', 'seg.png'), ('', ''), ('', ''))
    """
    return ("", "") if _is_meta(name) else _split(name)


def _is_meta(name: str) -> bool:
    """Whether a member describes the shard and is part of no sample: ``__meta__``, ``__meta__/x.json``."""
    if not name.startswith("__"):
        return False
    top = name.partition("/")[0]
    return top.endswith("__") and (len(top) >= 4 or top == name)


def _split(name: str) -> tuple[str, str]:
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot < 0 or dot == 0:
        return "", ""
    if dot == base and "." in name[name.rfind("/", 0, base - 1) + 1 : base]:
        return "", ""
    return name[:dot], name[dot + 1 :].lower()


class _Extensions(dict[str, str]):
    """What follows the first dot of a name to its extension; there is none if that dot is a directory's."""

    def __missing__(self, rest: str) -> str:
        if len(self) >= _KNOWN_LIMIT:
            self.clear()
        extension = self[rest] = _NO_EXTENSION if "/" in rest else rest.lower()
        return extension


_extensions = _Extensions()


def _chooser(
    url: str,
    select: Callable[[str], object] | None,
    rename: Callable[[str], str] | None,
    on_error: Callable[[Exception], object] | None,
) -> Callable[[str], str | None]:
    def choose(name: str) -> str | None:
        if _is_meta(name):
            return None
        renamed = name
        try:
            if rename is not None:
                renamed = rename(name)
            return renamed if select is None or select(renamed) else None
        except Exception as error:
            add_note(error, f"on the name of member {name} of {url}")
            _report(error, name, on_error)
            return None

    return choose


def _report(error: Exception, member: str, on_error: Callable[[Exception], object] | None) -> None:
    error.member = member  # type: ignore[attr-defined]  # an attribute that error handlers look for
    if on_error is None:
        raise error
    on_error(error)
