"""Read the members of a tar archive, fast and with every length checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mpwds.storage.streams.gopen import open_at
from mpwds.storage.tar.entries import OpenAt, read_entries


class Member(NamedTuple):
    """A regular file in a tar archive.

    Attributes:
        name: Its name; bytes that are not UTF-8 appear as surrogates (``surrogateescape``).
        offset: Byte offset of its first header in the archive, where reading can start again.
        data: Its contents.
    """

    name: str
    offset: int
    data: bytes


def read_members(
    url: str,
    offset: int = 0,
    *,
    open: OpenAt = open_at,
    select: Callable[[str], object] | None = None,
    rename: Callable[[str], str] | None = None,
) -> Iterator[Member]:
    """Yield the regular files of a tar archive in their order; directories, links and devices are skipped.

    Reads v7, ustar, GNU and pax archives, long names and large sizes included, also several archives
    written one after the other with zero blocks between them, and all that compressed by gzip, bzip2, xz or
    zstd. Memory is bounded: no length in the archive is trusted, it is compared with what the file holds or
    the stream really gives before so much is allocated. The stream is open while the generator is.

    An archive that ends behind a member, without the zero blocks that should end it, is read to its end and
    then gives a ``RuntimeWarning``: it may be what is left of an upload that broke off.

    Args:
        url: A path or URL for ``open``; see ``mpwds.storage.streams.gopen`` for the default.
        offset: Byte offset at which to start: 0, or a ``Member.offset``. In a compressed archive it counts
            decompressed bytes, and all before it is decompressed again. A global pax header before it is not
            seen.
        open: Opens ``url`` at a byte offset.
        select: Takes a member's name, returns whether to read it; what is not selected is skipped unread.
        rename: Takes a member's name, returns the name to yield. ``select`` gets that name.

    Raises:
        FileNotFoundError: There is no such file. Other errors of ``open`` pass, too.
        ShardError: The archive is damaged or truncated, holds GNU sparse files, or is followed by bytes that
            are no archive. The message gives the file and the offset. Members before the fault have been
            yielded.
        ImportError: It is compressed by zstd, and ``zstandard`` is missing.
        ValueError: ``offset`` is negative.

    Source:
        POSIX.1-2001 ``pax`` (ustar and pax interchange formats); the GNU tar manual, "Basic Tar Format".

    Example:
        >>> import io, tarfile, tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".tar") as shard:
        ...     with tarfile.open(shard.name, "w") as archive:
        ...         info = tarfile.TarInfo("000.txt")
        ...         info.size = 5
        ...         archive.addfile(info, io.BytesIO(b"hello"))
        ...     list(read_members(shard.name))
        [Member(name='000.txt', offset=0, data=b'hello')]
    """
    choose = None
    if rename is not None or select is not None:

        def choose(name: str) -> str | None:
            name = name if rename is None else rename(name)
            return name if select is None or select(name) else None

    make_member = tuple.__new__
    for entry in read_entries(url, offset, open, choose):
        yield make_member(Member, entry)
