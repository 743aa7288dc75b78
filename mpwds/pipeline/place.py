"""What a person calls an element, with the parts that a program needs."""

from __future__ import annotations

from collections.abc import Sequence


class Place(str):
    """A description such as ``sample "0017" of x-000003.tar``, with its parts as attributes.

    Args:
        text: The description.
        url: The shard, where the element has one.
        key: The sample's key, where it has one.
        offset: Byte offset of the sample's first header in the shard, where it has one.
        listed: If the element is a shard, how the list of shards was given, and the URLs in it.

    Example:
        >>> place = Place('sample "0017" of x.tar', url="x.tar", key="0017", offset=512)
        >>> f"on {place}", place.key, place.row_of("row 3").url
        ('on sample "0017" of x.tar', '0017', 'x.tar')
    """

    __slots__ = ("key", "listed", "offset", "url")

    url: str | None
    key: str | None
    offset: int | None
    listed: tuple[str, Sequence[str]] | None

    def __new__(
        cls,
        text: str,
        url: str | None = None,
        key: str | None = None,
        offset: int | None = None,
        listed: tuple[str, Sequence[str]] | None = None,
    ) -> Place:
        place = super().__new__(cls, text)
        place.url = url
        place.key = key
        place.offset = offset
        place.listed = listed
        return place

    def row_of(self, row: str) -> Place:
        """The place of a part: ``row 3 of sample "0017" of x.tar``, in the same shard and sample."""
        return Place(f"{row} of {self}", self.url, self.key, self.offset)

    @staticmethod
    def of_sample(sample: object, fallback: Place) -> Place:
        """The place of ``sample`` by its ``__key__`` and ``__url__``; ``fallback`` where it has none."""
        if not isinstance(sample, dict) or not isinstance(sample.get("__key__"), str):
            return fallback
        key, url = sample["__key__"], sample.get("__url__", fallback.url)
        shard = f" of {url}" if url else ""
        return Place(f'sample "{key}"{shard}', url, key, fallback.offset)
