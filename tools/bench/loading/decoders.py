"""Contestants that crop, resize and flip JPEG images at random, each with what its package ships."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from ctypes.util import find_library
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import mpwds
from loading import formats
from loading.contest import Contest, Contestant, is_installed
from loading.formats import import_grain
from loading.images import BATCH, FOR_EVER, Images, InMemory
from loading.jpegs import SIZE, Decode

LONG = 400
"""Shards of a format whose reader ends an epoch: of 256 images each."""
MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]

GOALS = {
    "webdataset + DataLoader + torchvision v2": {"uint8": 2.2, "float32": 2.8},
    "SPDL, its own decoder": {"uint8": 1.75, "float32": 1.75},
    "grain + Pillow": {"uint8": 2.0, "float32": 2.0},
}


def contest(images: Images, name: str) -> Contest:
    """All contestants, each with what its package ships."""
    ways: list[tuple[str, Callable[[Images], Iterable[Any]], str]] = [
        ("mpwds, random_resized_crop", ours, "simplejpeg"),
        ("webdataset + DataLoader + torchvision v2", webdataset_torchvision, "torchvision"),
        *((f"{label} + torchvision v2", partial(by_torchvision, way), of) for label, way, of in LOADERS),
        ("SPDL, its own decoder", spdl_decoder, "spdl" if find_library("avfilter") else "ffmpeg"),
        ("grain + Pillow", grain_pillow, "grain"),
        ("DALI, on the CPU", dali, "nvidia.dali"),
    ]
    contestants = [
        Contestant(label, partial(way, images), GOALS.get(label, {}).get(images.dtype), package)
        for label, way, package in ways
    ]
    return Contest(name, contestants, BATCH, images.workers)


def with_the_same_function(images: Images) -> list[Contestant]:
    """Contestants that use ``images.decode``, beside those of ``images.contest``. DALI calls no function."""
    return [
        Contestant(name, partial(way, images, images.decode), package=package)
        for name, way, package in LOADERS
    ]


def ours(images: Images) -> Iterable[Any]:
    dataset = mpwds.WebDataset(images.shards * FOR_EVER, shardshuffle=False)
    cropped = dataset.map_dict(cls=int).random_resized_crop("jpg", SIZE, **options(images.dtype))
    batches = cropped.to_tuple("jpg", "cls").batched(BATCH)
    return mpwds.MultiLoader(batches, workers=images.workers)


def cropped_uint8(jpeg: bytes) -> np.ndarray[Any, Any]:
    return _crop("uint8")(jpeg)


def cropped_float32(jpeg: bytes) -> np.ndarray[Any, Any]:
    return _crop("float32")(jpeg)


@cache
def _crop(dtype: str) -> mpwds.RandomResizedCrop:
    one_thread()  # in the worker that calls it first
    return mpwds.RandomResizedCrop(SIZE, **options(dtype))


def options(dtype: str) -> dict[str, Any]:
    return {} if dtype == "uint8" else {"dtype": dtype, "layout": "CHW", "mean": MEAN, "std": STD}


# ------------------------------------------------------------------------------------------ torchvision


def webdataset_torchvision(images: Images) -> Iterable[Any]:
    import webdataset
    from torch.utils.data import DataLoader

    transform = torchvision_transform(images.dtype)
    dataset = webdataset.WebDataset(images.shards * FOR_EVER, shardshuffle=False).decode("pil")
    pairs = dataset.to_tuple("jpg", "cls").map_tuple(transform, int)
    return DataLoader(pairs.batched(BATCH), batch_size=None, num_workers=images.workers)


def by_torchvision(way: Callable[[Images, Decode], Iterable[Any]], images: Images) -> Iterable[Any]:
    transform = torchvision_transform(images.dtype)
    return way(images, lambda jpeg: transform(opened(jpeg)))


def torchdata_nodes(images: Images, decode: Decode) -> Iterable[Any]:
    """Its mapper in threads: its processes are those of torch's DataLoader."""
    import torch.utils.data
    import torchdata.nodes

    class Pairs:
        def __iter__(self) -> Iterator[Any]:
            dataset = mpwds.WebDataset(images.shards * FOR_EVER, shardshuffle=False)
            return iter(dataset.to_tuple("jpg", "cls"))

    one_thread()
    nodes = torchdata.nodes
    pairs = nodes.ParallelMapper(
        nodes.IterableWrapper(Pairs()),
        lambda pair: (decode(pair[0]), int(pair[1])),
        num_workers=images.workers,
    )
    batches = nodes.Mapper(nodes.Batcher(pairs, BATCH), torch.utils.data.default_collate)
    return nodes.Loader(nodes.Prefetcher(batches, 2))


def write_formats(shards: list[str]) -> None:
    """Writes the images of tar shards in the formats of packages that read no tar, or prepare it."""
    samples = [
        {"jpg": sample["jpg"], "cls": int(sample["cls"])}
        for sample in mpwds.WebDataset(shards, shardshuffle=False)
    ]
    folder = Path(shards[0]).parent
    formats.write_mds(folder / "mds", {"jpg": "bytes", "cls": "int"}, samples, LONG)
    if is_installed("litdata"):
        formats.write_litdata(folder / "litdata", samples, LONG)
    if is_installed("megatron.energon"):
        formats.write_shards(folder / "energon", samples, 64)
        formats.prepare_energon(folder / "energon")


def mosaicml_streaming(images: Images, decode: Decode) -> Iterable[Any]:
    _declare_operators()
    streaming = formats.import_streaming(unused=("transformers",))
    from streaming.base.util import clean_stale_shared_memory

    class Pairs(streaming.StreamingDataset):  # type: ignore[misc]  # it has no types
        def __getitem__(self, number: int) -> Any:
            sample = super().__getitem__(number)
            return decode(sample["jpg"]), sample["cls"]

    clean_stale_shared_memory()
    dataset = Pairs(local=str(Path(images.shards[0]).parent / "mds"), shuffle=True, batch_size=BATCH)
    return streaming.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=images.workers)


def lightning_litdata(images: Images, decode: Decode) -> Iterable[Any]:
    import litdata

    class Pairs(litdata.StreamingDataset):  # type: ignore[misc]  # as above
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return decode(sample["jpg"]), sample["cls"]

    dataset = Pairs(str(Path(images.shards[0]).parent / "litdata"), shuffle=True)
    return litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=images.workers)


def energon(images: Images, decode: Decode) -> Iterable[Any]:
    from torch.utils.data import default_collate

    _declare_operators()

    def pair(sample: dict[str, Any]) -> tuple[Any, int]:
        return decode(sample["jpg"]), int(sample["cls"])

    folder = Path(images.shards[0]).parent / "energon"
    return formats.energon_loader(folder, pair, default_collate, BATCH, images.workers, buffer=100)


LOADERS: list[tuple[str, Callable[[Images, Decode], Iterable[Any]], str]] = [
    ("torchdata.nodes", torchdata_nodes, "torchdata"),
    ("MosaicML Streaming", mosaicml_streaming, "torchvision"),
    ("litdata", lightning_litdata, "litdata"),
    ("Energon", energon, "megatron.energon"),
]
"""Loaders that take any function of a JPEG's bytes."""


def torchvision_transform(dtype: str) -> Any:
    """As torchvision's pages advise: a tensor of uint8 first, and floats at the end."""
    import torch

    _declare_operators()
    from torchvision.transforms import v2

    steps = [v2.ToImage(), v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]
    if dtype == "float32":
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose(steps)


@cache
def _declare_operators() -> Any:
    """torchvision's wheel cannot load its operators without CUDA, and asks for the signatures of two."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


# ----------------------------------------------------------------------------------------------- others


def spdl_decoder(images: Images) -> Iterable[Any]:
    """SPDL's pipeline in one subprocess for each worker; FFmpeg crops and scales while it decodes."""
    from loading.spdl_pool import merged

    parts = [partial(SpdlBatches, images, part) for part in range(images.workers)]
    return merged(parts, images.batch_nbytes + 4096)


class SpdlBatches:
    def __init__(self, images: Images, part: int) -> None:
        self._images = images
        self._shards = images.shards[part :: images.workers]

    def __iter__(self) -> Iterator[Any]:
        import spdl.io

        is_float = self._images.dtype == "float32"
        samples = iter(mpwds.WebDataset(self._shards * FOR_EVER, shardshuffle=False).to_tuple("jpg", "cls"))
        pixels = np.empty((BATCH, *self._images.shape), self._images.dtype)
        labels = np.empty(BATCH, np.int64)
        scale, offset = normalisation()
        decode = spdl.io.decode_config(decoder_options={"threads": "1"})
        while True:
            frames = []
            for row in range(BATCH):
                jpeg, labels[row] = next(samples)
                packets = spdl.io.demux_image(jpeg)
                graph = spdl_filter(*image_size(jpeg))
                frames.append(spdl.io.decode_packets(packets, decode_config=decode, filter_desc=graph))
            decoded = spdl.io.to_numpy(spdl.io.convert_frames(frames))
            if is_float:
                np.multiply(decoded.transpose(0, 3, 1, 2), scale, out=pixels)
                pixels += offset
            else:
                pixels[...] = decoded
            yield pixels, labels


def spdl_filter(width: int, height: int) -> str:
    top, left, crop_height, crop_width = random_box(width, height)
    flip = ",hflip" if random.random() < 0.5 else ""
    crop = f"crop={crop_width}:{crop_height}:{left}:{top}:exact=1"
    return f"{crop},scale={SIZE}:{SIZE}:flags=bilinear{flip},format=pix_fmts=rgb24"


def grain_pillow(images: Images) -> Iterator[Any]:
    grain = import_grain()
    samples = InMemory(images).samples
    dataset = grain.MapDataset.source(samples).repeat().map(GrainPair(images.dtype))
    batches = dataset.to_iter_dataset(grain.ReadOptions(num_threads=0)).batch(BATCH)
    options = grain.MultiprocessingOptions(num_workers=images.workers, per_worker_buffer_size=2)
    iterator: Iterator[Any] = iter(batches.mp_prefetch(options))
    return iterator


class GrainPair:
    def __init__(self, dtype: str) -> None:
        self._decode = pillow_uint8 if dtype == "uint8" else pillow_float32

    def __call__(self, pair: tuple[bytes, int]) -> tuple[Any, int]:
        return self._decode(pair[0]), pair[1]


def dali(images: Images) -> Iterator[Any]:
    """DALI decodes only the crop, on threads of one process."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(batch_size=BATCH, num_threads=images.workers, device_id=None)  # type: ignore[untyped-decorator]  # DALI has no types
    def pipeline() -> Any:
        jpegs, labels = fn.readers.webdataset(
            paths=images.shards, ext=["jpg", "cls"], missing_component_behavior="error", name="reader"
        )
        pixels = fn.decoders.image_random_crop(
            jpegs, random_area=[0.08, 1], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        pixels = fn.resize(pixels, size=SIZE)
        if images.dtype == "uint8":
            return fn.flip(pixels, horizontal=fn.random.coin_flip()), labels
        return (
            fn.crop_mirror_normalize(
                pixels,
                mean=[255 * value for value in MEAN],
                std=[255 * value for value in STD],
                mirror=fn.random.coin_flip(),
                dtype=types.FLOAT,
            ),
            labels,
        )

    for batch in DALIGenericIterator(pipeline(), ["jpg", "cls"], auto_reset=True):
        yield batch[0]["jpg"], batch[0]["cls"]


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """Top, left, height and width of a crop, as torchvision draws it."""
    crop = mpwds.RandomResizedCrop(SIZE).crop(height, width)
    return crop.top, crop.left, crop.height, crop.width


def pillow_uint8(jpeg: bytes) -> np.ndarray[Any, Any]:
    from PIL import Image

    image = opened(jpeg)
    top, left, height, width = random_box(*image.size)
    box = (left, top, left + width, top + height)
    resized = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
    if random.random() < 0.5:
        resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(resized)


def pillow_float32(jpeg: bytes) -> np.ndarray[Any, Any]:
    scale, offset = normalisation()
    pixels: np.ndarray[Any, Any] = pillow_uint8(jpeg).transpose(2, 0, 1) * scale[0]
    pixels += offset[0]
    return pixels


def normalisation() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Factor and summand of shape (1, 3, 1, 1)."""
    mean, std = (np.array(values, np.float32).reshape(1, 3, 1, 1) for values in (MEAN, STD))
    return 1 / (255 * std), -mean / std


def opened(jpeg: bytes) -> Any:
    import io

    from PIL import Image

    return Image.open(io.BytesIO(jpeg)).convert("RGB")


def image_size(jpeg: bytes) -> tuple[int, int]:
    """Width and height, from the header: FFmpeg's crop has no random numbers to draw."""
    import simplejpeg

    height, width, *_ = simplejpeg.decode_jpeg_header(jpeg)
    return width, height


def one_thread() -> None:
    """Each worker has a processor of its own; more threads would only disturb the others."""
    import torch

    torch.set_num_threads(1)
