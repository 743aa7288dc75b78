"""Decode the fields of dict samples: ``decode`` by extensions, ``xdecode`` by patterns, from streams."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from mpwds.errors import DecodeError
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.decoding.decoders import NAMES_KEPT, Decoder, HandlerSpec
from mpwds.pipeline.decoding.fields import MAX_DECOMPRESSED_BYTES, decode_error, unpickle_loads
from mpwds.pipeline.error_context import given_options
from mpwds.pipeline.filter import OneToOneStage
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stream import Stream
from mpwds.suggestions import shown, suggest_arguments


@suggest_arguments
def decode(
    *handlers: HandlerSpec,
    pre: Iterable[Callable[..., Any]] | None = None,
    post: Iterable[Callable[..., Any]] | None = None,
    only: str | Iterable[str] | None = None,
    partial: bool = False,
    handler: Handler = reraise_exception,
    allow_pickle: bool = False,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    threads: int = 1,
    in_order: bool = True,
) -> Decode:
    """Stage that decodes the fields of dict samples by their extensions.

    Args:
        handlers: An image specification of the table below; ``mpwds.AudioDecoder()`` and
            ``mpwds.VideoDecoder()``; functions ``f(extension, data)`` that return ``None`` for fields that
            they do not decode; and pairs ``("jpg jpeg", f)`` with a function of the data. Without a handler,
            a field of images, sound or video stays bytes. See ``mpwds.pipeline.decoding.decoders.Decoder``.
        pre: Functions tried before ``handlers``; they replace the one that decompresses ``.gz``.
        post: Functions tried after ``handlers``; they replace those for text, numbers and arrays.
        only: The fields to decode, as a list or separated by spaces; all by default.
        partial: Whether to leave fields that do not hold bytes unchanged.
        handler: Called when a sample cannot be decoded; the default raises the exception.
        allow_pickle: Whether to unpickle ``pyd pickle pkl pth`` fields and arrays of Python objects. The
            author of the shards can then run any code here. Without it such fields are an error.
        max_decompressed_bytes: The most bytes that a ``.gz`` or ``.npz`` field may decompress to: 512 MiB by
            default.
        threads: Samples that are decoded at a time; it and ``in_order`` are as for :func:`mpwds.map`.
        in_order: Whether samples keep their order.

    ===================================  ================================================================
    ``l8 rgb8 rgba8``                    uint8 array of shape (H, W), (H, W, 3), (H, W, 4)
    ``l rgb rgba``                       float32 array in [0, 1], the same shapes
    ``torchl8 torchrgb8 torchrgba8``     uint8 tensor of shape (H, W), (3, H, W), (4, H, W)
    ``torchl torchrgb torchrgba``        float32 tensor in [0, 1], the same shapes; ``torch`` is ``torchrgb``
    ``pill pilrgb pilrgba``              ``PIL.Image.Image`` of mode L, RGB, RGBA; ``pil`` is ``pilrgb``
    ===================================  ================================================================

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
    given: dict[str, Any] = {"pre": _as_tuple(pre), "post": _as_tuple(post), "only": _as_tuple(only)}
    given.update(partial=partial, allow_pickle=allow_pickle, max_decompressed_bytes=max_decompressed_bytes)
    return Decode(handlers, given_options(Decoder.__init__, given), handler, threads, in_order)


@dataclass(frozen=True)
class Decode(OneToOneStage, called="decode"):
    handlers: tuple[HandlerSpec, ...]
    options: dict[str, Any]  # of ``Decoder``, which differ from its defaults
    handler: Handler = reraise_exception
    threads: int = 1
    in_order: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        Decoder(*self.handlers, **self.options)  # checks them

    def imported_in_workers(self) -> tuple[str, ...]:
        are_tensors = any(
            isinstance(each, str) and each.lower().startswith("torch") for each in self.handlers
        )
        return ("torch",) if are_tensors else ()

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        decoder = Decoder(*self.handlers, **self.options)
        if context.worker:
            decoder.loads.untold.clear()  # the first worker warns for all
        # The built-in handlers draw no random numbers.
        return self.mapped(source, decoder, None if decoder.takes_views else seeded(context))


def _as_tuple(values: Iterable[Any] | None) -> tuple[Any, ...] | None:
    """The values as a tuple; a string is split at spaces."""
    if values is None:
        return None
    return tuple(values.split() if isinstance(values, str) else values)


StreamDecoder = Callable[[Any], Any] | Literal[False]
"""Function of a file object that holds the field's bytes; ``False`` leaves the field as it is."""


def decode_bin(stream: Any) -> Any:
    return stream.read()


def decode_text(stream: Any) -> str:
    return str(stream.read(), "utf-8")


def decode_pickle(stream: Any, allow_pickle: bool = False) -> Any:
    return unpickle_loads(stream.read(), allow_pickle)


default_decoders: list[tuple[str, StreamDecoder]] = [
    ("*.bin", decode_bin),
    ("*.txt", decode_text),
    ("*.pyd", decode_pickle),
]


def xdecode(
    *decoders: tuple[str, StreamDecoder],
    must_decode: bool = True,
    defaults: Iterable[tuple[str, StreamDecoder]] = default_decoders,
    allow_pickle: bool = False,
    handler: Handler = reraise_exception,
    **more: StreamDecoder,
) -> XDecode:
    """Stage that decodes each field of a dict sample by the last pattern that matches its name.

    Shell patterns match the part of a field's name after its last slash, in lower case, with or without a dot
    before it. Fields whose names begin with ``__`` stay unchanged.

    Args:
        decoders: Pairs of a pattern and a function of a file object: ``("*.json", json.load)``. ``False``
            leaves the field unchanged. The function gets a value that is not bytes as it is.
        must_decode: Whether a field that no pattern matches is an error; otherwise it stays unchanged.
        defaults: The pairs that come before them.
        allow_pickle: Whether the default for ``*.pyd`` may unpickle, which may run any code.
        handler: Called when a sample cannot be decoded; the default raises the exception.
        more: Function for each extension: ``json=json.load``.

    Raises:
        DecodeError: While iterating, a field cannot be decoded; its cause is the function's exception.
        TypeError: An argument is not a pair with a function; or, while iterating, a sample is not a dict.

    Source:
        ``webdataset.filters.xdecode``.

    Example:
        >>> import json
        >>> list(xdecode(json=json.load)([{"__key__": "a", "txt": b"abc", "meta.json": b"[1]"}]))
        [{'__key__': 'a', 'txt': 'abc', 'meta.json': [1]}]
    """
    by_extension = [(f"*.{extension}", decoder) for extension, decoder in more.items()]
    return XDecode((*decoders, *by_extension), must_decode, tuple(defaults), allow_pickle, handler)


@dataclass(frozen=True)
class XDecode(OneToOneStage, called="xdecode"):
    takes = dict
    decoders: tuple[tuple[str, StreamDecoder], ...]
    must_decode: bool = True
    defaults: tuple[tuple[str, StreamDecoder], ...] = tuple(default_decoders)
    allow_pickle: bool = False
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        super().__post_init__()
        for pair in (*self.defaults, *self.decoders):
            _check(pair)

    def prepared(self) -> Callable[[Any], dict[str, Any]]:
        decoder_of = functools.lru_cache(NAMES_KEPT)(self._decoder_of)

        def decoded(sample: Any) -> dict[str, Any]:
            result = {}
            for field, data in sample.items():
                try:  # errors_as_decode_error takes a twentieth of the time of small fields
                    decoder = decoder_of(field)
                    if decoder is not False:
                        data = decoder(io.BytesIO(data) if isinstance(data, (bytes, memoryview)) else data)
                    result[field] = data
                except ImportError:  # every sample would fail, so a handler must not skip it
                    raise
                except Exception as error:
                    raise decode_error(field, sample, sample.get("__url__"), error) from error
            return result

        return decoded

    def _decoder_of(self, field: str) -> StreamDecoder:
        base = field.rpartition("/")[2].lower()
        if field.startswith("__") or base.startswith("__"):
            return False
        for pattern, decoder in reversed((*self.defaults, *self.decoders)):
            if fnmatchcase(base, pattern) or fnmatchcase("." + base, pattern):
                if decoder is decode_pickle:
                    return functools.partial(decode_pickle, allow_pickle=self.allow_pickle)
                return decoder
        if self.must_decode:
            raise DecodeError("no pattern matches its name; must_decode=False leaves such fields unchanged")
        return False


def _check(pair: Any) -> None:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
        raise TypeError(f"xdecode: expected a pair of a pattern and a function, got {shown(pair)}")
    if pair[1] is not False and not callable(pair[1]):
        raise TypeError(f"xdecode: expected a function or False for {pair[0]!r}, got {shown(pair[1])}")
