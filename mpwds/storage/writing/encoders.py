"""Encodes the fields of a sample into the bytes of their files, by the extension of the field's name."""

from __future__ import annotations

import gzip
import io
import json
import operator
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from mpwds import tenbin
from mpwds.imports import require, tensor_class

FieldEncoder: TypeAlias = Callable[[Any], bytes]
SampleEncoder: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]
EncoderSpec: TypeAlias = bool | SampleEncoder | Mapping[str, FieldEncoder] | None

# Rounding of floats and the quality of JPEG and TIFF are webdataset's, so that both write the same bytes.
IMAGE_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(("jpg", "jpeg", "img", "image"), ("JPEG", {"quality": 100})),
    "png": ("PNG", {}),
    **dict.fromkeys(("pbm", "pgm", "ppm", "pnm"), ("PPM", {})),
    **dict.fromkeys(("tif", "tiff"), ("TIFF", {"quality": 100})),
    "bmp": ("BMP", {}),
    "webp": ("WEBP", {"lossless": True, "exact": True}),  # exact: with the colours of transparent pixels
}
"""By extension, Pillow's name of the format and its options."""

_TOO_DEEP = {"pbm": "IF", "pgm": "F", "webp": "IF"}  # modes of more than 8 bits, which would be cut off


def _integer_dumps(data: Any) -> bytes:
    try:
        return str(operator.index(data)).encode("ascii")
    except TypeError:
        raise TypeError(f"{data!r:.50} is no integer, which readers expect here: use json or txt") from None


def _json_dumps(data: Any) -> bytes:
    return json.dumps(data).encode("utf-8")


def _text_dumps(data: Any) -> bytes:
    raise TypeError("the extension is one of text, expected str or bytes")  # _text_or encodes strings


def numpy_dumps(data: Any) -> bytes:
    """An array, a tensor or a list of numbers as an ``.npy`` file. An array of Python objects is pickled.

    Raises ``ValueError`` if something other than an array would become an array of Python objects.

    Source:
        ``webdataset.writer.numpy_dumps``.
    """
    stream = io.BytesIO()
    np.lib.format.write_array(stream, _storable(data), allow_pickle=True)
    return stream.getvalue()


def numpy_npz_dumps(data: Any) -> bytes:
    """A dictionary of arrays, as ``numpy_dumps`` takes them, as a compressed ``.npz`` file."""
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise TypeError("npz holds a dictionary of arrays")
    arrays = {name: _storable(array, name) for name, array in data.items()}
    stream = io.BytesIO()
    savez: Callable[..., None] = np.savez_compressed  # its stubs take every keyword for allow_pickle's bool
    savez(stream, **arrays)
    return stream.getvalue()


def tenbin_dumps(data: Any) -> bytes:
    """An array, or a list of arrays, as tenbin."""
    arrays = data if isinstance(data, (list, tuple)) else [data]
    return bytes(tenbin.encode_buffer([each if tenbin.holds(each) else _as_array(each) for each in arrays]))


def torch_dumps(data: Any) -> bytes:
    """An object as ``torch.save`` stores it. A tensor that is part of a larger one is stored alone.

    Source:
        ``webdataset.writer.torch_dumps``.
    """
    torch = require("torch", "pth files are encoded with torch: pip install torch")
    if type(data) is torch.Tensor and data.layout is torch.strided:
        stored = data.untyped_storage().nbytes()
        if stored > data.numel() * data.element_size():
            data = data.detach().clone().requires_grad_(data.requires_grad)
    stream = io.BytesIO()
    torch.save(data, stream)
    return stream.getvalue()


def mp_dumps(data: Any) -> bytes:
    """A value as MessagePack."""
    import msgpack

    return bytes(msgpack.packb(data))


def cbor_dumps(data: Any) -> bytes:
    """A value as CBOR."""
    cbor2 = require("cbor2", "CBOR is encoded with cbor2: pip install 'mpwds[cbor]'")
    return bytes(cbor2.dumps(data))


def imageencoder(image: Any, format: str = "PNG") -> bytes:
    """An image as a file.

    Args:
        image: A PIL image, or an array or tensor of shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), uint8,
            bool or float in [0, 1]; or uint16, of one channel, for png, pgm, ppm, pnm and tif.
        format: An extension: ``jpg jpeg img image`` (JPEG of quality 100), ``webp`` (lossless) or
            ``png pbm pgm ppm pnm tif tiff bmp``. ``pgm`` makes the image grey, ``pbm`` black and white.

    Raises:
        ValueError: The format or the array is not one of these.
        OSError: The format cannot hold such an image (JPEG and alpha, say).

    Source:
        ``webdataset.writer.imageencoder``.
    """
    extension = format.lower()
    if extension not in IMAGE_FORMATS:
        raise ValueError(f"image format {format!r} is not one of {' '.join(IMAGE_FORMATS)}")
    picture = _as_image(image)
    if picture.mode[0] in _TOO_DEEP.get(extension, ""):
        raise OSError(f"{extension} would cut {picture.mode} pixels to 8 bits: convert the image, or use tif")
    if extension == "pgm" and picture.mode[0] != "I":
        picture = picture.convert("L")
    elif extension == "pbm":
        picture = picture.convert("1")
    pillow_format, options = IMAGE_FORMATS[extension]
    if pillow_format in ("PPM", "BMP") and "A" in picture.getbands():
        raise OSError(f"{extension} does not keep an image's alpha channel: convert it to RGB, or use png")
    with io.BytesIO() as stream:
        picture.save(stream, format=pillow_format, **options)
        return stream.getvalue()


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    """An array of an array, a tensor (also on a device, or with a gradient), a number or a list."""
    if isinstance(value, tensor_class()):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("the mask of a masked array would be lost: pass value.filled(), or two fields")
    return np.asarray(value)


def _storable(value: Any, name: str | None = None) -> np.ndarray[Any, Any]:
    array = _as_array(value)
    if array.dtype.kind == "V" and array.dtype.type is not np.void:
        raise ValueError(f"npy files do not keep the dtype {array.dtype}: use ten, or convert the array")
    if array.dtype.hasobject and not isinstance(value, np.ndarray):
        what = type(value).__name__ if name is None else f"{name!r} ({type(value).__name__})"
        raise ValueError(f"{what} makes an array of Python objects, which could only be pickled")
    return array


def _as_image(value: Any) -> Any:
    pillow = require("PIL.Image", "images are encoded with Pillow: pip install 'mpwds[images]'")
    if isinstance(value, pillow.Image):
        return value
    pixels = _as_array(value)
    if pixels.dtype.kind == "f":
        if pixels.size and not (pixels.min() > -0.001 and pixels.max() < 1.001):
            raise ValueError(f"pixels reach from {pixels.min()} to {pixels.max()}, expected floats in [0, 1]")
        pixels = (np.clip(pixels, 0.0, 1.0) * 255.0).astype(np.uint8)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.dtype not in (np.uint8, np.bool_) and not (pixels.dtype == np.uint16 and pixels.ndim == 2):
        raise ValueError(
            f"pixels are {pixels.dtype}, expected uint8, bool, floats in [0, 1], or uint16 of one channel"
        )
    if pixels.dtype == np.bool_ and pixels.ndim == 3:  # of one channel they are black and white
        pixels = pixels.astype(np.uint8) * 255
    if pixels.ndim != 2 and not (pixels.ndim == 3 and pixels.shape[2] in (3, 4)):
        raise ValueError(
            f"pixels have shape {pixels.shape}, expected (H, W), (H, W, 1), (H, W, 3) or (H, W, 4); "
            "torch's (C, H, W) becomes that by .permute(1, 2, 0)"
        )
    return pillow.fromarray(np.ascontiguousarray(pixels))


def _text_or(dumps: FieldEncoder, value: Any) -> bytes:
    return value.encode("utf-8") if isinstance(value, str) else dumps(value)


def make_handlers() -> dict[str, FieldEncoder]:
    """A new table of encoders by extension, to change and pass as a writer's ``encoder``.

    Source:
        ``webdataset.writer.make_handlers``.

    Example:
        >>> handlers = make_handlers()
        >>> handlers["cls"](7), handlers["json"]([1, None])
        (b'7', b'[1, null]')
    """
    handlers: dict[str, FieldEncoder] = {
        **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), _integer_dumps),
        **dict.fromkeys(("txt", "text", "transcript", "html", "htm"), _text_dumps),
        **dict.fromkeys(("json", "jsn"), _json_dumps),
        **dict.fromkeys(("pyd", "pickle", "pkl"), pickle.dumps),
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

    Bytes (also ``bytearray`` and ``memoryview``) are kept, and a ``str`` is encoded as UTF-8, whatever the
    name: under ``json`` or ``msg`` it is stored as it is, not as a JSON or msgpack string, as in webdataset.
    For other values the last extension of the name decides:

    =============================================  ======================================================
    ``cls cls2 class count index inx id``          an integer, in decimal
    ``txt text transcript html htm``               a string
    ``json jsn``                                   any argument of ``json.dumps``
    ``npy``                                        an array
    ``npz``                                        a dictionary of arrays
    ``ten tenbin tb``                              an array or a list of arrays
    ``mp msgpack msg``                             any argument of ``msgpack.packb``
    ``cbor``                                       any argument of ``cbor2.dumps``
    ``pyd pickle pkl``                             any object, pickled
    ``pth``                                        any object, as by ``torch.save``
    ``jpg jpeg img image png pbm pgm ppm pnm``     an image: a PIL image, or an array of shape (H, W),
    ``tif tiff bmp webp``                          (H, W, 1), (H, W, 3) or (H, W, 4), uint8, bool or float;
                                                   or uint16, of one channel
    =============================================  ======================================================

    ``Decoder`` decodes all of these except ``class count html htm img image``, as in webdataset. Pickles and
    ``pth`` need its ``allow_pickle=True``. A torch tensor may take an array's place.
    ``.gz`` after the extension compresses, bytes included, with the same result on every run.

    Args:
        name: The field's name, such as ``"png"`` or ``"mask.npy.gz"``.
        value: The value to encode.
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
    if isinstance(value, (bytes, bytearray, memoryview)):
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


def encode_once(name: str, value: Any) -> bytes:
    """The bytes of a field. What is compressed already, as its name says, stays as it is."""
    is_gzip = name.endswith(".gz") and isinstance(value, bytes) and value.startswith(b"\x1f\x8b")
    return value if is_gzip else encode_field(name, value)


def encode_based_on_extension(
    sample: Mapping[str, Any], handlers: Mapping[str, FieldEncoder] = default_handlers
) -> dict[str, Any]:
    """A sample, encoded by a table of functions. Fields that start with ``_`` stay as they are.

    Source:
        ``webdataset.writer.encode_based_on_extension``.
    """
    return {
        field: value if field.startswith("_") else encode_field(field, value, handlers)
        for field, value in sample.items()
    }


def make_encoder(spec: EncoderSpec) -> SampleEncoder:
    """The function from samples to samples of bytes for a writer's ``encoder`` argument.

    Args:
        spec: ``True``: ``encode_field`` for each field. A dictionary: the same, with its functions.
            ``False`` or ``None``: the sample as it is. A function from samples to samples: itself.

    Source:
        ``webdataset.writer.make_encoder``.

    Example:
        >>> make_encoder({"hex": bytes.fromhex})({"__key__": "a", "hex": "ff", "txt": "b"})
        {'__key__': 'a', 'hex': b'\\xff', 'txt': b'b'}
    """
    if spec is True:
        return encode_based_on_extension
    if spec is False or spec is None:
        return dict
    if isinstance(spec, Mapping):
        return partial(encode_based_on_extension, handlers=spec)
    if callable(spec):
        return spec
    raise ValueError(f"encoder must be True, False, a function or a dictionary of functions, got {spec!r}")
