"""Decode the fields of dict samples by their extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count, one_of_each
from mpwds.pipeline.decoding.decoders import Decoder, HandlerSpec
from mpwds.pipeline.decoding.decompress import MAX_DECOMPRESSED_BYTES
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handled import Applied
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.randomness import seeded, unseeded
from mpwds.pipeline.stream import Stream


def decode(
    *handlers: HandlerSpec,
    pre: Iterable[Callable[..., Any]] | None = None,
    post: Iterable[Callable[..., Any]] | None = None,
    only: str | Iterable[str] | None = None,
    partial: bool = False,
    handler: Handler = reraise_exception,
    allow_pickle: bool = False,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Decode:
    """Stage that decodes the fields of dict samples by their extensions.

    Args:
        handlers: Image specifications (``"rgb8"``, ``"torchrgb"``, ...), functions ``f(extension, data)``
            that return ``None`` for fields that they do not decode, and pairs ``("jpg jpeg", f)`` with a
            function of the data. See ``mpwds.pipeline.decoding.decoders.Decoder``.
        pre: Functions tried before ``handlers``, in place of the one that unpacks ``.gz``.
        post: Functions tried after ``handlers``, in place of those for text, numbers and arrays.
        only: The fields to decode, as a list or separated by spaces; all by default.
        partial: Whether to leave fields as they are that do not hold bytes.
        handler: What to do about a sample that cannot be decoded; raises by default.
        allow_pickle: Whether to unpickle ``pyd pickle pkl pth`` fields and arrays of Python objects. The
            author of the shards can then run any code here. Without it they are an error.
        max_decompressed_bytes: The most that a ``.gz`` or ``.npz`` field may decompress to: by default 512
            MiB.

    Raises:
        ValueError: An image specification is unknown, or ``max_decompressed_bytes`` is below 1.
        TypeError: A handler is none of these.
        DecodeError: While iterating, a field cannot be decoded.

    Source:
        ``webdataset.WebDataset.decode``.

    Example:
        >>> list(decode()([{"__key__": "a", "cls": b"7", "txt": b"seven"}]))
        [{'__key__': 'a', 'cls': 7, 'txt': 'seven'}]
    """
    lists = (as_tuple(pre), as_tuple(post), as_tuple(only))
    return Decode(handlers, *lists, partial, handler, allow_pickle, max_decompressed_bytes)


@dataclass(frozen=True)
class Decode(Filter):
    """The stage that ``decode`` makes."""

    handlers: tuple[HandlerSpec, ...]
    pre: tuple[Callable[..., Any], ...] | None = None
    post: tuple[Callable[..., Any], ...] | None = None
    only: tuple[str, ...] | None = None
    partial: bool = False
    handler: Handler = reraise_exception
    allow_pickle: bool = False
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES

    def __post_init__(self) -> None:
        self._decoder()
        check_handler("decode", self.handler)

    def __str__(self) -> str:
        more = options(
            pre=(self.pre, None),
            post=(self.post, None),
            only=(self.only, None),
            partial=(self.partial, False),
            handler=(self.handler, reraise_exception),
            allow_pickle=(self.allow_pickle, False),
            max_decompressed_bytes=(self.max_decompressed_bytes, MAX_DECOMPRESSED_BYTES),
        )
        return f"decode({arguments(*self.handlers, **more)})"

    def count_of(self, incoming: Count) -> Count:
        return one_of_each(self, incoming, self.handler)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        call = unseeded if self.takes_views else seeded(context)
        return Applied(source, self, self._decoder(), call, self.handler)

    @property
    def takes_views(self) -> bool:
        """Whether all handlers are this library's own, which take memoryviews and draw no random numbers."""
        return self._decoder().takes_views

    def _decoder(self) -> Decoder:
        return Decoder(
            *self.handlers,
            pre=self.pre,
            post=self.post,
            only=self.only,
            partial=self.partial,
            allow_pickle=self.allow_pickle,
            max_decompressed_bytes=self.max_decompressed_bytes,
        )


def as_tuple(values: Iterable[Any] | None) -> tuple[Any, ...] | None:
    """Options as the frozen stage keeps them; those in one string are separated by spaces."""
    if values is None:
        return None
    return tuple(values.split() if isinstance(values, str) else values)
