"""Tables: which columns become which fields of samples; the rows of .csv, .tsv and .jsonl files."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from typing import Any

from mpwds.cli.encodings import SIGNATURES, extension_by_content
from mpwds.cli.journal import version_of
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.patterns import check_url
from mpwds.storage.streams.urls import url_scheme
from mpwds.storage.tar.names import split_name
from mpwds.storage.writing.encoders import encode_once
from mpwds.storage.writing.tar_members import member_bytes

_LABELS = ("cls", "label", "class")
_TEXTS = ("txt", "text", "caption", "transcript", "sentence")
_KEYS = ("__key__", "key")
_REST = "*"
_BY_CONTENT = "*"
_WHOLE = re.compile(r"-?\d+")
LISTS = {"csv": ",", "tsv": "\t", "jsonl": ""}
"""Kinds of lists, and what separates their columns; nothing if lines are JSON."""

_INTEGER = re.compile(r"-?(0|[1-9]\d*)")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
_LOOKED_AT = 100  # rows


@dataclass(frozen=True)
class TableColumn:
    """A column of a table: its kind, and the names of the classes that its numbers stand for.

    The kind is ``"file"`` (values name files), ``"media"`` (values are the bytes of files), ``"text"``,
    ``"integer"`` or ``"other"``.
    """

    kind: str
    names: Sequence[str] = ()


@dataclass(frozen=True)
class ColumnMap:
    """Turns the rows of a table into samples."""

    fields: Mapping[str, str]  # by column, its field; "*" in it is the extension of files, by name or content
    rest: str = ""  # the field that holds all other columns, as a dictionary; they are left out if empty
    key: str = ""  # the column that holds the samples' keys; if empty, rows are numbered
    files: frozenset[str] = field(default_factory=frozenset)  # columns whose values name files, from root on
    root: str = ""
    classes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # numbers by name, by field

    def sample(self, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """The sample of a row. A column without a value gives no field."""
        sample: dict[str, Any] = {"__key__": self.key_of(number, row)}
        rest = {}
        for column, value in row.items():
            if value is None:
                continue
            if column not in self.fields:
                if column != self.key:
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
            sample[self.rest] = _as_json(number, rest)
        return sample

    def _field(self, column: str, value: Any) -> tuple[str, bytes]:
        name, path = self.fields[column], ""
        if column in self.files:
            value, path = self._contents(value), value
        elif isinstance(value, dict) and set(value) == {"bytes", "path"}:
            value, path = _media(value)
        if name in self.classes:
            value = self.classes[name][str(value)]
        if _BY_CONTENT in name:
            name = name.replace(_BY_CONTENT, extension_by_content(value, path))
        if isinstance(value, (int, float)) and name.rpartition(".")[2] in _TEXTS:
            value = str(value)
        return name, encode_once(name, value)

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


def make_map(columns: Mapping[str, TableColumn], given: str = "", key: str = "", root: str = "") -> ColumnMap:
    """The map that a user wrote as ``COLUMN:FIELD,...``, or else one that most tables want.

    Without ``given``, files become fields of their own, named by their extensions, or ``COLUMN.EXTENSION`` if
    there are several columns of files. Numbers of classes become ``cls``, a text ``txt``, and all other
    columns together ``json``.

    Example:
        >>> number = TableColumn("integer")
        >>> table = {"image": TableColumn("media"), "label": number, "width": number}
        >>> make_map(table).fields, make_map(table).rest
        ({'image': '*', 'label': 'cls'}, 'json')
    """
    check_key(key, columns)
    fields, rest = _parsed(given, columns) if given else (_guessed(columns), "json")
    keys = {key, *(name for name, target in fields.items() if target == "__key__")} - {""}
    if len(keys) > 1:
        raise ValueError(f"one column holds the keys, but several are given: {', '.join(sorted(keys))}")
    fields = {name: target for name, target in fields.items() if target != "__key__"}
    key = next(iter(keys), "") or next((name for name in _KEYS if name in columns and name not in fields), "")
    if not given:
        fields.pop(key, None)
    files = frozenset(name for name, column in columns.items() if column.kind == "file")
    media = {extension for _, _, extension in SIGNATURES}
    for name, target in fields.items():
        if columns[name].kind == "text" and target.rpartition(".")[2] in media:
            problem = "the column holds texts that name no files: say with --root where names start"
            raise ValueError(f"--columns {name}:{target}: {problem}")
    return ColumnMap(fields, rest, key, files, root)


def check_key(key: str, columns: Iterable[str]) -> None:
    if key and key not in columns:
        raise ValueError(f"--key {key}: there is no such column, only {', '.join(columns)}")


def words_of_labels(
    column_map: ColumnMap,
    columns: Mapping[str, TableColumn],
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
        if not all(map(_WHOLE.fullmatch, found))
    }


def _guessed(columns: Mapping[str, TableColumn]) -> dict[str, str]:
    def named(names: Sequence[str], extension: str) -> dict[str, str]:
        return {
            name: extension if len(names) == 1 else f"{re.sub('[/. ]', '_', name).lower()}.{extension}"
            for name in names
        }

    kinds = {name: column.kind for name, column in columns.items()}
    media = [name for name, kind in kinds.items() if kind in ("file", "media")]
    labels = [name for name, column in columns.items() if column.names]
    labels = labels or [name for name in _LABELS if kinds.get(name) == "text"][:1]
    labels = labels or [name for name in _LABELS if kinds.get(name) == "integer"]
    texts = [name for name in _TEXTS if kinds.get(name) == "text"]
    return {**named(media, _BY_CONTENT), **named(labels, "cls"), **named(texts, "txt")}


def _parsed(given: str, columns: Mapping[str, TableColumn]) -> tuple[dict[str, str], str]:
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


def _media(value: Mapping[str, Any]) -> tuple[bytes, str]:
    """The bytes and the name of a file, as Hugging Face's datasets store it."""
    data, path = value["bytes"], value["path"] or ""
    if data is None:
        raise ValueError(
            f"it names the file {path!r} and does not hold it: save the dataset with its files, as "
            "save_to_disk and push_to_hub do"
        )
    return data, path


def _as_json(number: int, columns: Mapping[str, Any]) -> bytes:
    """Columns of the row of this number as a JSON object."""
    try:
        return json.dumps(columns, default=_plain).encode()
    except (ValueError, TypeError):
        for column, value in columns.items():
            try:
                json.dumps(value, default=_plain)
            except (ValueError, TypeError) as error:
                raise ValueError(f"column {column!r} of row {number}: {error}") from error
        raise


def _plain(value: Any) -> Any:
    """Returns values for which JSON has no kind as text: dates, decimals; of bytes, an error."""
    if isinstance(value, bytes):
        raise TypeError("bytes cannot be a part of a JSON field: give the column a field with --columns")
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


@dataclass(frozen=True)
class TableRows:
    """Rows in memory, and how they become samples. A worker gets some of them."""

    rows: Sequence[Mapping[str, Any]]
    map: ColumnMap
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def size_of(self, number: int) -> int:
        return self.map.size_of(number, self.rows[number])

    def part(self, numbers: Sequence[int]) -> TableRows:
        return TableRows([self.rows[number] for number in numbers], self.map, numbers)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, row in zip(self.numbers, self.rows, strict=True):
            yield self.map.sample(number, row)


def read_lists(urls: Sequence[str], kind: str, given: str = "") -> list[dict[str, Any]]:
    """The rows of all lists of a kind, one list after the other.

    In ``csv`` and ``tsv`` files the first line names the columns; an empty value is ``None``, and a column
    whose values are all numbers holds numbers, unless ``given``, as for ``make_map``, makes it a text. In a
    ``jsonl`` file each line is a JSON object.
    """
    pairs = (part.rpartition(":") for part in given.split(","))
    texts = {column for column, _, name in pairs if name.rpartition(".")[2] in _TEXTS}
    rows: list[dict[str, Any]] = []
    for url in urls:
        with gopen(url) as stream:
            text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
            try:
                rows += _records(text, url, LISTS[kind], texts) if LISTS[kind] else _objects(text, url)
            except UnicodeDecodeError as error:
                raise ValueError(f"{url} is not UTF-8: {error}") from None
            finally:
                text.detach()
    if not rows:
        raise ValueError(f"there is no row in {', '.join(urls)}")
    return rows


def columns_of(rows: Iterable[Mapping[str, Any]], root: str) -> dict[str, TableColumn]:
    """Describes the columns of rows, by the first hundred rows: files if such files are there."""
    looked_at = list(itertools.islice(rows, _LOOKED_AT))
    names = dict.fromkeys(name for row in looked_at for name in row)
    return {
        name: TableColumn(_kind([row[name] for row in looked_at if row.get(name) is not None], root))
        for name in names
    }


def _kind(values: Sequence[Any], root: str) -> str:
    if values and all(isinstance(value, str) for value in values):
        is_file = url_scheme(values[0]) in ("http", "https", "s3", "gs", "hf") or os.path.isfile(
            os.path.join(root, values[0])
        )
        return "file" if is_file else "text"
    is_integer = values and all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    return "integer" if is_integer else "other"


def _objects(lines: io.TextIOWrapper, url: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number} of {url} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"line {number} of {url} is a JSON {type(row).__name__}, expected an object")
        if all(value is None for value in row.values()):
            raise ValueError(f"line {number} of {url} has no value: remove it")
        yield row


def _records(
    lines: io.TextIOWrapper, url: str, delimiter: str, texts: Collection[str]
) -> list[dict[str, Any]]:
    csv.field_size_limit(sys.maxsize)  # 128 kB by default, which a text may exceed
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) < len(header):
            raise ValueError(f"the first line of {url} names a column twice: {', '.join(header)}")
        columns: list[list[Any]] = [[] for _ in header]
        for record in filter(None, reader):
            where = f"line {reader.line_num} of {url}"
            if len(record) != len(header):
                raise ValueError(f"{where} has {len(record)} columns, and its first line {len(header)}")
            if not any(record):
                raise ValueError(f"{where} has no value: remove it")
            for column, value in zip(columns, record, strict=True):
                column.append(value or None)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num} of {url} is damaged: {error}") from None
    typed = [found if name in texts else _numbers(found) for name, found in zip(header, columns, strict=True)]
    return [dict(zip(header, values, strict=True)) for values in zip(*typed, strict=True)]


def _numbers(values: list[Any]) -> list[Any]:
    for pattern, convert in ((_INTEGER, int), (_NUMBER, float)):
        if all(value is None or pattern.fullmatch(value) for value in values):
            return [None if value is None else convert(value) for value in values]
    return values
