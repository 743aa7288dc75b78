"""Decode the fields of a sample by the extensions of their names."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from mpwds import tenbin
from mpwds.errors import DecodeError
from mpwds.pipeline.images import IMAGE_EXTENSIONS, ImageDecoder, imagehandler

__all__ = [
    "IMAGE_EXTENSIONS",
    "Continue",
    "Decoder",
    "ImageDecoder",
    "basichandlers",
    "gzfilter",
    "handle_extension",
    "imagehandler",
]

Handler: TypeAlias = Callable[[str, Any], Any]


class Decoder:
    """Decodes the fields of a sample: a function from samples to new samples.

    Each field that holds bytes is offered to the handlers in turn, as ``handler(key, data)`` where ``key`` is
    the field's name with a dot before it (``".mask.png"``). The first result that is not ``None`` becomes the
    field's value; a result ``Continue(key, data)`` is offered to the handlers that follow. A field that no
    handler knows keeps its bytes. Fields whose names start with ``__`` are no data: their bytes become
    ``str`` where they are UTF-8, and nothing else happens to them.

    Args:
        *handlers: Functions of that kind, or specifications for ``ImageDecoder`` such as ``"rgb8"``.
        pre: Handlers before these; ``None`` for ``[gzfilter]``, which unpacks ``.gz``.
        post: Handlers after these; ``None`` for ``[basichandlers]``, which decodes text, numbers and arrays
            by extension.
        only: Names of the fields to decode, as a list or separated by spaces; the others are passed through.
            ``None`` decodes all.
        partial: Pass fields that hold no bytes through; else they are an error.

    Raises:
        ValueError: An image specification is unknown.
        TypeError: A handler is neither a function nor a string.

    Source:
        ``webdataset.autodecode.Decoder``.

    Example:
        >>> decode = Decoder(handle_extension("hex", bytes.fromhex), partial=True)
        >>> decode({"__key__": "000017", "cls": b"7", "json": b'{"a": [1]}', "bin": b"xyz"})
        {'__key__': '000017', 'cls': 7, 'json': {'a': [1]}, 'bin': b'xyz'}
    """

    def __init__(
        self,
        *handlers: str | Handler,
        pre: Sequence[Handler] | None = None,
        post: Sequence[Handler] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
    ) -> None:
        main = [ImageDecoder(handler) if isinstance(handler, str) else handler for handler in handlers]
        before = [gzfilter] if pre is None else list(pre)
        after = [basichandlers] if post is None else list(post)
        self.handlers: tuple[Handler, ...] = (*before, *main, *after)
        self.only = None if only is None else frozenset(only.split() if isinstance(only, str) else only)
        self.partial = partial
        for handler in self.handlers:
            if not callable(handler):
                raise TypeError(
                    "decode: a handler must be a function handler(key, data) or the name of an image format, "
                    f"got {handler!r}"
                )

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Decode one sample; it is not changed.

        Raises:
            DecodeError: A field cannot be decoded, or holds no bytes and ``partial`` is false. What a handler
                raised is its cause.
            ImportError: A handler needs a package that is missing.
        """
        if not isinstance(sample, dict):
            raise TypeError(f"decode: a sample must be a dict, got {type(sample).__name__}")
        result = {}
        for field, value in sample.items():
            if field[:2] == "__":
                result[field] = _metadata(value) if isinstance(value, bytes) else value
            elif self.only is not None and field not in self.only:
                result[field] = value
            elif isinstance(value, bytes):
                try:
                    result[field] = self._decode_field("." + field, value)
                except ImportError:  # concerns every sample alike, so it must not be skipped as a bad one
                    raise
                except Exception as error:
                    raise _decode_error(field, sample, f"{type(error).__name__}: {error}") from error
            elif self.partial and value is not None:
                result[field] = value
            else:
                reason = (
                    f"it is {type(value).__name__}, expected bytes; partial=True passes such fields through"
                )
                raise _decode_error(field, sample, reason)
        return result

    def _decode_field(self, key: str, data: Any) -> Any:
        for handler in self.handlers:
            result = handler(key, data)
            if result is None:
                continue
            if not isinstance(result, Continue):
                return result
            key, data = result.key, result.data
        return data


class Continue:
    """What a handler returns to have the handlers after it go on with another name and other data.

    Args:
        key: The name, with its leading dot.
        data: The data.

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
        extensions: Extensions separated by spaces; case is ignored. One that holds dots (``seg.png``) asks
            for all of its parts.
        f: Function from the field's bytes to its value.

    Source:
        ``webdataset.autodecode.handle_extension``.

    Example:
        >>> Decoder(handle_extension("seg.txt", len))({"txt": b"abc", "seg.txt": b"abc"})
        {'txt': 'abc', 'seg.txt': 3}
    """
    return partial(
        _apply_to_extensions, f, tuple("." + extension for extension in extensions.lower().split())
    )


def gzfilter(key: str, data: bytes) -> Continue | None:
    """Handler that unpacks fields whose names end in ``.gz``, for the handlers after it to decode.

    Example:
        >>> gzfilter(".txt.gz", gzip.compress(b"abc")).data
        b'abc'
    """
    if not key.endswith(".gz"):
        return None
    return Continue(key[: -len(".gz")], gzip.decompress(data))


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
    =========================  =====================================================

    ``None`` for any other. Pickles (``pyd pickle pkl pth``) are among these for now and stay bytes: a shard
    is data, and unpickling it would run what it says. Arrays of Python objects in ``npy`` and ``npz`` are an
    error.

    Example:
        >>> basichandlers(".cls", b"7"), basichandlers(".unknown", b"7")
        (7, None)
    """
    loads = _LOADS.get(key.rpartition(".")[2].lower())
    return None if loads is None else loads(data)


def _apply_to_extensions(f: Callable[[Any], Any], extensions: tuple[str, ...], key: str, data: Any) -> Any:
    return f(data) if key.lower().endswith(extensions) else None


def _metadata(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _decode_error(field: str, sample: dict[str, Any], reason: str) -> DecodeError:
    key, url = sample.get("__key__"), sample.get("__url__")
    where = "" if key is None else f' of sample "{key}"'
    where += "" if url is None else f" in {url}"
    return DecodeError(f'field "{field}"{where} cannot be decoded: {reason}', key=key, url=url, field=field)


def _load_text(data: bytes) -> str:
    return data.decode("utf-8")


def _load_npy(data: bytes) -> Any:
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def _load_npz(data: bytes) -> dict[str, Any]:
    if data.startswith(np.lib.format.MAGIC_PREFIX):
        raise ValueError("it holds one array as .npy, not an .npz archive of arrays: name the field npy")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def _load_msgpack(data: bytes) -> Any:
    import msgpack

    return msgpack.unpackb(data)


_LOADS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _load_text),
    **dict.fromkeys(("cls", "cls2", "id", "index", "inx"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _load_npy,
    "npz": _load_npz,
    **dict.fromkeys(("ten", "tenbin", "tb"), tenbin.decode_buffer),
    **dict.fromkeys(("mp", "msg", "msgpack"), _load_msgpack),
}
