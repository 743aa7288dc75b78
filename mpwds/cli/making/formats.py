"""Datasets that ``convert`` reads: tar shards, MDS of both versions, and record files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpwds.cli.making.encodings import KEY
from mpwds.cli.making.sources.mds import INDEXES, SCRATCH_BYTES, mds_version, open_mds
from mpwds.cli.shards import shard_urls
from mpwds.storage.streams.gopen import gopen, open_at
from mpwds.storage.streams.urls import is_local, local_path
from mpwds.storage.writing.encoders import encode_field

FORMATS = ("tar", "mds", "mds1", "msgpack", "cbor")
RECORDS = {
    **dict.fromkeys(("msgpack", "msgpacks", "msg", "mp"), "msgpack"),
    **dict.fromkeys(("cbor", "cbors"), "cbor"),
}
"""By their endings, kinds of record files."""


@dataclass(frozen=True)
class Dataset:
    """A dataset to convert.

    Attributes:
        format: One of ``FORMATS``.
        urls: Its files; of MDS, its folder or URL.
        samples: Makes an iterator of the samples: ``__key__``, and the bytes of their fields or columns.
        count: Number of samples; ``None`` if it is unknown.
        columns: The encodings of columns by name; empty if fields are those of tar shards.
    """

    format: str
    urls: Sequence[str]
    samples: Callable[[], Iterator[dict[str, Any]]]
    count: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


def open_dataset(source: str, kind: str = "") -> Dataset:
    """Opens a dataset for reading.

    Args:
        source: Shards (with braces), a description (``.json``), ``"-"`` for an archive on standard input, an
            MDS dataset's folder or URL, or record files.
        kind: One of ``FORMATS``; by default ``source`` tells.

    Raises:
        ValueError: Nothing tells the format.
        FileNotFoundError: There is no such dataset.
    """
    folder, _, name = source.rpartition("/")
    if not kind and name in INDEXES and not _is_description(source):
        kind, source = INDEXES[name], folder or "."
    kind = kind or format_of(source)
    if kind in ("mds", "mds1"):
        stored = open_mds(source, kind, SCRATCH_BYTES)
        return Dataset(kind, [source], lambda: iter(stored), len(stored), stored.columns)
    urls = shard_urls([source])
    if kind == "tar":
        return Dataset("tar", urls, lambda: _tar_samples(urls))
    return Dataset(kind, urls, lambda: _records(urls, kind))


def format_of(name: str) -> str:
    """The format of a dataset to read, by its name, or by what is in the folder.

    Example:
        >>> format_of("x-{000..009}.tar.gz"), format_of("x.cbor")
        ('tar', 'cbor')
    """
    if is_local(name) and os.path.isdir(local_path(name)):
        return mds_version(name) or "tar"
    last = name.rpartition("/")[2].lower()
    ending = last.rpartition(".")[2]
    if ending in RECORDS:
        return RECORDS[ending]
    if name == "-" or ".tar" in last or ending in ("tar", "tgz", "json") or name.startswith("pipe:"):
        return "tar"
    if "." not in last:  # a folder of another machine
        return "mds"
    raise ValueError(f"{name} does not tell its format: give --from {', '.join(FORMATS)}")


def _is_description(url: str) -> bool:
    with gopen(url) as stream:
        return b'"wids_version"' in stream.read()


def _tar_samples(urls: Sequence[str]) -> Iterator[dict[str, Any]]:
    from mpwds.pipeline.sources.samples import read_samples

    for url in urls:
        for _, _, sample in read_samples(url):
            del sample["__url__"]
            yield sample


def _records(urls: Sequence[str], kind: str) -> Iterator[dict[str, Any]]:
    """The records of files. Values other than bytes become bytes by the extension of their field."""
    from mpwds.storage.record_reader import read_cbor_records, read_msgpack_records

    read = read_msgpack_records if kind == "msgpack" else read_cbor_records
    number = 0
    for url in urls:
        with open_at(url) if url != "-" else gopen(url) as stream:
            for offset, _, record in read(stream, url):
                if not isinstance(record, dict):
                    raise ValueError(
                        f"the record at offset {offset} of {url} is a {type(record).__name__}, expected a "
                        "dictionary of fields"
                    )
                sample = {str(name): value for name, value in record.items() if value is not None}
                key = str(sample.pop(KEY, f"{number:09d}"))
                kept = {name: value for name, value in sample.items() if not name.startswith("__")}
                yield {KEY: key, **{name: encode_field(name, value) for name, value in kept.items()}}
                number += 1
