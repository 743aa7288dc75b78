"""Shards of photographs, more or less, and the decoding that all contestants share."""

from __future__ import annotations

import inspect
import io
import os
import sys
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import mpwds

SIZE = 224

Decode = Callable[[bytes], "np.ndarray[Any, Any]"]


def to_float32(jpeg: bytes) -> np.ndarray[Any, Any]:
    """float32 of shape (3, 224, 224), between 0 and 1."""
    out = np.empty((3, SIZE, SIZE), np.float32)
    to_float32_in(out, jpeg)
    return out


def to_float32_in(out: np.ndarray[Any, Any], jpeg: bytes) -> None:
    np.divide(np.asarray(_resized(jpeg)).transpose(2, 0, 1), np.float32(255), out=out)


def to_uint8(jpeg: bytes) -> np.ndarray[Any, Any]:
    """uint8 of shape (224, 224, 3)."""
    return np.array(_resized(jpeg))


def to_uint8_in(out: np.ndarray[Any, Any], jpeg: bytes) -> None:
    out[...] = _resized(jpeg)


def _resized(jpeg: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    square = (left, top, left + side, top + side)
    return image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=square)


def write_shards(
    folder: Path, shards: int, samples: int, photograph: Callable[[np.random.Generator], bytes] | None = None
) -> list[str]:
    """Writes shards of so many samples each: a JPEG image and a label."""
    rng = np.random.default_rng(0)
    paths = [str(folder / f"images-{number:03d}.tar") for number in range(shards)]
    for path in paths:
        with mpwds.TarWriter(path, encoder=False) as sink:
            for number in range(samples):
                jpeg = (photograph or _of_any_size)(rng)
                sink.write({"__key__": f"{number:06d}", "jpg": jpeg, "cls": b"%d" % (number % 10)})
    return paths


def cached_shards(folder: Path, shards: int, samples: int, photograph: partial[bytes]) -> list[str]:
    """Links in ``folder`` to the shards that ``write_shards`` makes, which are kept for the next run."""
    made_by = inspect.getsource(sys.modules[__name__]) + repr((shards, samples, photograph.keywords))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mpwds", "photographs")
    kept = cache / f"{zlib.crc32(made_by.encode()):08x}"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        making = tempfile.mkdtemp(dir=cache)
        write_shards(Path(making), shards, samples, photograph)
        os.rename(making, kept)
    paths = [folder / path.name for path in sorted(kept.iterdir())]
    for path in paths:
        path.symlink_to(kept / path.name)
    return list(map(str, paths))


def _of_any_size(rng: np.random.Generator) -> bytes:
    """An image of 250x250 to 500x400, 10 to 40 kB."""
    return photograph(rng, int(rng.integers(250, 501)), int(rng.integers(250, 401)))


def photograph(
    rng: np.random.Generator, width: int, height: int, quality: int = 90, smoothness: float = 0.4
) -> bytes:
    """An image with contrast on all scales, as photographs have it."""
    pixels = np.zeros((height, width, 3), np.float32)
    for cells in (2, 4, 8, 16, 32, 64, 128, 256):
        noise = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8))
        scale = noise.resize((width, height), Image.Resampling.BICUBIC)
        pixels += np.asarray(scale, np.float32) / 128 / cells**smoothness - 1 / cells**smoothness
    image = Image.fromarray(np.clip(128 + 50 * pixels, 0, 255).astype(np.uint8))
    target = io.BytesIO()
    image.save(target, "JPEG", quality=quality)
    return target.getvalue()
