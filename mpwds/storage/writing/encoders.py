"""Encode the fields of a sample into the bytes of their files, by the extension of the field's name."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from mpwds.storage.writing.dumps import (
    IMAGE_FORMATS,
    cbor_dumps,
    imageencoder,
    integer_dumps,
    json_dumps,
    mp_dumps,
    numpy_dumps,
    numpy_npz_dumps,
    pickle_dumps,
    tenbin_dumps,
    text_dumps,
    torch_dumps,
)

FieldEncoder: TypeAlias = Callable[[Any], bytes]
SampleEncoder: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]
EncoderSpec: TypeAlias = bool | SampleEncoder | Mapping[str, FieldEncoder] | None


def _text_or(dumps: FieldEncoder, value: Any) -> bytes:
    return value.encode("utf-8") if isinstance(value, str) else dumps(value)


def make_handlers() -> dict[str, FieldEncoder]:
    """A new table of what each extension is encoded by, to change and pass as a writer's ``encoder``.

    Source:
        ``webdataset.writer.make_handlers``.

    Example:
        >>> handlers = make_handlers()
        >>> handlers["cls"](7), handlers["json"]([1, None])
        (b'7', b'[1, null]')
    """
    handlers: dict[str, FieldEncoder] = {
        **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), integer_dumps),
        **dict.fromkeys(("txt", "text", "transcript", "html", "htm"), text_dumps),
        **dict.fromkeys(("json", "jsn"), json_dumps),
        **dict.fromkeys(("pyd", "pickle", "pkl"), pickle_dumps),
        "pth": torch_dumps,
        "npy": numpy_dumps,
        "npz": numpy_npz_dumps,
        **dict.fromkeys(("ten", "tenbin", "tb"), tenbin_dumps),
        **dict.fromkeys(("mp", "msgpack", "msg"), mp_dumps),
        "cbor": cbor_dumps,
        **{extension: partial(imageencoder, format=extension) for extension in IMAGE_FORMATS},
    }
    return {extension: partial(_text_or, dumps) for extension, dumps in handlers.items()}


default_handlers = make_handlers()
"""The table that ``encode_field`` uses by default."""


def encode_field(name: str, value: Any, handlers: Mapping[str, FieldEncoder] = default_handlers) -> bytes:
    """The bytes of a field's file.

    Bytes (also ``bytearray`` and ``memoryview``) are kept as they are and a ``str`` is encoded as UTF-8,
    whatever the name says: under ``json`` or ``msg`` it is stored as the text that it is, not as a JSON or
    msgpack string, as in webdataset. Else the last extension of the name decides:

    =============================================  ======================================================
    ``cls cls2 class count index inx id``          an integer, in decimal
    ``txt text transcript html htm``               a string
    ``json jsn``                                   whatever ``json.dumps`` takes
    ``npy``                                        an array
    ``npz``                                        a dictionary of arrays
    ``ten tenbin tb``                              an array or a list of arrays
    ``mp msgpack msg``                             whatever ``msgpack.packb`` takes
    ``cbor``                                       whatever ``cbor2.dumps`` takes
    ``pyd pickle pkl``                             any object, pickled
    ``pth``                                        any object, as by ``torch.save``
    ``jpg jpeg img image png pbm pgm ppm pnm``     an image: a PIL image, or an array of shape (H, W),
    ``tif tiff bmp webp``                          (H, W, 1), (H, W, 3) or (H, W, 4), uint8 or float in [0, 1]
    =============================================  ======================================================

    ``Decoder`` decodes all of these except ``class count html htm img image``, which come back as bytes, as
    in webdataset. Pickles, and ``pth`` with objects in it, need its ``allow_pickle=True``.

    A torch tensor may stand wherever an array may. ``.gz`` after the extension compresses, bytes included;
    the result is the same on every run.

    Args:
        name: The field's name, such as ``"png"`` or ``"mask.npy.gz"``.
        value: What to encode.
        handlers: Functions by extension.

    Raises:
        ValueError: The extension is not known, or the value does not fit it.
        ImportError: A package is missing, such as Pillow for an image.

    Source:
        ``webdataset.writer``.

    Example:
        >>> encode_field("cls", 7), encode_field("json", {"a": 1}), encode_field("caption.txt", "été")
        (b'7', b'{"a": 1}', b'\\xc3\\xa9t\\xc3\\xa9')
    """
    if name.endswith(".gz"):
        return gzip.compress(encode_field(name[: -len(".gz")], value, handlers), mtime=0)
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    encoder = handlers.get(name.rpartition(".")[2].lower())
    if encoder is None and isinstance(value, str):
        return value.encode("utf-8")
    if encoder is None:
        raise ValueError(
            f"field {name!r} cannot be encoded from {type(value).__name__}: "
            f"its extension is not one of {' '.join(handlers)}; use one of these or pass bytes"
        )
    try:
        return encoder(value)
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(
            f"field {name!r} cannot be encoded from {type(value).__name__}: {type(error).__name__}: {error}"
        ) from error


def encode_based_on_extension(
    sample: Mapping[str, Any], handlers: Mapping[str, FieldEncoder] = default_handlers
) -> dict[str, Any]:
    """A sample with its fields encoded by a table of functions; those whose names start with ``_`` are kept.

    Source:
        ``webdataset.writer.encode_based_on_extension``.

    Example:
        >>> encode_based_on_extension({"__key__": "a", "cls": 7}, make_handlers())
        {'__key__': 'a', 'cls': b'7'}
    """
    return {
        field: value if field.startswith("_") else encode_field(field, value, handlers)
        for field, value in sample.items()
    }


def make_encoder(spec: EncoderSpec) -> SampleEncoder:
    """The function from samples to samples of bytes for a writer's ``encoder`` argument.

    Args:
        spec: ``True``: ``encode_field`` for each field. A dictionary: the same, by its functions; one of
            yours gets strings too. A function from samples to samples: itself. ``False`` or ``None``: the
            sample as it is. Fields whose names start with ``_`` are left alone by the first two.

    Raises:
        ValueError: ``spec`` is something else; when called, a field cannot be encoded.

    Source:
        ``webdataset.writer.make_encoder``.

    Example:
        >>> make_encoder({"hex": bytes.fromhex})({"__key__": "a", "hex": "ff", "txt": "b"})
        {'__key__': 'a', 'hex': b'\\xff', 'txt': b'b'}
        >>> make_encoder(True)({"__key__": "a", "cls": 7})
        {'__key__': 'a', 'cls': b'7'}
    """
    if spec is True:
        return encode_based_on_extension
    if spec is False or spec is None:
        return _as_it_is
    if isinstance(spec, Mapping):
        return partial(encode_based_on_extension, handlers=spec)
    if callable(spec):
        return spec
    raise ValueError(f"encoder must be True, False, a function or a dictionary of functions, got {spec!r}")


def _as_it_is(sample: dict[str, Any]) -> dict[str, Any]:
    return sample
