"""Samples of lists: the rows of .csv, .tsv and .jsonl files."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpwds.cli.making.sources.columns import Column, ColumnMap
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.urls import is_local, local_path, url_scheme

LISTS = {".csv": ",", ".tsv": "\t", ".jsonl": "", ".ndjson": ""}
"""The endings of lists, and what separates their columns; nothing if lines are JSON."""

_INTEGER = re.compile(r"-?(0|[1-9]\d*)")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
LOOKED_AT = 100  # rows


@dataclass(frozen=True)
class Rows:
    """Rows in memory, and how they become samples. A worker gets some of them."""

    rows: Sequence[Mapping[str, Any]]
    map: ColumnMap
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def size_of(self, number: int) -> int:
        """About the bytes of a row's sample."""
        return self.map.size_of(number, self.rows[number])

    def part(self, numbers: Sequence[int]) -> Rows:
        """The samples of these numbers."""
        return Rows([self.rows[number] for number in numbers], self.map, numbers)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, row in zip(self.numbers, self.rows, strict=True):
            yield self.map.sample(number, row)


def read_lists(urls: Sequence[str], kind: str = "") -> list[dict[str, Any]]:
    """The rows of all lists, one list after the other.

    In ``.csv`` and ``.tsv`` files the first line names the columns; an empty value is ``None``, and a column
    whose values are all numbers holds numbers. In a ``.jsonl`` file each line is a JSON object.

    Args:
        urls: The lists; ``"-"`` is standard input.
        kind: The ending that tells how to read them; by default that of each URL.

    Raises:
        ValueError: A list is damaged or empty. The message names the line.
        OSError: A list cannot be read.
    """
    rows: list[dict[str, Any]] = []
    for url in urls:
        ending = kind or os.path.splitext(url)[1].lower()
        with gopen(url) as stream:
            text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
            try:
                rows += _objects(text, url) if not LISTS[ending] else _records(text, url, LISTS[ending])
            except UnicodeDecodeError as error:
                raise ValueError(f"{url} is not UTF-8: {error}") from None
            finally:
                text.detach()
    if not rows:
        raise ValueError(f"there is no row in {', '.join(urls)}")
    return rows


def columns_of(rows: Sequence[Mapping[str, Any]], root: str) -> dict[str, Column]:
    """What the columns of rows hold, by the first hundred rows: files if such files are there."""
    looked_at = rows[:LOOKED_AT]
    names = dict.fromkeys(name for row in looked_at for name in row)
    return {
        name: Column(_kind([row[name] for row in looked_at if row.get(name) is not None], root))
        for name in names
    }


def folder_of(url: str) -> str:
    """The folder that a list is in, where the names of its files start."""
    if url == "-":
        return ""
    return os.path.dirname(local_path(url)) if is_local(url) else url.rpartition("/")[0]


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
        yield row


def _records(lines: io.TextIOWrapper, url: str, delimiter: str) -> list[dict[str, Any]]:
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) < len(header):
            raise ValueError(f"the first line of {url} names a column twice: {', '.join(header)}")
        columns: list[list[Any]] = [[] for _ in header]
        for record in filter(None, reader):
            if len(record) != len(header):
                where = f"line {reader.line_num} of {url}"
                raise ValueError(f"{where} has {len(record)} columns, and its first line {len(header)}")
            for column, value in zip(columns, record, strict=True):
                column.append(value or None)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num} of {url} is damaged: {error}") from None
    return [dict(zip(header, values, strict=True)) for values in zip(*map(_numbers, columns), strict=True)]


def _numbers(values: list[Any]) -> list[Any]:
    """The values as numbers, if all of them are."""
    for pattern, convert in ((_INTEGER, int), (_NUMBER, float)):
        if all(value is None or pattern.fullmatch(value) for value in values):
            return [None if value is None else convert(value) for value in values]
    return values
