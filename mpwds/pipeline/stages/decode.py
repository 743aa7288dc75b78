"""Decode the fields of dict samples by their extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mpwds.mistakes import explained
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.decoding.decoders import Decoder, HandlerSpec
from mpwds.pipeline.decoding.loads import MAX_DECOMPRESSED_BYTES
from mpwds.pipeline.filter import Applied, OneOfEach
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.randomness import seeded, unseeded
from mpwds.pipeline.stream import Stream


@explained
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
        handlers: Image specifications (``"rgb8"``, ``"torchrgb"``, ...); functions ``f(extension, data)``
            that return ``None`` for fields that they do not decode; and pairs ``("jpg jpeg", f)`` with a
            function of the data. See ``mpwds.pipeline.decoding.decoders.Decoder``.
        pre: Functions tried before ``handlers``; they replace the one that decompresses ``.gz``.
        post: Functions tried after ``handlers``; they replace those for text, numbers and arrays.
        only: The fields to decode, as a list or separated by spaces; all by default.
        partial: Whether to leave fields that do not hold bytes unchanged.
        handler: Called when a sample cannot be decoded; the default raises the exception.
        allow_pickle: Whether to unpickle ``pyd pickle pkl pth`` fields and arrays of Python objects. The
            author of the shards can then run any code here. Without it such fields are an error.
        max_decompressed_bytes: The most bytes that a ``.gz`` or ``.npz`` field may decompress to: 512 MiB by
            default.

    Raises:
        ValueError: An image specification is unknown, or ``max_decompressed_bytes`` is below 1.
        TypeError: A handler is neither a specification nor a function nor a pair.
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
class Decode(OneOfEach, called="decode"):
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
        super().__post_init__()
        self._decoder()  # checks the handlers

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        decoder = self._decoder()
        # The built-in handlers draw no random numbers.
        return Applied(source, self, decoder, unseeded if decoder.takes_views else seeded(context))

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
    """The values as a tuple; a string is split at spaces."""
    if values is None:
        return None
    return tuple(values.split() if isinstance(values, str) else values)
