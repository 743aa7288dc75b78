"""Encode the fields of a sample into the bytes of their files, by the extension of the field's name."""

from __future__ import annotations

import gzip
import io
import json
import operator
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mpwds import tenbin

if TYPE_CHECKING:
    from PIL.Image import Image

SampleEncoder: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]
EncoderSpec: TypeAlias = bool | SampleEncoder | Mapping[str, Callable[[Any], bytes]] | None

_PICKLED = {"pyd", "pickle", "pkl", "pth"}

# Rounding of floats and the quality of JPEG are webdataset's, so that both write the same bytes.
_IMAGE_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "jpg": ("JPEG", {"quality": 100}),
    "jpeg": ("JPEG", {"quality": 100}),
    "png": ("PNG", {}),
    "pbm": ("PPM", {}),
    "pgm": ("PPM", {}),
    "ppm": ("PPM", {}),
    "tif": ("TIFF", {"quality": 100}),
    "tiff": ("TIFF", {"quality": 100}),
}


def encode_field(name: str, value: Any) -> bytes:
    """The bytes of a field's file.

    Bytes (also ``bytearray`` and ``memoryview``) are kept as they are and a ``str`` is encoded as UTF-8,
    whatever the name says: under ``json`` or ``msg`` it is stored as the text that it is, not as a JSON or
    msgpack string, as in webdataset. Else the last extension of the name decides:

    =========================================  ==========================================================
    ``cls cls2 class count index inx id``      an integer, in decimal
    ``txt text transcript html htm``           a string
    ``json jsn``                               whatever ``json.dumps`` takes
    ``npy``                                    an array
    ``npz``                                    a dictionary of arrays
    ``ten tenbin tb``                          an array or a list of arrays
    ``mp msgpack msg``                         whatever ``msgpack.packb`` takes
    ``jpg jpeg png pbm pgm ppm tif tiff``      an image: a PIL image, or an array of shape (H, W), (H, W, 1),
                                               (H, W, 3) or (H, W, 4), uint8 or float in [0, 1]
    =========================================  ==========================================================

    ``class count html htm`` are encoded here, but not decoded by default: they come back as bytes.

    A torch tensor may stand wherever an array may. ``.gz`` after the extension compresses, bytes included;
    the result is the same on every run.

    Args:
        name: The field's name, such as ``"png"`` or ``"mask.npy.gz"``.
        value: What to encode.

    Raises:
        ValueError: The extension is not known, is one for pickled objects (``pyd pickle pkl pth``, which are
            not written yet), or the value does not fit it.
        ImportError: An image is to be encoded and Pillow is missing.

    Source:
        ``webdataset.writer``.

    Example:
        >>> encode_field("cls", 7), encode_field("json", {"a": 1}), encode_field("caption.txt", "été")
        (b'7', b'{"a": 1}', b'\\xc3\\xa9t\\xc3\\xa9')
    """
    if name.endswith(".gz"):
        return gzip.compress(encode_field(name[: -len(".gz")], value), mtime=0)
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    extension = name.rpartition(".")[2].lower()
    encoder = _encode_text if isinstance(value, str) else _ENCODERS.get(extension)
    if encoder is None:
        raise ValueError(_no_encoder(name, extension, value))
    try:
        return encoder(value, extension)
    except (ValueError, TypeError, OverflowError, OSError) as error:
        raise ValueError(
            f"field {name!r} cannot be encoded from {type(value).__name__}: {type(error).__name__}: {error}"
        ) from error


def make_encoder(spec: EncoderSpec) -> SampleEncoder:
    """The function from samples to samples of bytes that a writer's ``encoder`` argument stands for.

    Args:
        spec: ``True``: ``encode_field`` for each field. A dictionary: its function for the field's last
            extension; bytes, and strings whose extension it lacks, are encoded as by ``encode_field``. A
            function from samples to samples: itself. ``False`` or ``None``: the sample as it is. Fields whose
            names start with ``__`` are left alone by the first two.

    Raises:
        ValueError: ``spec`` is none of these; when called, a field cannot be encoded.

    Example:
        >>> make_encoder({"hex": bytes.fromhex})({"__key__": "a", "hex": "ff", "txt": "b"})
        {'__key__': 'a', 'hex': b'\\xff', 'txt': b'b'}
        >>> make_encoder(True)({"__key__": "a", "cls": 7})
        {'__key__': 'a', 'cls': b'7'}
    """
    if spec is True:
        return _encode_fields
    if spec is False or spec is None:
        return lambda sample: sample
    if isinstance(spec, Mapping):
        encoders = spec
        return lambda sample: {field: _encode_by(encoders, field, value) for field, value in sample.items()}
    if callable(spec):
        return spec
    raise ValueError(f"encoder must be True, False, a function or a dictionary of functions, got {spec!r}")


def _encode_fields(sample: dict[str, Any]) -> dict[str, Any]:
    return {
        field: value if field.startswith("__") else encode_field(field, value)
        for field, value in sample.items()
    }


def _encode_by(encoders: Mapping[str, Callable[[Any], bytes]], field: str, value: Any) -> Any:
    if field.startswith("__"):
        return value
    encoder = encoders.get(field.rpartition(".")[2].lower())
    if encoder is not None and not isinstance(value, (bytes, bytearray, memoryview)):
        return encoder(value)
    if encoder is None and not isinstance(value, (bytes, bytearray, memoryview, str)):
        raise ValueError(f"field {field!r}: its extension is none of the encoder's: {' '.join(encoders)}")
    return encode_field(field, value)


def _no_encoder(name: str, extension: str, value: Any) -> str:
    start = f"field {name!r} cannot be encoded from {type(value).__name__}"
    if extension in _PICKLED:
        return f"{start}: pickled objects are not written yet; pass bytes, or use npy, json, mp or ten"
    return f"{start}: its extension is none of {' '.join(_ENCODERS)}; use one of these or pass bytes"


def _encode_integer(value: Any, extension: str) -> bytes:
    return str(operator.index(value)).encode("ascii")


def _encode_text(value: Any, extension: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError("the extension is one of text, expected str or bytes")
    return value.encode("utf-8")


def _encode_json(value: Any, extension: str) -> bytes:
    return json.dumps(value).encode("utf-8")


def _encode_msgpack(value: Any, extension: str) -> bytes:
    import msgpack

    return bytes(msgpack.packb(value))


def _encode_npy(value: Any, extension: str) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, _as_array(value), allow_pickle=False)
    return stream.getvalue()


def _encode_npz(value: Any, extension: str) -> bytes:
    if not isinstance(value, dict):
        raise TypeError("npz holds a dictionary of arrays")
    arrays = {name: _as_array(array) for name, array in value.items()}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"array {name!r} holds Python objects, which would have to be pickled")
    stream = io.BytesIO()
    savez: Callable[..., None] = np.savez_compressed  # its stubs take every keyword for allow_pickle's bool
    savez(stream, **arrays)
    return stream.getvalue()


def _encode_tenbin(value: Any, extension: str) -> bytes:
    arrays = value if isinstance(value, (list, tuple)) else [value]
    return bytes(
        tenbin.encode_buffer([array if tenbin.holds(array) else _as_array(array) for array in arrays])
    )


def _encode_image(value: Any, extension: str) -> bytes:
    image = _as_image(value)
    image_format, options = _IMAGE_FORMATS[extension]
    if extension == "pgm":
        image = image.convert("L")
    elif extension == "pbm":
        image = image.convert("1")
    with io.BytesIO() as stream:
        image.save(stream, format=image_format, **options)
        return stream.getvalue()


def _as_image(value: Any) -> Image:
    try:
        import PIL.Image
    except ImportError as error:
        raise ImportError("images are encoded with Pillow: pip install 'mpwds[images]'") from error
    if isinstance(value, PIL.Image.Image):
        return value
    pixels = _as_array(value)
    if pixels.dtype.kind == "f":
        if pixels.size and not (pixels.min() > -0.001 and pixels.max() < 1.001):
            raise ValueError(f"pixels reach from {pixels.min()} to {pixels.max()}, expected floats in [0, 1]")
        pixels = (np.clip(pixels, 0.0, 1.0) * 255.0).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise ValueError(f"pixels are {pixels.dtype}, expected uint8 or floats in [0, 1]")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim != 2 and not (pixels.ndim == 3 and pixels.shape[2] in (3, 4)):
        raise ValueError(
            f"pixels have shape {pixels.shape}, expected (H, W), (H, W, 1), (H, W, 3) or (H, W, 4); "
            "torch's (C, H, W) becomes that by .permute(1, 2, 0)"
        )
    return PIL.Image.fromarray(np.ascontiguousarray(pixels))


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


_ENCODERS: dict[str, Callable[[Any, str], bytes]] = {
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), _encode_integer),
    **dict.fromkeys(("txt", "text", "transcript", "html", "htm"), _encode_text),
    **dict.fromkeys(("json", "jsn"), _encode_json),
    "npy": _encode_npy,
    "npz": _encode_npz,
    **dict.fromkeys(("ten", "tenbin", "tb"), _encode_tenbin),
    **dict.fromkeys(("mp", "msgpack", "msg"), _encode_msgpack),
    **dict.fromkeys(_IMAGE_FORMATS, _encode_image),
}
