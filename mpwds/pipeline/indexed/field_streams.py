"""Samples of wids: their fields are streams, which transformations decode."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, TypeAlias

from mpwds.errors import DecodeError
from mpwds.imports import require
from mpwds.pipeline.decoding import loads
from mpwds.pipeline.decoding.images import open_image
from mpwds.storage.streams.urls import without_credentials

Sample: TypeAlias = "dict[str, Any]"
Transformation: TypeAlias = "Callable[[Any], Any]"
Transformations: TypeAlias = "str | Transformation | Iterable[str | Transformation] | None"

_IMAGES = ("jpg", "png", "ppm", "pgm", "pbm", "pnm")


class LateBytesIO(io.BytesIO):
    """A stream of bytes that lie in a mapped file: they are copied when the stream is first used.

    So a program that looks at the labels alone does not wait for the pictures. A pickled stream becomes a
    ``BytesIO``.

    Args:
        view: The bytes.

    Example:
        >>> stream = LateBytesIO(memoryview(b"abc"))
        >>> stream.read(2), stream.getvalue()
        (b'ab', b'abc')
    """

    def __init__(self, view: memoryview) -> None:
        self._view: memoryview | None = view

    def _copy(self) -> None:
        if self._view is not None and not self.closed:
            super().__init__(bytes(self._view))
            self._view = None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        self._copy()
        return _restored, (self.getvalue(), self.tell())


def _restored(data: bytes, position: int) -> io.BytesIO:
    stream = io.BytesIO(data)
    stream.seek(position)
    return stream


def _after_copy(method: Any) -> Any:
    @functools.wraps(method)
    def copies(self: LateBytesIO, *args: Any) -> Any:
        self._copy()
        return method(self, *args)

    return copies


for _name in (
    *("read", "read1", "readinto", "readinto1", "readline", "readlines", "__next__", "getvalue", "getbuffer"),
    *("seek", "tell", "truncate", "write", "writelines"),
):
    setattr(LateBytesIO, _name, _after_copy(getattr(io.BytesIO, _name)))


def default_decoder(
    sample: Sample, format: Literal["PIL", "numpy"] = "PIL", allow_pickle: bool = False
) -> Sample:
    """Decodes the fields of a sample whose extensions are common; other fields stay streams.

    ============================ ============================================================
    Extension                    Value
    ============================ ============================================================
    ``txt text``                 ``str``, from UTF-8
    ``cls cls2``                 ``int``
    ``jpg png ppm pgm pbm pnm``  a ``PIL.Image``, whose pixels are read when needed; or an array
    ``json``, ``mp``             what JSON or MessagePack holds
    ``npy``                      a NumPy array
    ``pt pth``                   what ``torch.save`` stored
    ``pickle pkl``               any object, only if ``allow_pickle``
    any of these with ``.gz``    the same
    another with ``.gz``         a stream of the decompressed bytes
    ============================ ============================================================

    Args:
        sample: A dict of streams; keys that begin with ``__`` are left alone.
        format: What images become.
        allow_pickle: Whether to load pickles: the author of the data can run any code.

    Raises:
        DecodeError: A field cannot be decoded, or is a pickle and ``allow_pickle`` is false.

    Source:
        ``wids.wids.default_decoder``, which loads all pickles, and leaves a stream of compressed bytes, read
        to its end, for other fields with ``.gz``.

    Example:
        >>> default_decoder({"__key__": "a", ".cls": io.BytesIO(b"7")})
        {'__key__': 'a', '.cls': 7}
    """
    sample = dict(sample)
    for field, stream in sample.items():
        if field.startswith("__"):
            continue
        extensions = field.split(".")
        try:
            compressed = extensions[-1] == "gz"
            if compressed:
                extensions.pop()
                stream = io.BytesIO(loads.gunzip(stream.read()))
                sample[field] = stream
            load = _load_of(extensions[-1], format, allow_pickle)
            if load is not None:
                sample[field] = load(stream.read())
        except Exception as error:
            key, url = sample.get("__key__"), sample.get("__shard__")
            where = "" if url is None else f" in {without_credentials(url)}"
            reason = str(error) or type(error).__name__
            raise DecodeError(
                f'field "{field}" of sample "{key}"{where} cannot be decoded: {reason}',
                key=key,
                url=url,
                field=field,
            ) from error
    return sample


def as_functions(transformations: Transformations, allow_pickle: bool) -> list[Transformation]:
    """Transformations, of which ``"PIL"`` and ``"numpy"`` stand for ``default_decoder``."""
    if transformations is None:
        return []
    is_one = isinstance(transformations, str) or callable(transformations)
    given: Any = [transformations] if is_one else transformations
    return [as_function(each, allow_pickle) for each in given]


def as_function(transformation: str | Transformation, allow_pickle: bool = False) -> Transformation:
    """A transformation as a function. Raises ``TypeError`` if it is neither that nor a name of one."""
    if transformation in ("PIL", "numpy"):
        return partial(default_decoder, format=transformation, allow_pickle=allow_pickle)  # type: ignore[arg-type]
    if not callable(transformation):
        raise TypeError(
            f'a transformation is "PIL", "numpy" or a function of a sample, got {transformation!r}'
        )
    return transformation


def _load_of(extension: str, format: str, allow_pickle: bool) -> Callable[[bytes], Any] | None:
    if extension in _IMAGES:
        if format not in ("PIL", "numpy"):
            raise ValueError(f'format must be "PIL" or "numpy", got {format!r}')
        return open_image if format == "PIL" else _array_of_image
    if extension in ("pickle", "pkl"):
        if not allow_pickle:
            raise ValueError(
                "it is a pickle, and loading it would run the code that it holds; if you trust the author of "
                "the shard, pass allow_pickle=True"
            )
        return partial(loads.unpickle_loads, allow_pickle=True)
    if extension in ("pt", "pth"):
        return partial(loads.torch_loads, allow_pickle=allow_pickle)
    return _LOADS.get(extension)


def _array_of_image(data: bytes) -> Any:
    import numpy as np

    return np.asarray(open_image(data))


def _msgpack(data: bytes) -> Any:
    require("msgpack", "fields .mp are decoded with msgpack: pip install msgpack")
    return loads.msgpack_loads(data)


_LOADS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text"), loads.text_loads),
    **dict.fromkeys(("cls", "cls2"), int),
    "json": loads.json_loads,
    "mp": _msgpack,
    "npy": loads.npy_loads,
}
