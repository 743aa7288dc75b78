"""ShardListDataset: the samples of tar shards, by number, in the form of wids: their fields are streams."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import posixpath
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from io import BytesIO
from itertools import accumulate
from types import GenericAlias
from typing import Any, Literal, SupportsIndex, TypeAlias

import numpy as np

from mpwds.pipeline.decoding.fields import LOADS, decode_error, gunzip, torch_loads, unpickle_loads
from mpwds.pipeline.decoding.images import open_image
from mpwds.storage.caches.directory import distinct_name, source_digest
from mpwds.storage.caches.shard_cache import ShardCache
from mpwds.storage.indexed.descriptions import Description, Source
from mpwds.storage.indexed.tar_shards import TarShards
from mpwds.storage.streams.urls import folder_of, join_url, url_to_cache_name
from mpwds.suggestions import suggest_arguments
from mpwds.warn import warn

Sample: TypeAlias = "dict[str, Any]"
Transformation: TypeAlias = "Callable[[Any], Any]"
Transformations: TypeAlias = "str | Transformation | Iterable[str | Transformation] | None"

_MOST_MISSES = 0.3  # of all accesses
_FEW_ACCESSES = 100
_OPEN_LOCAL = 100
_LEAST_BYTES = 1_000_000  # of a cache; less counts shards
_IMAGES = ("jpg", "png", "ppm", "pgm", "pbm", "pnm")
_DECODED = ("txt", "text", "cls", "cls2", "json", "mp", "npy")


class ShardListDataset:
    """Map-style dataset of the samples of tar shards: ``dataset[i]`` reads one of them.

    A sample is a dict of streams (``io.BytesIO``) under the extensions of its members, with the dot
    (``".jpg"``), and of ``__key__``, ``__dataset__``, ``__index__``, ``__shard__`` (the URL) and
    ``__shardindex__`` (its number in the shard). The transformations then make what they like of it.

    For torch's ``DataLoader``, ``mpwds.DataLoader`` and ``MultiLoader``. Objects can be pickled, and used in
    forks and by several threads. Local shards are read where they are. Other shards are copied to a cache of
    bounded size, which all processes of the machine share. A shard's headers are read once, and the offsets
    of its samples are kept beside it (:class:`mpwds.storage.indexed.tar_shards.TarShards`).

    Args:
        shards: A list of dicts ``{"url": ..., "nsamples": ...}``, or the path, URL or open file of a
            description (:func:`mpwds.storage.indexed.descriptions.load_description`).
        cache_size: Bytes that copies of shards may have in all. Below a million it counts shards, as wids'
            documentation says, of the largest ``filesize``; without any, there is no limit.
        cache_dir: Folder for them, under the shards' own names.
        lru_size: Number of copies that are open at a time; if all shards are local, at least 100 of them.
        dataset_name: The dataset's name; by default that of the description, or a hash of ``shards``.
        localname: Function from a shard's URL to the path for its copy. By default a name with a hash, in
            ``$WIDS_CACHE`` or in ``_wids_cache`` of the folder for temporary files.
        transformations: ``"PIL"`` or ``"numpy"`` to decode the common fields (:func:`default_decoder`), a
            function of a sample, or a list of these, which are applied in order; empty for streams.
        keep: Whether the cache may grow without limit.
        base: Where relative URLs start; by default at the folder of the description.
        options: Override keys of the description.
        allow_pickle: Whether to decode fields that are pickles. Only if you trust the author of the data.
        remote: Whether to read just the samples asked for from shards that are not local, by ranges, without
            a copy. Their offsets are kept in ``cache_dir``, if that is given, or are in the description.

    Attributes:
        shards: The dicts of the shards, with absolute URLs.
        lengths: The number of samples in each.
        cum_lengths: The number of samples in each and those before it.
        total_length: The number of all samples.
        spec: The description, or ``options`` for a list of shards.
        base, dataset_name, cache_dir: As given, or where they were found.

    Raises:
        SpecError: The description is not valid.
        ValueError: The shards of a list are not dicts with ``url`` and ``nsamples``, or there are none.
        ShardError: On reading a sample: its shard is damaged or compressed, or has another number of samples
            than its description says.
        DecodeError: On reading a sample: a field cannot be decoded.

    Source:
        ``wids.ShardListDataset`` (webdataset 0.2.100). There ``cache_size`` and ``keep`` have no effect, two
        shards of one name share a copy, pickles are always loaded, a negative index reads from the first
        shard, and each process scans each shard each time that it opens it.

    Example:
        >>> import mpwds
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with mpwds.TarWriter(f"{folder}/x.tar") as sink:
        ...         sizes = [sink.write({"__key__": f"{n}", "cls": n}) for n in range(3)]
        ...     dataset = ShardListDataset([{"url": f"{folder}/x.tar", "nsamples": 3}])
        ...     len(dataset), dataset[2][".cls"], dataset[2]["__key__"]
        (3, 2, '2')
    """

    def __class_getitem__(cls, item: Any) -> GenericAlias:
        """For annotations such as ``ShardListDataset[dict]``."""
        return GenericAlias(cls, item)

    @suggest_arguments
    def __init__(
        self,
        shards: Sequence[Mapping[str, Any]] | Source,
        *,
        cache_size: float = int(1e12),
        cache_dir: str | os.PathLike[str] | None = None,
        lru_size: int = 10,
        dataset_name: str | None = None,
        localname: Callable[[str], str] | None = None,
        transformations: Transformations = "PIL",
        keep: bool = False,
        base: str | None = None,
        options: Mapping[str, Any] | None = None,
        allow_pickle: bool = False,
        remote: bool = False,
    ) -> None:
        self.base = base
        if isinstance(shards, (str, os.PathLike)) or hasattr(shards, "read"):
            self._description = Description(shards, base=base, options=options)  # type: ignore[arg-type]
            contents: Mapping[str, Any] = self._description.contents
            self.lengths = self._description.lengths
            if base is None and isinstance(shards, (str, os.PathLike)):
                self.base = folder_of(os.fspath(shards))
        else:
            self.spec = contents = options or {}
            self.shards = _checked(shards, base)
            self.lengths = [shard["nsamples"] for shard in self.shards]
        self.dataset_name = dataset_name or contents.get("name") or _hash(str(shards))
        self.total_length = sum(self.lengths)
        self._numbers = range(self.total_length)
        self._allow_pickle = allow_pickle
        is_one = isinstance(transformations, str) or callable(transformations)
        given: Any = [transformations] if is_one else transformations or []
        self.transformations = [_transformation(each, allow_pickle) for each in given]
        keep = keep or bool(contents.get("keep"))
        if 0 <= cache_size < _LEAST_BYTES:
            largest = max(shard.get("filesize") or 0 for shard in self.shards)
            cache_size = max(cache_size, 1) * largest or -1
        self._warned = False
        self._cache: ShardCache | Callable[[str], ShardCache] | None = None
        self.cache_dir: str | None = None
        if not remote or cache_dir is not None:
            self._cache, self.cache_dir = _cache(cache_dir, localname, -1 if keep else cache_size)
        self._remote = remote
        self._lru_size = lru_size

    @cached_property
    def shards(self) -> Sequence[Mapping[str, Any]]:
        return self._description.shards

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        return {**self._description.contents, "shardlist": self.shards}

    @cached_property
    def cum_lengths(self) -> list[int]:
        return list(accumulate(self.lengths))

    @cached_property
    def _samples(self) -> TarShards:
        urls = [shard["url"] for shard in self.shards]
        copies = ":" in "".join(urls) and not self._remote
        return TarShards(
            urls,
            self.lengths,
            described=self.shards,
            cache=self._cache,
            remote=self._remote,
            open_files=max(self._lru_size, 1 if copies else _OPEN_LOCAL),
            more=_of_shard,
        )

    def __len__(self) -> int:
        """The number of samples."""
        return self.total_length

    def __getitem__(self, index: int) -> Any:
        """Sample ``index``, transformed; a negative number counts from the end."""
        shard, inner = self._place(index)
        samples = self._samples
        sample = samples.members(shard, inner, BytesIO, LazyBytesIO)
        sample["__index__"] = index
        sample["__shardindex__"] = inner
        if samples.fetches:
            self.check_cache_misses()
        for transformation in self.transformations:
            sample = transformation(sample)
        return sample

    def add_transform(self, transform: str | Transformation) -> ShardListDataset:
        """Adds a transformation after the others; returns the dataset."""
        self.transformations.append(_transformation(transform, self._allow_pickle))
        return self

    def get_shard(self, index: int) -> tuple[SamplesOfShard, int, Mapping[str, Any]]:
        """The shard that sample ``index`` is in, the sample's number there, and the shard's dict."""
        shard, inner = self._place(index)
        return SamplesOfShard(self._samples, shard), inner, self.shards[shard]

    def _place(self, index: int) -> tuple[int, int]:
        try:
            number = self._numbers[index]
            shard = bisect_right(self.cum_lengths, number)
        except IndexError:
            total = self.total_length
            raise IndexError(f"the dataset has {total} samples, there is no sample {index}") from None
        except TypeError:
            raise TypeError(f"a sample's index is a whole number, got {index!r}") from None
        return shard, number - self.cum_lengths[shard] + self.lengths[shard]

    def get_stats(self) -> tuple[int, int]:
        """The number of samples read, and for how many of them a shard had to be opened."""
        return self._samples.accesses, self._samples.misses

    def check_cache_misses(self) -> None:
        """Warns once if a shard had to be opened for more than 30% of the samples.

        Reading calls it unless all shards are local.
        """
        accesses, misses = self.get_stats()
        if not self._warned and accesses > _FEW_ACCESSES and misses / accesses > _MOST_MISSES:
            self._warned = True
            warn(
                f"a shard was opened for {misses / accesses:.0%} of the samples: read those of a shard "
                "together (mpwds.ChunkedSampler, mpwds.ShardListSampler), or raise lru_size"
            )

    def close(self) -> None:
        """Closes the files that are open; reading opens them again."""
        self._samples.close()


class SamplesOfShard:
    """The samples of one shard, as streams; ``wids`` calls it ``IndexedTarSamples``."""

    def __init__(self, shards: TarShards, shard: int) -> None:
        self.path = shards.urls[shard]
        self._shards = shards
        self._shard = shard

    def __len__(self) -> int:
        return self._shards.lengths[self._shard]

    def __getitem__(self, index: int) -> Sample:
        number = range(len(self))[index]
        sample = self._shards.members(self._shard, number, BytesIO, LazyBytesIO)
        return {name: value for name, value in sample.items() if name == "__key__" or name[0] == "."}


class LazyBytesIO(BytesIO):
    """A stream of bytes that lie in a mapped file: they are copied when the stream is first used.

    So a program that looks at the labels alone does not wait for the pictures. Pickled, it is a ``BytesIO``.
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


def _restored(data: bytes, position: int) -> BytesIO:
    stream = BytesIO(data)
    stream.seek(position)
    return stream


def _after_copy(method: Any) -> Any:
    @functools.wraps(method)
    def copies(self: LazyBytesIO, *args: Any) -> Any:
        self._copy()
        return method(self, *args)

    return copies


for _name in (
    *("read", "read1", "readinto", "readinto1", "readline", "readlines", "__next__", "getvalue", "getbuffer"),
    *("seek", "tell", "truncate", "write", "writelines"),
):
    setattr(LazyBytesIO, _name, _after_copy(getattr(BytesIO, _name)))


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
        >>> default_decoder({"__key__": "a", ".cls": BytesIO(b"7")})
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
                stream = BytesIO(gunzip(stream.read()))
                sample[field] = stream
            load = _load_of(extensions[-1], format, allow_pickle)
            if load is not None:
                sample[field] = load(stream.read())
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise decode_error(field, sample, sample.get("__shard__"), reason) from error
    return sample


def _transformation(given: str | Transformation, allow_pickle: bool = False) -> Transformation:
    """A transformation as a function: ``"PIL"`` and ``"numpy"`` stand for ``default_decoder``."""
    if given in ("PIL", "numpy"):
        return partial(default_decoder, format=given, allow_pickle=allow_pickle)  # type: ignore[arg-type]
    if not callable(given):
        raise TypeError(f'a transformation is "PIL", "numpy" or a function of a sample, got {given!r}')
    return given


def _load_of(extension: str, format: str, allow_pickle: bool) -> Callable[[bytes], Any] | None:
    if extension in _IMAGES:
        if format not in ("PIL", "numpy"):
            raise ValueError(f'format must be "PIL" or "numpy", got {format!r}')
        return open_image if format == "PIL" else lambda data: np.asarray(open_image(data))
    if extension in ("pickle", "pkl"):
        if not allow_pickle:
            raise ValueError(
                "it is a pickle, and loading it would run the code that it holds; if you trust the author of "
                "the shard, pass allow_pickle=True"
            )
        return partial(unpickle_loads, allow_pickle=True)
    if extension in ("pt", "pth"):
        return partial(torch_loads, allow_pickle=allow_pickle)
    return LOADS[extension] if extension in _DECODED else None


def _checked(shards: Sequence[Mapping[str, Any]], base: str | None) -> list[Mapping[str, Any]]:
    shards = list(shards)
    if not shards:
        raise ValueError("ShardListDataset: there are no shards")
    for number, shard in enumerate(shards):
        url, count = (shard.get("url"), shard.get("nsamples")) if isinstance(shard, Mapping) else (None, None)
        if not isinstance(url, str) or not isinstance(count, SupportsIndex) or count.__index__() < 0:
            raise ValueError(
                'ShardListDataset: a shard must be {"url": path or URL, "nsamples": number of samples}, got '
                f"shards[{number}] = {shard!r}"
            )
    return shards if base is None else [{**shard, "url": join_url(base, shard["url"])} for shard in shards]


def _of_shard(described: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a sample besides its members; ``dataset[i]`` sets the numbers."""
    more = {"__dataset__": described.get("dataset"), "__index__": None}
    return {**more, "__shard__": described["url"], "__shardindex__": None}


def _cache(
    cache_dir: str | os.PathLike[str] | None, localname: Callable[[str], str] | None, size: float
) -> tuple[ShardCache | Callable[[str], ShardCache], str | None]:
    """The cache for copies, and the name of its folder as ``ShardListDataset`` tells it."""
    if cache_dir is not None:
        return ShardCache(cache_dir, size), os.fspath(cache_dir)
    if localname is not None:
        return partial(_named_cache, localname, size), None
    folder = os.environ.get("WIDS_CACHE") or os.path.join(tempfile.gettempdir(), "_wids_cache")
    return ShardCache(folder, size, _hashed_name), folder


def _named_cache(localname: Callable[[str], str], size: float, url: str) -> ShardCache:
    """The cache that is the folder in which ``localname`` wants a copy."""
    return ShardCache(os.path.dirname(localname(url)), size, partial(_last_part, localname))


def _last_part(localname: Callable[[str], str], url: str) -> str:
    return os.path.basename(localname(url))


def _hashed_name(url: str) -> str:
    return distinct_name(posixpath.basename(url_to_cache_name(url)), source_digest(url))


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())[:16].decode("ascii")
