"""A tar shard behind a server that answers ranges: only what is asked for is fetched."""

from __future__ import annotations

from mpwds.errors import ShardError, StreamError
from mpwds.storage.streams.gopen import open_range
from mpwds.storage.streams.resuming import Version
from mpwds.storage.streams.urls import without_credentials

_HEAD_BYTES = 16 * 1024


class RemoteShard:
    """A shard that is read by ranges, each a request of its own; its first bytes are kept.

    Args:
        url: The shard, on a web server or in cloud storage.

    Attributes:
        url: Its name in errors.
        end: Its size in bytes.
        version: Its entity tag or date; empty if the server gives neither.

    Raises:
        StreamError: It cannot be read, or not by ranges; or, while reading, it has changed.
    """

    # A round trip of 20 ms is as long as 256 KiB take at 100 Mbit/s.
    window_bytes = 256 * 1024, 8 * 1024 * 1024

    def __init__(self, url: str) -> None:
        self.url = without_credentials(url)
        self._address = url
        self._version: Version | None = None
        self.end = _HEAD_BYTES
        self._head = self._fetch(_HEAD_BYTES, 0)
        if self._version is None or self._version.size is None:
            raise StreamError(
                f"{self.url} cannot be read by ranges: that takes a web server or cloud storage that tells a "
                "file's size; read a copy, without remote=True",
                self.url,
            )
        self.end = self._version.size
        self.version: tuple[int | str, ...] = tuple(
            filter(None, (self._version.etag or self._version.modified,))
        )

    def read(self, size: int, offset: int) -> bytes:
        """``size`` bytes from ``offset`` on; fewer at the end."""
        end = min(offset + size, self.end)
        if end <= len(self._head):
            return self._head[offset:end]
        data = self._fetch(end - offset, offset)
        if len(data) < end - offset:
            raise ShardError(f"{self.url} ends at byte {offset + len(data)}, and had {self.end} bytes before")
        return data

    def _fetch(self, size: int, offset: int) -> bytes:
        with open_range(self._address, offset, size) as stream:
            version = getattr(getattr(stream, "raw", None), "version", None)
            known, self._version = self._version, version
            if known is not None and version is not None and known.is_recognisable:
                difference = known.difference(version)
                if difference:
                    raise StreamError(
                        f"{self.url} changed while it was read: {difference}; open the dataset again, and do "
                        "not write over shards in use",
                        self.url,
                        offset,
                    )
            return stream.read(size)
