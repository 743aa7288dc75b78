"""Which columns of a table become which fields of samples."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpwds.cli.shards import version_of
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.patterns import check_url
from mpwds.storage.streams.urls import url_scheme
from mpwds.storage.tar.names import split_name
from mpwds.storage.writing.encoders import encode_field
from mpwds.storage.writing.tar_members import member_bytes

LABELS = ("cls", "label", "class")
"""Columns of these names hold a sample's class."""

_TEXTS = ("txt", "text", "caption", "transcript", "sentence")
_KEYS = ("__key__", "key")
_REST = "*"
_BY_CONTENT = "*"
_INTEGER = re.compile(r"-?\d+")

# First bytes of files, the place where they are, and their extension.
_SIGNATURES = (
    (b"\xff\xd8\xff", 0, "jpg"),
    (b"\x89PNG\r\n\x1a\n", 0, "png"),
    (b"GIF8", 0, "gif"),
    (b"WEBP", 8, "webp"),
    (b"II*\0", 0, "tif"),
    (b"MM\0*", 0, "tif"),
    (b"WAVE", 8, "wav"),
    (b"fLaC", 0, "flac"),
    (b"OggS", 0, "ogg"),
    (b"ID3", 0, "mp3"),
    (b"\xff\xfb", 0, "mp3"),
    (b"ftyp", 4, "mp4"),
    (b"%PDF", 0, "pdf"),
    (b"\x93NUMPY", 0, "npy"),
)


@dataclass(frozen=True)
class Column:
    """What is known of a column.

    Attributes:
        kind: ``"file"`` (values name files), ``"media"`` (values are the bytes of files), ``"text"``,
            ``"integer"`` or ``"other"``.
        names: Of the classes that its numbers stand for.
    """

    kind: str
    names: Sequence[str] = ()


@dataclass(frozen=True)
class ColumnMap:
    """How the rows of a table become samples.

    Attributes:
        fields: By column, its field. ``"*"`` in a field's name stands for the extension of the column's
            files, or for what their first bytes say.
        rest: The field that holds all other columns, as a dictionary; they are left out if empty.
        key: The column that holds the samples' keys; if empty, rows are numbered.
        files: The columns whose values name files.
        root: The folder that these names start at, unless they are absolute.
        classes: By field, the names of classes whose numbers it gets.
    """

    fields: Mapping[str, str]
    rest: str = ""
    key: str = ""
    files: frozenset[str] = field(default_factory=frozenset)
    root: str = ""
    classes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def sample(self, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """The sample of a row. A column without a value gives no field.

        Raises:
            ValueError: Two columns become the same field, or a value does not fit its field.
            OSError: A file cannot be read.
        """
        sample: dict[str, Any] = {"__key__": self.key_of(number, row)}
        rest = {}
        for column, value in row.items():
            if value is None or column == self.key:
                continue
            if column not in self.fields:
                rest[column] = value
                continue
            try:
                name, data = self._field(column, value)
            except (ValueError, TypeError) as error:
                raise ValueError(f"column {column!r} of row {number}: {error}") from error
            if name in sample:
                raise ValueError(f"row {number}: {column!r} and another column become the field {name!r}")
            sample[name] = data
        if rest and self.rest:
            sample[self.rest] = json.dumps(rest, default=_plain).encode()
        return sample

    def _field(self, column: str, value: Any) -> tuple[str, bytes]:
        """The name and the bytes of a column's field."""
        name, path = self.fields[column], ""
        if column in self.files:
            value, path = self._contents(value), value
        elif _is_media(value):
            value, path = _media(value)
        if name in self.classes:
            value = self.classes[name][str(value)]
        if _BY_CONTENT in name:
            name = name.replace(_BY_CONTENT, extension_of(value, path))
        if isinstance(value, (int, float)) and name.rpartition(".")[2] in _TEXTS:
            value = str(value)
        return name, encode_field(name, value)

    def size_of(self, number: int, row: Mapping[str, Any]) -> int:
        """About the bytes of a row's sample in a tar archive; files at URLs count as nothing."""
        size = rest = 0
        key = self.key_of(number, row)
        for column, value in row.items():
            if column in self.files and value is not None:
                if not url_scheme(value):
                    nbytes = os.path.getsize(os.path.join(self.root, value))
                    size += member_bytes(nbytes, f"{key}.{self.fields.get(column, '')}")
                continue
            nbytes = len(value) if isinstance(value, (str, bytes)) else 8
            if column in self.fields:
                size += member_bytes(nbytes, f"{key}.{self.fields[column]}")
            else:
                rest += len(column) + nbytes
        return size + (member_bytes(rest, f"{key}.{self.rest}") if self.rest else 0)

    def versions(self, row: Mapping[str, Any]) -> list[object]:
        """The sizes and times of the local files that a row names."""
        named = [row[column] for column in sorted(self.files) if row.get(column) is not None]
        return [version_of(os.path.join(self.root, name)) for name in named if not url_scheme(name)]

    def key_of(self, number: int, row: Mapping[str, Any]) -> str:
        """The key of a row's sample. Raises ``ValueError`` if the row has none."""
        if not self.key:
            return f"{number:09d}"
        if row.get(self.key) is None:
            raise ValueError(f"row {number} has no value in {self.key!r}, the column with the keys")
        key = str(row[self.key])
        return split_name(key)[0] or key if self.key in self.files else key

    def _contents(self, name: str) -> bytes:
        if url_scheme(name):
            check_url(name, trusted=False, where="a list of files")
        with gopen(name if url_scheme(name) else os.path.join(self.root, name)) as file:
            return file.read()


def make_map(columns: Mapping[str, Column], given: str = "", key: str = "", root: str = "") -> ColumnMap:
    """The map that a user wrote, or else one that most tables want.

    Without ``given``, files become fields of their own, named by their extensions, or ``COLUMN.EXTENSION`` if
    there are several columns of files. Numbers of classes become ``cls``, a text ``txt``, and all other
    columns together ``json``.

    Args:
        columns: The columns of the table.
        given: ``COLUMN:FIELD,...``, such as ``image:jpg,label:cls,*:json``; ``*`` are all other columns.
        key: The column that holds the keys; by default ``__key__`` or ``key``, if there is one.
        root: Where names of files start.

    Raises:
        ValueError: There is no such column, a part is not ``COLUMN:FIELD``, or texts that name no files are
            to be pictures or the like.

    Example:
        >>> table = {"image": Column("media"), "label": Column("integer"), "width": Column("integer")}
        >>> make_map(table).fields, make_map(table).rest
        ({'image': '*', 'label': 'cls'}, 'json')
    """
    fields, rest = _parsed(given, columns) if given else (_guessed(columns), "json")
    key = key or next((name for name in _KEYS if name in columns and name not in fields), "")
    files = frozenset(name for name, column in columns.items() if column.kind == "file")
    media = {extension for _, _, extension in _SIGNATURES}
    for name, target in fields.items():
        if columns[name].kind == "text" and target.rpartition(".")[2] in media:
            problem = "the column holds texts that name no files: say with --root where names start"
            raise ValueError(f"--columns {name}:{target}: {problem}")
    return ColumnMap(fields, rest, key, files, root)


def words_of_labels(
    column_map: ColumnMap,
    columns: Mapping[str, Column],
    rows_of: Callable[[list[str]], Iterable[Mapping[str, Any]]],
) -> dict[str, set[str]]:
    """By field, the words of labels. ``rows_of`` gives all rows of some columns."""
    texts = [name for name in column_map.fields if columns[name].kind == "text"]
    fields = {name: column_map.fields[name] for name in texts}
    fields = {name: field for name, field in fields.items() if field.rpartition(".")[2] == "cls"}
    words: dict[str, set[str]] = {field: set() for field in fields.values()}
    for row in rows_of(list(fields)) if fields else ():
        for name, target in fields.items():
            if row.get(name) is not None:
                words[target].add(str(row[name]))
    return words


def numbered_words(words: Mapping[str, Iterable[str]]) -> dict[str, dict[str, int]]:
    """By field, the numbers of words, in their order. Words that are numbers already stay."""
    return {
        field: {word: number for number, word in enumerate(sorted(found))}
        for field, found in words.items()
        if not all(map(_INTEGER.fullmatch, found))
    }


def _guessed(columns: Mapping[str, Column]) -> dict[str, str]:
    def named(names: Sequence[str], extension: str) -> dict[str, str]:
        return {name: extension if len(names) == 1 else f"{_part(name)}.{extension}" for name in names}

    kinds = {name: column.kind for name, column in columns.items()}
    media = [name for name, kind in kinds.items() if kind in ("file", "media")]
    labels = [name for name, column in columns.items() if column.names]
    labels = labels or [name for name in LABELS if kinds.get(name) == "text"][:1]
    labels = labels or [name for name in LABELS if kinds.get(name) == "integer"]
    texts = [name for name in _TEXTS if kinds.get(name) == "text"]
    return {**named(media, _BY_CONTENT), **named(labels, "cls"), **named(texts, "txt")}


def _parsed(given: str, columns: Mapping[str, Column]) -> tuple[dict[str, str], str]:
    fields = {}
    for part in given.split(","):
        column, colon, name = part.rpartition(":")
        if not colon or not name or (column != _REST and column not in columns):
            known = ", ".join(columns)
            raise ValueError(
                f"--columns {part!r}: expected COLUMN:FIELD, where COLUMN is one of {known} or *"
            )
        fields[column] = name
    return fields, fields.pop(_REST, "")


def _part(column: str) -> str:
    """A column's name as a part of a field's."""
    return column.replace("/", "_").replace(".", "_").replace(" ", "_").lower()


def _is_media(value: Any) -> bool:
    """True if a value is a file as Hugging Face's datasets store it."""
    return isinstance(value, dict) and set(value) == {"bytes", "path"}


def _media(value: Mapping[str, Any]) -> tuple[bytes, str]:
    data, path = value["bytes"], value["path"] or ""
    if data is None:
        raise ValueError(
            f"it names the file {path!r} and does not hold it: save the dataset with its files, as "
            "save_to_disk and push_to_hub do"
        )
    return data, path


def extension_of(data: Any, path: str = "") -> str:
    """The extension of a file: what its first bytes say, its name, or ``bin``."""
    for signature, place, extension in _SIGNATURES:
        if isinstance(data, bytes) and data.startswith(signature, place):
            return "jpeg" if extension == "jpg" and path.lower().endswith(".jpeg") else extension
    return split_name(path)[1].rpartition(".")[2] or "bin"


def _plain(value: Any) -> Any:
    """What JSON has no kind for, as text: dates, decimals; of bytes, an error."""
    if isinstance(value, bytes):
        raise TypeError("bytes cannot be a part of a JSON field: give the column a field with --columns")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
