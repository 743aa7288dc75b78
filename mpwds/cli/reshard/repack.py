"""``mpwds repack``: shards with JPEG images of a smaller size and quality."""

from __future__ import annotations

import io
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any

from typer import Option

from mpwds.cli.console import console, table
from mpwds.cli.options import Distributed, ShardByShard
from mpwds.cli.outputs import is_stdout
from mpwds.cli.reshard.commands import report_processed
from mpwds.imports import require
from mpwds.viewing.wording import size

_LARGEST_EXIF_BYTES = 65_533  # of one segment of a JPEG file


def repack(
    to: ShardByShard,
    over: Distributed,
    short_side: Annotated[int, Option(min=1, metavar="PIXELS", help="The shorter side of images.")] = 256,
    quality: Annotated[int, Option(min=1, max=100, help="Quality of the new JPEG images.")] = 90,
    fields: Annotated[str, Option(help="Fields with JPEG images, with commas between.")] = "jpg,jpeg",
    restart_markers: Annotated[
        bool, Option("--restart-markers", help="One a row of new images, for decoders that begin anywhere.")
    ] = False,
) -> None:
    """Make the JPEG images in shards smaller, so that they take less room and time.

    Write `mpwds repack in-{000..099}.tar out --short-side 256 --quality 90`. Each shard becomes one of the
    folder, or the series, OUTPUT. Other fields stay as they are, and so do images that would not become
    smaller, or are no JPEG. A table compares the bytes, and tells what the new compression costs (PSNR). A
    run that was killed continues, as one of proc does.
    """
    pillow = require("PIL", "images are made smaller with Pillow: pip install 'mpwds[images]'")

    from mpwds.cli.reshard.proc import Processing
    from mpwds.pipeline.stages.map import map as map_stage

    names = tuple(name.strip().removeprefix(".") for name in fields.split(","))
    if not all(names):
        raise ValueError(f"--fields {fields!r} names no field: give names with commas between")
    smaller = Repack(names, short_side, quality, restart_markers)
    processing = Processing([map_stage(smaller)], to, smaller.counts)
    counts = processing.run(over, [repr(smaller), pillow.__version__])
    figures = _figures_of(counts)
    if counts["shards"] and not to.as_json and not is_stdout(to.output):
        _show(figures)
    report_processed(to, counts, figures)


@dataclass(frozen=True)
class Repack:
    """Makes the images in some fields of a sample smaller, and counts what comes of it in ``counts``.

    An image stays as it is if its shorter side is ``short_side`` pixels at most, if it would not take fewer
    bytes, or if it is no JPEG, whatever its field is called. So does one with EXIF data in several segments,
    more than Pillow writes. Colours (also grey and CMYK), EXIF data and ICC profiles stay.
    """

    fields: tuple[str, ...]
    short_side: int
    quality: int
    restart_markers: bool = False
    counts: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {name: self._field(sample, name) if name in self.fields else sample[name] for name in sample}

    def _field(self, sample: dict[str, Any], name: str) -> bytes:
        from mpwds.pipeline.decoding.fields import errors_as_decode_error

        with errors_as_decode_error(name, sample):
            return self._repacked(sample[name])

    def _repacked(self, data: bytes) -> bytes:
        import numpy as np
        from PIL import Image

        from mpwds.pipeline.decoding.images import open_image

        image = open_image(data)
        if image.format not in ("JPEG", "MPO"):
            return data
        image.load()
        self.counts.update(images=1, before=len(data), after=len(data))
        factor = self.short_side / min(image.size)
        if factor >= 1:
            return data
        width, height = (max(round(extent * factor), self.short_side) for extent in image.size)
        resized = image.resize((width, height), Image.Resampling.LANCZOS)
        kept = {key: image.info[key] for key in ("exif", "icc_profile") if key in image.info}
        if len(kept.get("exif", b"")) > _LARGEST_EXIF_BYTES:
            return data
        restart = {"restart_marker_rows": 1} if self.restart_markers else {}
        with io.BytesIO() as stream:
            resized.save(stream, "JPEG", quality=self.quality, optimize=True, **kept, **restart)
            repacked = stream.getvalue()
        if len(repacked) >= len(data):
            return data
        with Image.open(io.BytesIO(repacked)) as again:
            error = np.asarray(again, np.int64) - np.asarray(resized)
        squared = {"squared_error": int((error**2).sum()), "values": error.size}
        self.counts.update(smaller=1, after=len(repacked) - len(data), **squared)
        return repacked


def _figures_of(counts: Counter[str]) -> dict[str, Any]:
    """The figures for programs; PSNR in dB, of the new images against theirs before compression."""
    psnr = None
    if counts["squared_error"]:
        psnr = round(10 * math.log10(255**2 * counts["values"] / counts["squared_error"]), 2)
    names = ("images", "smaller", "before", "after")
    return {**{name: counts[name] for name in names}, "psnr": psnr}


def _show(figures: dict[str, Any]) -> None:
    images, psnr = figures["images"], figures["psnr"]
    if not images:
        return console().print("no sample has a JPEG image in these fields: name others by --fields")
    rows = [
        ["before", size(figures["before"]), size(figures["before"] / images), ""],
        ["after", size(figures["after"]), size(figures["after"] / images), f"{psnr} dB" if psnr else ""],
    ]
    title = f"{figures['smaller']:,} of {images:,} images became smaller"
    return console().print(table(title, ["images", "bytes", "each", "PSNR"], rows, left=["images"]))
