"""Decode the fields of dict samples by their extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.applied import Applied
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count, one_of_each
from mpwds.pipeline.decoding.decoders import Decoder, HandlerSpec
from mpwds.pipeline.filter import Filter
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
) -> Decode:
    """Stage that decodes the fields of dict samples by their extensions.

    Args:
        handlers: Image specs (``"rgb8"``, ``"torchrgb"``, ...), functions ``f(extension, data)`` that
            return ``None`` for what they do not handle, and pairs ``("jpg jpeg", f)`` with a function of the
            data.
        pre: Functions tried before ``handlers``, in place of the one that unpacks ``.gz``.
        post: Functions tried after ``handlers``, in place of those for text, numbers and arrays.
        only: The fields to decode, as a list or separated by spaces; all by default.
        partial: Whether to leave fields alone that are no bytes.
        handler: What to do about a sample that cannot be decoded; raises by default.
        allow_pickle: Unpickle ``pyd pickle pkl pth`` and arrays of Python objects, which lets whoever wrote
            the shards run any code here. Without it they are an error.

    Raises:
        ValueError: An image spec is unknown.
        TypeError: A handler is none of these.

    Example:
        >>> list(decode()([{"__key__": "a", "cls": b"7"}]))
        [{'__key__': 'a', 'cls': 7}]
    """
    return Decode(handlers, as_tuple(pre), as_tuple(post), as_tuple(only), partial, handler, allow_pickle)


@dataclass(frozen=True)
class Decode(Filter):
    """Stage that decodes each field of a dict sample as ``mpwds.pipeline.decoding.decoders.Decoder`` does.

    Args:
        handlers: Image specs (``"rgb8"``, ``"torchrgb"``, ...), functions ``f(extension, data)`` that
            return ``None`` for what they do not handle, and pairs ``("jpg jpeg", f)``.
        pre: Functions tried before ``handlers``, in place of the one that unpacks ``.gz``.
        post: Functions tried after ``handlers``, in place of those for text, numbers and arrays.
        only: The fields to decode; all by default.
        partial: Whether to leave fields alone that are no bytes, decoded before.
        handler: What to do about a sample that cannot be decoded; raises by default.
        allow_pickle: Whether to load pickles, which may run any code.

    Raises:
        DecodeError: While iterating, a field cannot be decoded.

    Example:
        >>> from mpwds.pipeline.stream import collect
        >>> collect(Decode(()), [{"__key__": "a", "cls": b"7", "txt": b"seven"}])
        [{'__key__': 'a', 'cls': 7, 'txt': 'seven'}]
    """

    handlers: tuple[HandlerSpec, ...]
    pre: tuple[Callable[..., Any], ...] | None = None
    post: tuple[Callable[..., Any], ...] | None = None
    only: tuple[str, ...] | None = None
    partial: bool = False
    handler: Handler = reraise_exception
    allow_pickle: bool = False

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
        )


def as_tuple(values: Iterable[Any] | None) -> tuple[Any, ...] | None:
    """Options as the frozen stage keeps them; those in one string are separated by spaces."""
    if values is None:
        return None
    return tuple(values.split() if isinstance(values, str) else values)
