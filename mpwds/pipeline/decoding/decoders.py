"""Decode the fields of a sample by the extensions of their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from mpwds.errors import DecodeError
from mpwds.pipeline.decoding.fields import (
    LOAD_OPTIONS,
    LOADS,
    MAX_DECOMPRESSED_BYTES,
    FieldDecoder,
    Load,
    decode_error,
    extension_of,
    gunzip,
    medium_of,
)
from mpwds.pipeline.error_context import arguments, check_function, check_whole
from mpwds.suggestions import shown
from mpwds.warn import warn

Handler: TypeAlias = Callable[[str, Any], Any]
HandlerSpec: TypeAlias = str | Handler | tuple[str, Callable[[Any], Any]]

DecodingError = DecodeError
"""``DecodeError`` under webdataset's name."""

NAMES_KEPT = 1000  # field names are data: a key with a dot in it makes a new one for each sample


class Decoder:
    """Decodes the fields of a sample: a function from samples to new samples.

    Each field that holds bytes is offered to the handlers in turn, as ``handler(key, data)`` where ``key`` is
    the field's name with a dot before it (``".mask.png"``). The first result that is not ``None`` becomes the
    field's value. A result ``Continue(key, data)`` is offered to the handlers that follow. A field that no
    handler decodes keeps its bytes. Fields whose names start with ``__`` are metadata: their bytes become
    ``str`` if they are UTF-8, and are not decoded further.

    A field may also hold a read-only ``memoryview``. This library's handlers decode it in place; other
    functions get bytes. A field that is ``None`` is always an error.

    The arguments and errors are those of ``mpwds.pipeline.stages.decode.decode``. ``pre`` is ``[gzfilter]``
    by default, ``post`` is ``[basichandlers]``. The handlers may also come as a single list.

    Attributes:
        takes_views: All handlers are this library's own.
        loads: By the name of a field, the function that decodes it.

    Source:
        ``webdataset.autodecode.Decoder``.

    Example:
        >>> decode = Decoder(handle_extension("hex", bytes.fromhex), partial=True)
        >>> decode({"__key__": "000017", "cls": b"7", "json": b'{"a": [1]}', "bin": b"xyz"})
        {'__key__': '000017', 'cls': 7, 'json': {'a': [1]}, 'bin': b'xyz'}
    """

    def __init__(
        self,
        *handlers: HandlerSpec | list[HandlerSpec],
        pre: Sequence[HandlerSpec] | None = None,
        post: Sequence[HandlerSpec] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
        allow_pickle: bool = False,
        max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    ) -> None:
        check_whole("decode", "max_decompressed_bytes", max_decompressed_bytes, least=1)
        main = handlers[0] if len(handlers) == 1 and isinstance(handlers[0], list) else handlers
        before = [gzfilter] if pre is None else pre
        after = [basichandlers] if post is None else post
        self.handlers: tuple[Handler, ...] = tuple([_handler(spec) for spec in (*before, *main, *after)])
        self.partial = partial
        self.takes_views = all(map(_takes_views, self.handlers))
        kept = None if only is None else frozenset(only.split() if isinstance(only, str) else only)
        options = {"allow_pickle": allow_pickle, "max_decompressed_bytes": max_decompressed_bytes}
        self.loads = _FieldLoads(self.handlers, kept, options)

    def decode(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Decodes one sample; the sample itself does not change.

        Raises:
            DecodeError: A field cannot be decoded. Its cause is the handler's exception.
            ImportError: A handler needs a package that is missing.
        """
        if not isinstance(sample, dict):
            raise TypeError(f"decode: a sample must be a dict, got {type(sample).__name__}")
        result = {}
        loads = self.loads
        field = ""
        try:
            for field, value in sample.items():
                load = loads[field]
                kind = type(value)
                if kind is bytes or kind is memoryview:
                    result[field] = load(value)
                elif load is _metadata or load is bytes:
                    result[field] = value
                else:
                    result[field] = self._other(load, value)
        except ImportError:  # concerns every sample, so no error handler may skip it
            raise
        except Exception as error:
            raise decode_error(field, sample, sample.get("__url__"), error) from error
        return result

    __call__ = decode

    def _other(self, load: Load, value: Any) -> Any:
        if isinstance(value, bytes):
            return load(bytes(value))
        if value is None:
            raise DecodeError(
                "it is None, expected bytes; to leave the field alone, name the others with only="
            )
        if self.partial:
            return value
        raise DecodeError(
            f"it is {type(value).__name__}, expected bytes; partial=True passes such fields through"
        )


class Continue:
    """A handler's result that passes another name, with its leading dot, and other data to those after it.

    Example:
        >>> def reverse(key, data):
        ...     return Continue(key.removesuffix(".rev"), data[::-1]) if key.endswith(".rev") else None
        >>> Decoder(reverse)({"cls.rev": b"21"})
        {'cls.rev': 12}
    """

    def __init__(self, key: str, data: Any) -> None:
        self.key = key
        self.data = data


def handle_extension(extensions: str, f: Callable[[Any], Any]) -> Handler:
    """A handler that applies a function to the fields with certain extensions.

    Args:
        extensions: Extensions separated by spaces, with or without a leading dot; case is ignored. An
            extension with dots (``seg.png``) must match in all of its parts.
        f: Function from the field's bytes to its value; ``None`` leaves the field to the handlers that
            follow.

    Source:
        ``webdataset.autodecode.handle_extension``.

    Example:
        >>> Decoder(handle_extension("seg.txt", len))({"txt": b"abc", "seg.txt": b"abc"})
        {'txt': 'abc', 'seg.txt': 3}
    """
    return _ExtensionHandler(tuple(["." + each.removeprefix(".") for each in extensions.lower().split()]), f)


def gzfilter(key: str, data: bytes) -> Continue | None:
    """Handler that decompresses fields whose names end in ``.gz``, for the handlers after it to decode.

    A field may decompress to 512 MiB; ``decode(max_decompressed_bytes=...)`` sets another limit.
    """
    if not key.endswith(".gz"):
        return None
    return Continue(key[: -len(".gz")], gunzip(data))


def basichandlers(key: str, data: bytes) -> Any:
    """Handler that decodes text, numbers, arrays and structures by the last extension.

    =========================  =====================================================
    ``txt text transcript``    ``str``, from UTF-8
    ``cls cls2 id index inx``  ``int``
    ``json jsn``               as ``json.loads``
    ``npy``                    array
    ``npz``                    dictionary of arrays
    ``ten tenbin tb``          list of read-only arrays that share the field's bytes
    ``mp msg msgpack``         as ``msgpack.unpackb``
    ``cbor``                   as ``cbor2.loads``
    ``pyd pickle pkl pth``     an error, unless ``Decoder`` got ``allow_pickle=True``
    =========================  =====================================================

    ``None`` for any other extension, so ``class count html htm`` stay bytes, as in webdataset. A program may
    add to the table, ``decoders``. A ``Decoder`` looks up each field name once.
    """
    load = decoders.get(extension_of(key))
    return None if load is None else load(data)


decoders: dict[str, Load] = dict(LOADS)
"""The table of ``basichandlers``: extension to function of the bytes.

A program may add entries and replace them. Each process has its own table, and workers are processes:
``handle_extension`` travels with the dataset, an entry made here does not.
"""


class _ExtensionHandler:
    def __init__(self, extensions: tuple[str, ...], f: Callable[[Any], Any]) -> None:
        self.extensions = extensions
        self.f = f

    def __repr__(self) -> str:
        return f"handle_extension({arguments(' '.join(each[1:] for each in self.extensions), self.f)})"

    def __call__(self, key: str, data: Any) -> Any:
        return self.f(data) if self.matches(key) else None

    def matches(self, key: str) -> bool:
        return f".{key.lower()}".endswith(self.extensions)


def _handler(spec: Any) -> Handler:
    if isinstance(spec, str):
        from mpwds.pipeline.decoding.images import ImageDecoder

        return ImageDecoder(spec)
    if isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[0], str) and callable(spec[1]):
        check_function("decode", spec[1])
        return handle_extension(*spec)
    if not callable(spec):
        raise TypeError(
            "decode: a handler must be a function handler(key, data), the name of an image format or a pair "
            f"(extensions, function of the data), got {shown(spec)}"
        )
    check_function("decode", spec)
    handler: Handler = spec
    return handler


def _takes_views(handler: Handler) -> bool:
    return handler is gzfilter or handler is basichandlers or isinstance(handler, FieldDecoder)


class _FieldLoads(dict[str, Load]):
    """By the name of a field, the function that decodes it; found when the name first occurs."""

    def __init__(
        self, handlers: tuple[Handler, ...], only: frozenset[str] | None, options: dict[str, Any]
    ) -> None:
        self._given = handlers, only, options
        self.untold = {"AudioDecoder", "VideoDecoder"}  # that a warning still has to name

    def __reduce__(self) -> Any:
        return _FieldLoads, self._given

    def __missing__(self, field: str) -> Load:
        handlers, only, _ = self._given
        if len(self) >= NAMES_KEPT:
            self.clear()
        if field[:2] == "__":
            load: Load = _metadata
        elif only is not None and field not in only:
            load = bytes
        else:
            load = self._find(handlers, "." + field)
        self[field] = load
        return load

    def _find(self, handlers: tuple[Handler, ...], key: str) -> Load:
        """Chains the handlers that may decode a field of that key."""
        if not handlers:
            return partial(_kept_as_media, self, key) if _decoder_of(key) else _kept
        handler, rest, options = handlers[0], handlers[1:], self._given[2]
        may_apply = True
        if handler is gzfilter:
            if key.endswith(".gz"):
                load = self._find(rest, key.removesuffix(".gz"))
                return partial(_decompressed, load, options["max_decompressed_bytes"])
            may_apply = False
        elif handler is basichandlers:
            load = decoders.get(extension_of(key), _kept)
            if load is LOADS.get(extension_of(key)):  # its result counts, even None
                given = {name: options[name] for name in LOAD_OPTIONS.get(load, ())}
                return partial(load, **given) if given else load
            may_apply = load is not _kept
        elif isinstance(handler, FieldDecoder) and type(handler).__call__ is FieldDecoder.__call__:
            if handler.handles(key):
                return handler.decode
            may_apply = False
        elif type(handler) is _ExtensionHandler:
            may_apply = handler.matches(key)
        following = self._find(rest, key)
        if not may_apply:
            return following
        takes_views = isinstance(handler, FieldDecoder)

        def load_by_handler(data: Any) -> Any:
            if type(data) is memoryview and not takes_views:
                data = bytes(data)
            result = handler(key, data)
            if result is None:
                return following(data)
            return self._find(rest, result.key)(result.data) if isinstance(result, Continue) else result

        return load_by_handler


def _decompressed(load: Load, max_bytes: int, data: Any) -> Any:
    return load(gunzip(data, max_bytes))


def _kept(data: Any) -> Any:
    return bytes(data) if type(data) is memoryview else data


def _decoder_of(key: str) -> str:
    """The handler that would decode a field of sound or video; empty for other fields."""
    return {"video": "VideoDecoder", "sound": "AudioDecoder"}.get(medium_of(extension_of(key)), "")


def _kept_as_media(loads: _FieldLoads, key: str, data: Any) -> Any:
    name = _decoder_of(key)
    if name in loads.untold:
        loads.untold.discard(name)
        warn(
            f'decode leaves field "{key[1:]}" as bytes: mpwds.{name}() among its arguments decodes it; to '
            "leave the field alone, name the others with only="
        )
    return _kept(data)


def _metadata(value: Any) -> Any:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        return bytes(value)
