"""Values to the bytes of their files: numbers, structures, arrays, tensors, pickles, images."""

from __future__ import annotations

import io
import json
import operator
import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mpwds import tenbin

if TYPE_CHECKING:
    from PIL.Image import Image

# Rounding of floats and the quality of JPEG and TIFF are webdataset's, so that both write the same bytes.
IMAGE_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(("jpg", "jpeg", "img", "image"), ("JPEG", {"quality": 100})),
    "png": ("PNG", {}),
    **dict.fromkeys(("pbm", "pgm", "ppm", "pnm"), ("PPM", {})),
    **dict.fromkeys(("tif", "tiff"), ("TIFF", {"quality": 100})),
    "bmp": ("BMP", {}),
    "webp": ("WEBP", {"lossless": True}),
}
"""By extension, Pillow's name of the format and its options."""


def integer_dumps(data: Any) -> bytes:
    """An integer of any type in decimal.

    Raises:
        TypeError: It is not an integer.

    Example:
        >>> integer_dumps(np.int64(-7))
        b'-7'
    """
    return str(operator.index(data)).encode("ascii")


def text_dumps(data: Any) -> bytes:
    """A string in UTF-8.

    Raises:
        TypeError: It is not a string.

    Example:
        >>> text_dumps("a")
        b'a'
    """
    if not isinstance(data, str):
        raise TypeError("the extension is one of text, expected str or bytes")
    return data.encode("utf-8")


def json_dumps(data: Any) -> bytes:
    """A value as JSON, in UTF-8.

    Example:
        >>> json_dumps({"a": [1, None]})
        b'{"a": [1, null]}'
    """
    return json.dumps(data).encode("utf-8")


def numpy_dumps(data: Any) -> bytes:
    """An array as an ``.npy`` file. An array of Python objects is pickled inside.

    Args:
        data: An array, a tensor, or what ``np.asarray`` turns into an array of numbers or strings.

    Raises:
        ValueError: The array would be one of Python objects.

    Source:
        ``webdataset.writer.numpy_dumps``.

    Example:
        >>> numpy_dumps(np.zeros(2))[:6]
        b'\\x93NUMPY'
    """
    stream = io.BytesIO()
    np.lib.format.write_array(stream, _storable(data), allow_pickle=True)
    return stream.getvalue()


def numpy_npz_dumps(data: Any) -> bytes:
    """A dictionary of arrays as a compressed ``.npz`` file.

    Args:
        data: Names to arrays, as ``numpy_dumps`` takes them.

    Raises:
        TypeError: It is not a dictionary with strings for keys.

    Source:
        ``webdataset.writer.numpy_npz_dumps``.

    Example:
        >>> numpy_npz_dumps({"a": np.zeros(2)})[:2]
        b'PK'
    """
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise TypeError("npz holds a dictionary of arrays")
    arrays = {name: _storable(array, name) for name, array in data.items()}
    stream = io.BytesIO()
    savez: Callable[..., None] = np.savez_compressed  # its stubs take every keyword for allow_pickle's bool
    savez(stream, **arrays)
    return stream.getvalue()


def tenbin_dumps(data: Any) -> bytes:
    """An array, or a list of arrays, as tenbin.

    Source:
        ``webdataset.writer.tenbin_dumps``.

    Example:
        >>> tenbin.decode_buffer(tenbin_dumps([1.5, 2.5]))
        [array(1.5), array(2.5)]
    """
    arrays = data if isinstance(data, (list, tuple)) else [data]
    return bytes(
        tenbin.encode_buffer([array if tenbin.holds(array) else as_array(array) for array in arrays])
    )


def torch_dumps(data: Any) -> bytes:
    """An object as ``torch.save`` stores it. A tensor that is part of a larger one is stored alone.

    Raises:
        ImportError: torch is missing.

    Source:
        ``webdataset.writer.torch_dumps``.

    Example:
        >>> import torch
        >>> len(torch_dumps(torch.zeros(1000, 1000)[0])) < 10_000
        True
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError("pth files are encoded with torch: pip install torch") from error
    if type(data) is torch.Tensor and data.layout is torch.strided:
        stored = data.untyped_storage().nbytes()
        if stored > data.numel() * data.element_size():
            data = data.detach().clone().requires_grad_(data.requires_grad)
    stream = io.BytesIO()
    torch.save(data, stream)
    return stream.getvalue()


def pickle_dumps(data: Any) -> bytes:
    """An object's pickle. Reading it back needs ``allow_pickle=True``.

    Example:
        >>> pickle.loads(pickle_dumps({"a": 1}))
        {'a': 1}
    """
    return pickle.dumps(data)


def mp_dumps(data: Any) -> bytes:
    """A value as MessagePack.

    Source:
        ``webdataset.writer.mp_dumps``.

    Example:
        >>> mp_dumps([1, "a"])
        b'\\x92\\x01\\xa1a'
    """
    import msgpack

    return bytes(msgpack.packb(data))


def cbor_dumps(data: Any) -> bytes:
    """A value as CBOR.

    Raises:
        ImportError: cbor2 is missing.

    Source:
        ``webdataset.writer.cbor_dumps``.

    Example:
        >>> cbor_dumps({"a": 1})
        b'\\xa1aa\\x01'
    """
    try:
        import cbor2
    except ImportError as error:
        raise ImportError("CBOR is encoded with cbor2: pip install 'mpwds[cbor]'") from error
    return bytes(cbor2.dumps(data))


def imageencoder(image: Any, format: str = "PNG") -> bytes:
    """An image as a file.

    Args:
        image: A PIL image, or an array or tensor of shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), uint8 or
            float in [0, 1].
        format: An extension: ``jpg jpeg img image`` (JPEG of quality 100), ``webp`` (lossless) or
            ``png pbm pgm ppm pnm tif tiff bmp``. ``pgm`` makes the image grey, ``pbm`` black and white.

    Raises:
        ValueError: The format or the array is not one of these.
        OSError: The format cannot hold such an image (JPEG and alpha, say).
        ImportError: Pillow is missing.

    Source:
        ``webdataset.writer.imageencoder``.

    Example:
        >>> imageencoder(np.array([[0, 255]], "uint8"), "pgm")
        b'P5\\n2 1\\n255\\n\\x00\\xff'
    """
    extension = format.lower()
    if extension not in IMAGE_FORMATS:
        raise ValueError(f"image format {format!r} is not one of {' '.join(IMAGE_FORMATS)}")
    picture = _as_image(image)
    if extension == "pgm":
        picture = picture.convert("L")
    elif extension == "pbm":
        picture = picture.convert("1")
    pillow_format, options = IMAGE_FORMATS[extension]
    with io.BytesIO() as stream:
        picture.save(stream, format=pillow_format, **options)
        return stream.getvalue()


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """An array of an array, a tensor (also on a device, or with a gradient), a number or a list.

    Example:
        >>> as_array([1, 2])
        array([1, 2])
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def _storable(value: Any, name: str | None = None) -> np.ndarray[Any, Any]:
    array = as_array(value)
    if array.dtype.hasobject and not isinstance(value, np.ndarray):
        what = type(value).__name__ if name is None else f"{name!r} ({type(value).__name__})"
        raise ValueError(f"{what} makes an array of Python objects, which could only be pickled")
    return array


def _as_image(value: Any) -> Image:
    try:
        import PIL.Image
    except ImportError as error:
        raise ImportError("images are encoded with Pillow: pip install 'mpwds[images]'") from error
    if isinstance(value, PIL.Image.Image):
        return value
    pixels = as_array(value)
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
