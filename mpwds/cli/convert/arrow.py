"""Samples of Parquet files and of Hugging Face datasets, which are folders of Arrow or Parquet files."""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpwds.cli.convert.tables import ColumnMap, TableColumn
from mpwds.errors import ShardError
from mpwds.imports import require
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.urls import is_local, local_path
from mpwds.storage.writing.tar_members import member_bytes

_ROWS_AT_A_TIME = 64
_OPEN_FILES = 100
_SPLIT = re.compile(r"([A-Za-z_](?:[\w-]*?[A-Za-z_])?)(?:[-._]?\d[^/]*)?\.(?:parquet|arrow)")
SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test"}
_TABLE = re.compile(r"[^.].*\.(?:parquet|arrow)")
_SAVED = ("state.json", "dataset_info.json")


Block = tuple[str, int, int, int]
"""A row group of a Parquet file, or a record batch: file, number in it, rows, and bytes of the rows."""


@dataclass(frozen=True)
class ArrowRows:
    """The rows of Parquet or Arrow files, and how they become samples. A worker reads some of them."""

    blocks: Sequence[Block]
    map: ColumnMap
    numbers: Sequence[int] = ()  # the rows to iterate
    files_bytes: Sequence[int] = ()  # of each row, the bytes of the files that it names, in a tar archive

    @functools.cached_property
    def _starts(self) -> list[int]:
        return list(itertools.accumulate((rows for _, _, rows, _ in self.blocks), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def size_of(self, number: int) -> int:
        """About the bytes of a sample in a tar archive, by the mean of its block's rows."""
        _, _, rows, nbytes = self.blocks[self._block(number)]
        of_files = self.files_bytes[number] if self.files_bytes else 0
        return nbytes // rows + self._size_of_headers + of_files

    @functools.cached_property
    def _size_of_headers(self) -> int:
        """The bytes of a sample's headers and padding, by the key of the first row."""
        path, index, _, _ = self.blocks[0]
        (first,) = _rows(path, _open(path), index).slice(0, 1).to_pylist() if self.map.key else [{}]
        fields = [*self.map.fields.values(), *filter(None, [self.map.rest])]
        return sum(member_bytes(1, f"{self.map.key_of(0, first)}.{field}") for field in fields)

    def part(self, numbers: Sequence[int]) -> ArrowRows:
        return replace(self, numbers=numbers)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        open_file = functools.lru_cache(_OPEN_FILES)(_open)
        read_rows = functools.lru_cache(1)(lambda path, index: _rows(path, open_file(path), index))
        for block, numbers in itertools.groupby(self.numbers, self._block):
            path, index, _, _ = self.blocks[block]
            rows = read_rows(path, index)
            for number in numbers:
                (row,) = rows.slice(number - self._starts[block], 1).to_pylist()  # take() refuses views
                yield self.map.sample(number, row)

    def _block(self, number: int) -> int:
        return bisect.bisect_right(self._starts, number) - 1


def _rows(path: str, file: Any, index: int, columns: Sequence[str] | None = None) -> Any:
    if isinstance(file, list):
        return file[index] if columns is None else file[index].select(columns)
    with _damage(path):
        return file.read_row_group(index, columns, use_threads=False)


def read_arrow(paths: Sequence[str]) -> tuple[list[Block], dict[str, TableColumn]]:
    """The blocks and the columns of Parquet and Arrow files, which must have the same columns."""
    blocks: list[Block] = []
    names: list[str] = []
    columns: dict[str, TableColumn] = {}
    for path in paths:
        opened = _open(path)
        with _damage(path):
            if not isinstance(opened, list):
                schema = opened.schema_arrow
                groups = map(opened.metadata.row_group, range(opened.num_row_groups))
                figures = [(group.num_rows, group.total_byte_size) for group in groups]
            else:
                schema = opened[0].schema if opened else None
                figures = [(batch.num_rows, batch.nbytes) for batch in opened]
        if schema is None:
            continue
        blocks += [(path, index, *figure) for index, figure in enumerate(figures) if figure[0]]
        if names and schema.names != names:
            raise ValueError(f"{path} has other columns ({', '.join(schema.names)}) than {paths[0]}")
        names = schema.names
        columns = columns or _columns(schema, os.path.dirname(path))
    if not blocks:
        raise ValueError(f"there is no row in {', '.join(paths[:3])}")
    return blocks, columns


def read_columns(blocks: Sequence[Block], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for path, of_path in itertools.groupby(blocks, lambda block: block[0]):
        opened = _open(path)
        for _, index, _, _ in of_path:
            yield from _rows(path, opened, index, names).to_pylist()


def dataset_files(folder: str) -> dict[str, list[str]]:
    """The files of each split of a Hugging Face dataset, in order; nothing if the folder is none.

    A folder of ``save_to_disk`` (a dataset or a ``DatasetDict``), or one with Parquet files, in itself or in
    ``data/``, whose names begin with their split's, or with the dataset's and the split's:
    ``train-00000-of-00002.parquet``, ``imdb-train.arrow``.
    """
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, "dataset_dict.json")) as file:
        return {
            split: paths
            for split in json.load(file)["splits"]
            for paths in dataset_files(os.path.join(folder, split)).values()
        }
    if all(os.path.exists(os.path.join(folder, name)) for name in _SAVED):
        with open(os.path.join(folder, _SAVED[0])) as file:
            names = [part["filename"] for part in json.load(file)["_data_files"]]
        if strange := next((name for name in names if os.path.basename(name) != name), None):
            raise ValueError(f"{folder}/{_SAVED[0]} names {strange!r}, which is not in that folder")
        return {"": [os.path.join(folder, name) for name in names]}
    found: dict[str, str] = {}  # by path, what the name begins with
    unknown: list[str] = []
    for place in (folder, os.path.join(folder, "data")):
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else []:
            path = os.path.join(place, name)
            if match := _SPLIT.fullmatch(name):
                first = match[1].partition("-")[0]
                found[path] = first if first in SPLITS else match[1]
            elif _TABLE.fullmatch(name) or (os.path.isdir(path) and name != "data" and name[0] not in "._"):
                unknown.append(path)
    if found and unknown:
        raise ValueError(
            f"{folder} has tables ({next(iter(found))}) and {unknown[0]}, which is none of a split: name the "
            "tables ('DIR/train-*.parquet'), or say --from classes or groups for folders of files"
        )
    # Of one dataset, whose name may come first.
    is_one = len({name.rpartition("-")[0] for name in found.values()}) == 1
    splits: dict[str, list[str]] = {}
    for path, name in found.items():
        splits.setdefault(name.rpartition("-")[2] if is_one else name, []).append(path)
    return splits


def local_copies(urls: Sequence[str], scratch: Callable[[], str]) -> list[str]:
    """The paths of files. Those elsewhere, which are read from their end, are copied to a folder of
    ``scratch()``."""
    paths = []
    folder = "" if all(map(is_local, urls)) else scratch()
    for number, url in enumerate(urls):
        if is_local(url):
            paths.append(local_path(url))
            continue
        paths.append(os.path.join(folder, f"{number}{os.path.splitext(url)[1]}"))
        with gopen(url) as source, open(paths[-1], "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    return paths


def as_arrow(paths: Sequence[str], folder: str) -> list[str]:
    """Copies Parquet files to Arrow files in ``folder``, whose rows can be read in any order.

    A row group of a Parquet file can be read only as a whole, so that each shard of shuffled samples would
    have to read all files.
    """
    pa = _pyarrow()
    copies = []
    for number, path in enumerate(paths):
        opened = _open(path)
        copies.append(os.path.join(folder, f"{number}.arrow"))
        with _damage(path), pa.OSFile(copies[-1], "wb") as sink:
            schema = opened.schema_arrow
            with pa.ipc.new_stream(sink, schema) as writer:
                for batch in opened.iter_batches(_ROWS_AT_A_TIME):
                    writer.write_batch(batch)
    return copies


def _open(path: str) -> Any:
    """A ParquetFile, or the record batches of an Arrow file, which is mapped."""
    pa = _pyarrow()
    with _damage(path):
        if path.endswith(".parquet"):
            return require("pyarrow.parquet", "").ParquetFile(path)
        mapped = pa.memory_map(path)
        is_stream = mapped.read(6) != b"ARROW1"
        mapped.seek(0)
        if is_stream:
            return list(pa.ipc.open_stream(mapped))
        reader = pa.ipc.open_file(mapped)
        return [reader.get_batch(index) for index in range(reader.num_record_batches)]


@contextlib.contextmanager
def _damage(path: str) -> Iterator[None]:
    """Names the file in Arrow's errors about its content."""
    pa = _pyarrow()
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowSerializationError) as error:
        raise ShardError(f"{path} cannot be read: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise ShardError(f"{path} is damaged: {error}") from error


def _pyarrow() -> Any:
    pa = require("pyarrow", "Parquet and Arrow files are read with pyarrow: pip install 'mpwds[parquet]'")
    require("pyarrow.ipc", "")
    return pa


def _columns(schema: Any, folder: str) -> dict[str, TableColumn]:
    """Describes the columns, by their types and by what Hugging Face's datasets say about them."""
    features: Mapping[str, Any] = {}
    if b"huggingface" in (schema.metadata or {}):
        features = json.loads(schema.metadata[b"huggingface"]).get("info", {}).get("features", {})
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, _SAVED[1])) as file:
        features = features or json.load(file).get("features") or {}
    return {column.name: _column(column.type, features.get(column.name)) for column in schema}


def _column(kind: Any, feature: Any) -> TableColumn:
    types = _pyarrow().types
    kind = kind.value_type if types.is_dictionary(kind) else kind  # categories of pandas, for example
    is_label = isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
    names = feature.get("names", ()) if is_label else ()
    parts = {kind.field(n).name for n in range(kind.num_fields)} if types.is_struct(kind) else ()
    if parts == {"bytes", "path"} or re.fullmatch(r"(large_)?binary(_view)?|fixed_size_binary.*", str(kind)):
        return TableColumn("media")
    if str(kind) in ("string", "large_string", "string_view"):
        return TableColumn("text")
    return TableColumn("integer" if types.is_integer(kind) else "other", names)
