"""Make images of one size: decode, crop, resize and flip in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import chain
from typing import Any

import numpy.typing as npt

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.decoding.fields import IMAGE_EXTENSIONS, errors_as_decode_error
from mpwds.pipeline.decoding.resizing import (
    Image,
    RandomResizedCrop,
    ResizeCenterCrop,
    Resized,
    Resizer,
    Size,
)
from mpwds.pipeline.error_context import add_note, arguments, changed
from mpwds.pipeline.filter import MapStream, OneToOneStage
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stages.collation import Row
from mpwds.pipeline.stages.fields import alternatives, missing
from mpwds.pipeline.stream import Stream
from mpwds.suggestions import suggest_arguments
from mpwds.warn import warn


@suggest_arguments
def random_resized_crop(
    field: str | Iterable[str],
    size: Size,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    *,
    dtype: str = "uint8",
    layout: str = "HWC",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    antialias: bool = True,
    box_field: str | None = None,
    handler: Handler = reraise_exception,
) -> ResizeStage:
    """Stage that decodes an image, crops it at random, resizes the crop, and flips half of the results.

    It takes the bytes of the image, so no ``decode`` comes before it. ``mpwds.RandomResizedCrop(size, ...)``
    is the same as a function of the bytes, for other loaders. The orientation in EXIF data is ignored. Of
    pixels of 16 bits the upper eight count.

    Args:
        field: A field. ``"jpg;png"`` is the first of these that a sample has; ``"left right"`` are two
            fields, each with a crop of its own.
        size: Height and width of the result, or one number for both, in pixels.
        scale: The least and the largest part of the image's area that the crop may have.
        ratio: The least and the largest width of the crop, divided by its height.
        flip: The probability that the result is mirrored, left to right.
        dtype: ``"uint8"``, or ``"float32"`` with values from 0 to 1, or as ``mean`` and ``std`` say.
        layout: ``"HWC"`` for arrays of shape (height, width, 3), ``"CHW"`` for (3, height, width).
        mean: Three numbers that are subtracted from the colours, which are between 0 and 1.
        std: Three numbers by which they are then divided.
        antialias: Whether each pixel of a reduced image is a mean over all the pixels it covers.
        box_field: Name of a further field for an int64 array ``(top, left, height, width, flipped)``: the
            crop, in pixels of the image. With several fields, each has a field ``box_field`` with a dot and
            its name.
        handler: Called when an image cannot be decoded; the default raises the exception.

    Raises:
        ValueError: An argument is out of its range.
        DecodeError: While iterating, a field is no image, or is missing.

    Source:
        ``torchvision.transforms.RandomResizedCrop``, ``RandomHorizontalFlip`` and ``Normalize``.

    Example:
        >>> import mpwds
        >>> dataset = mpwds.WebDataset("train-{000..146}.tar").random_resized_crop("jpg", 224, mean=None)
        >>> print(dataset.stages[-1])
        random_resized_crop('jpg', 224)
    """
    return ResizeStage(
        field,
        RandomResizedCrop(size, dtype, layout, mean, std, antialias, scale, ratio, flip),
        box_field,
        handler,
    )


@suggest_arguments
def resize_center_crop(
    field: str | Iterable[str],
    resize: Size = 256,
    size: Size = 224,
    *,
    dtype: str = "uint8",
    layout: str = "HWC",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    antialias: bool = True,
    handler: Handler = reraise_exception,
) -> ResizeStage:
    """Stage that decodes an image, resizes it, and cuts out its centre: the transform for validation.

    Args:
        field: As in ``random_resized_crop``, like the arguments that are not named here, and the errors.
        resize: The length of the shorter side after resizing, or height and width, in pixels.
        size: Height and width of the centre, or one number for both; at most ``resize``.

    Source:
        ``torchvision.transforms.Resize`` and ``CenterCrop``.

    Example:
        >>> print(resize_center_crop("jpg;png", 232))
        resize_center_crop('jpg;png', 224, resize=232)
    """
    resizer = ResizeCenterCrop(size, dtype, layout, mean, std, antialias, resize)
    return ResizeStage(field, resizer, None, handler)


@suggest_arguments
def resized(
    field: str | Iterable[str],
    size: Size,
    *,
    dtype: str = "uint8",
    layout: str = "HWC",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    antialias: bool = True,
    handler: Handler = reraise_exception,
) -> ResizeStage:
    """Stage that decodes an image and resizes it.

    Args:
        field: As in ``random_resized_crop``, like the arguments that are not named here, and the errors.
        size: Height and width of the result, or one number for its shorter side, in pixels.

    Source:
        ``torchvision.transforms.Resize``.

    Example:
        >>> print(resized("jpg", (64, 48), layout="CHW"))
        resized('jpg', (64, 48), layout='CHW')
    """
    return ResizeStage(field, Resized(size, dtype, layout, mean, std, antialias), None, handler)


@dataclass(frozen=True)
class ResizeStage(OneToOneStage):
    takes = dict
    field: str | Iterable[str]
    resizer: Resizer
    box_field: str | None = None
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        check_handler(self.called, self.handler)
        try:
            names = set(chain(*self.fields()))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self.called}: {error}") from None
        if self.box_field is not None and (self.box_field in names or self.box_field.startswith("__")):
            raise ValueError(f"{self.called}: box_field={self.box_field!r} would replace that field")
        if not names <= set(IMAGE_EXTENSIONS) - {"jpg", "jpeg"}:
            _warn_without_simplejpeg()

    @property
    def called(self) -> str:  # type: ignore[override]  # three methods make this stage
        return self.resizer.called

    def __str__(self) -> str:
        resizer = self.resizer
        options = changed(resizer, *(name for name in vars(resizer) if name != "size"))
        options.update(changed(self, "box_field", "handler"))
        return f"{self.called}({arguments(self.field, resizer.size, **options)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _ResizedStream(self, source, context)

    def fields(self) -> list[tuple[str, ...]]:
        specs = self.field.split() if isinstance(self.field, str) else list(self.field)
        return [alternatives(spec) for spec in specs] or [alternatives("")]


@cache
def _warn_without_simplejpeg() -> None:
    if find_spec("simplejpeg") is None:
        warn(
            "JPEG is decoded with Pillow, at full size, which takes 1.4 to 2.8 times as long as with "
            "libjpeg-turbo: pip install 'mpwds[turbojpeg]'"
        )


class _ResizedStream(MapStream):
    def __init__(self, stage: ResizeStage, source: Stream[Any], context: Context) -> None:
        draws = isinstance(stage.resizer, RandomResizedCrop)
        super().__init__(source, stage, self._made, seeded(context) if draws else None)
        self._fields = stage.fields()
        self._image = stage.resizer.image
        self._box_field = stage.box_field
        # A handler decides about an element before it is part of a batch.
        self._deferred = context.deferred and stage.handler is reraise_exception

    def _made(self, sample: Any) -> dict[str, Any]:
        result = dict(sample)
        for names in self._fields:
            name = next((name for name in names if name in sample), names[0])
            with errors_as_decode_error(name, sample):
                if name not in sample:
                    kinds = "give all kinds of pictures, such as 'jpg;jpeg;png'"
                    raise ValueError(f"{missing(sample, names)} ({kinds})")
                image = self._image(sample[name])
                write = partial(self._write, image, name, sample)
                result[name] = _Deferred(image, write) if self._deferred else image.made()
            if self._box_field is not None:
                field = self._box_field if len(self._fields) == 1 else f"{self._box_field}.{name}"
                result[field] = image.box()
        return result

    def _write(self, image: Image, name: str, sample: dict[str, Any], out: npt.NDArray[Any]) -> None:
        """Decodes a deferred image into its row."""
        try:
            with self.timed(), errors_as_decode_error(name, sample):
                image.write_into(out)
        except Exception as error:
            add_note(error, f"in {self._stage}")
            raise


class _Deferred(Row):
    """An image that is decoded into its row of the batch, in the time and with the errors of its stage."""

    def __init__(self, image: Image, write: Callable[[npt.NDArray[Any]], None]) -> None:
        self.shape, self.dtype = image.shape, image.dtype
        self._write = write

    def write_into(self, out: npt.NDArray[Any]) -> None:
        self._write(out)
