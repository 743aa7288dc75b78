"""Decode the fields of dict samples by their extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.applied import Applied
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.decoders import Decoder
from mpwds.pipeline.notes import arguments
from mpwds.pipeline.randomness import seeded, unseeded
from mpwds.pipeline.stream import Stream


@dataclass(frozen=True)
class Decode:
    """Stage that decodes each field of a dict sample as ``mpwds.pipeline.decoders.Decoder`` does.

    Args:
        handlers: Image specs (``"rgb8"``, ``"torchrgb"``, ...) and functions ``f(extension, data)``
            that return ``None`` for what they do not handle.
        pre: Functions tried before ``handlers``, in place of the one that unpacks ``.gz``.
        post: Functions tried after ``handlers``, in place of those for text, numbers and arrays.
        only: The fields to decode; all by default.
        partial: Whether to leave fields alone that are no bytes, decoded before.

    Raises:
        DecodeError: While iterating, a field cannot be decoded.

    Example:
        >>> from mpwds.pipeline.stream import collect
        >>> collect(Decode(()), [{"__key__": "a", "cls": b"7", "txt": b"seven"}])
        [{'__key__': 'a', 'cls': 7, 'txt': 'seven'}]
    """

    handlers: tuple[str | Callable[..., Any], ...]
    pre: tuple[Callable[..., Any], ...] | None = None
    post: tuple[Callable[..., Any], ...] | None = None
    only: tuple[str, ...] | None = None
    partial: bool = False

    def __post_init__(self) -> None:
        self._decoder()

    def __str__(self) -> str:
        options = {"pre": self.pre, "post": self.post, "only": self.only, "partial": self.partial or None}
        return f"decode({arguments(*self.handlers, **{k: v for k, v in options.items() if v is not None})})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        foreign = self.pre or self.post or not all(isinstance(handler, str) for handler in self.handlers)
        return Applied(source, self, self._decoder(), seeded(context) if foreign else unseeded)

    def _decoder(self) -> Decoder:
        return Decoder(*self.handlers, pre=self.pre, post=self.post, only=self.only, partial=self.partial)


def as_tuple(values: Iterable[Any] | None) -> tuple[Any, ...] | None:
    """Options as the frozen stage keeps them; those in one string are separated by spaces."""
    if values is None:
        return None
    return tuple(values.split() if isinstance(values, str) else values)
