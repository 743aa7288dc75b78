"""Finds out what the SOURCE of `mpwds create` is, and the samples in it."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

from mpwds.cli.convert import arrow, folders, tables
from mpwds.cli.encodings import Convert, check_distinct, from_column, plan_fields
from mpwds.cli.journal import digest, version_of
from mpwds.cli.outputs import path_of
from mpwds.cli.shards import expanded
from mpwds.pipeline.indexed.source import IndexedSamples
from mpwds.pipeline.sources.formats import FORMATS, KEY, Format, find_format
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.urls import folder_of, is_local, local_path
from mpwds.storage.tar.names import is_meta
from mpwds.storage.writing.tar_members import sample_bytes
from mpwds.viewing.wording import counted

KINDS = ("classes", "groups", "files", "csv", "tsv", "jsonl", "parquet", "arrow", "mds", "mds1")

_LOOKED_AT = 64  # samples


class Samples(Protocol):
    """Samples in order. ``size_of`` says about how many bytes one takes in a tar archive; ``part`` gives
    those of some numbers, which a worker iterates."""

    def __len__(self) -> int: ...
    def size_of(self, number: int) -> int: ...
    def part(self, numbers: Sequence[int]) -> Any: ...


@dataclass(frozen=True)
class FoundSource:
    text: str  # what it is, in words
    splits: Mapping[str, Samples]  # one without a name if there are no splits
    digest: str  # of the names, sizes and times of its files, and of rows that are in memory
    fields: Mapping[str, str] = field(default_factory=dict)  # what each column becomes
    classes: Mapping[str, Iterable[str]] = field(default_factory=dict)  # names, by the numbers' field
    notes: Sequence[str] = ()  # that the user should know


@dataclass(frozen=True)
class Wanted:
    """A user's options for reading a source; empty where the source itself tells."""

    scratch: Callable[[], str]  # makes a folder for copies, which exists as long as samples are read
    kind: str = ""  # one of ``KINDS``
    columns: str = ""
    key: str = ""
    root: str | None = None
    any_order: bool = False  # samples will be asked for in any order


def find(source: str, wanted: Wanted) -> FoundSource:
    """Finds out what a source is, and what is in it."""
    if wanted.kind and wanted.kind not in KINDS:
        raise ValueError(f"--from {wanted.kind}: expected one of {', '.join(KINDS)}")
    if (path := path_of(source)) and os.path.isdir(path):
        return _folder(path.rstrip("/") or "/", wanted)
    kind = wanted.kind or os.path.splitext(source)[1].lower().removeprefix(".").replace("ndjson", "jsonl")
    urls = expanded([source])
    if kind == "files":
        return _files(urls, wanted.root)
    if kind in ("parquet", "arrow"):
        if source == "-":
            raise ValueError(f"{kind} files are read from their end, so they cannot come from a pipe")
        root = folder_of(urls[0]) if wanted.root is None else wanted.root
        return _arrow({"": arrow.local_copies(urls, wanted.scratch)}, wanted, root, urls)
    if kind in tables.LISTS:
        return _lists(urls, kind, wanted)
    if kind in ("mds", "mds1"):
        return _mds(FORMATS[kind], source, wanted)
    if source == "-":
        raise ValueError("say what comes from standard input: --from files, csv, tsv or jsonl")
    if not wanted.kind and path and not os.path.exists(local_path(urls[0])):
        raise FileNotFoundError(f"there is no {source}")
    advice = "; mpwds convert and mpwds split read shards" if kind in ("tar", "gz", "zst", "tgz") else ""
    raise ValueError(f"{source} is neither a folder nor a list (.csv .tsv .jsonl .parquet .arrow){advice}")


def _folder(path: str, wanted: Wanted) -> FoundSource:
    found = find_format(path)
    if found is not None and found[0].indexes:
        return _mds(*found, wanted)
    datasets = {} if wanted.kind in ("classes", "groups") else arrow.dataset_files(path)
    if datasets:
        return _arrow(datasets, wanted, wanted.root, list(itertools.chain(*datasets.values())))
    if wanted.columns or wanted.key:
        raise ValueError(f"{path} is a folder of files without columns: --columns and --key are for lists")
    entries = list(os.scandir(path))
    inside = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    roots = {"": path}
    if inside and arrow.SPLITS.issuperset(inside):
        roots = {name: os.path.join(path, name) for name in inside}
    with_classes = {"classes": True, "groups": False}.get(wanted.kind)
    trees = {split: folders.read_tree(root, with_classes) for split, root in roots.items()}
    all_classes = {tuple(tree.classes) for tree in trees.values()}
    if len(all_classes) > 1:
        raise ValueError(
            f"{path}: the splits {', '.join(trees)} have different class folders, so numbers would mean "
            "different classes: run create for each of them, or with --from groups"
        )
    (classes,) = all_classes
    beside = [entry.name for entry in entries if "" not in roots and not entry.is_dir()]
    notes = _file_notes(trees)
    if beside:
        notes.append(f"left out {counted(len(beside), 'file')} beside the splits, such as {min(beside)}")
    keys = [group.key for tree in trees.values() for group in tree.groups]
    if not wanted.kind and not classes and len(inside) > 1 and any("/" in key for key in keys):
        flat = next((key for key in keys if "/" not in key), None)
        how = ": --from classes gives samples their numbers, as cls"
        if flat is not None:
            how = f", because {flat}.* lies beside them: move it away if they are classes"
        notes.append(f"folders are not taken for classes{how}")
    text = f"a folder with {len(classes)} classes" if classes else "a folder of files grouped by base name"
    content = digest(tree.digest for tree in trees.values())
    return FoundSource(text, trees, content, {}, {"cls": classes} if classes else {}, notes)


def _files(urls: Sequence[str], root: str | None) -> FoundSource:
    names: list[str] = []
    for url in urls:
        with gopen(url) as stream:
            names += os.fsdecode(stream.read()).replace("\r\n", "\n").split("\n")
    tree = folders.group_files(root or "", folders.stat_files(root or "", filter(None, names)))
    trees = {"": tree}
    text = "a list of files grouped by base name"
    return FoundSource(text, trees, tree.digest, notes=_file_notes(trees))


def _file_notes(trees: Mapping[str, folders.Tree]) -> list[str]:
    """Tells of files that are left out, of those that are empty, and of pictures of classes that are not of
    one kind. The keys are splits."""
    skipped: dict[str, list[str]] = {}
    for split, name in ((split, name) for split, tree in trees.items() for name in tree.skipped):
        why = "under a name like __x__, which readers skip" if is_meta(name) else "without an extension"
        skipped.setdefault(why, []).append(os.path.join(split, name))
    empty = [os.path.join(split, name) for split, tree in trees.items() for name in tree.empty]
    notes = [
        f"left out {counted(len(some), 'file')} {why}, such as {some[0]}" for why, some in skipped.items()
    ]
    if empty:
        how = "mpwds verify --decode lists what cannot be decoded in shards"
        notes.append(f"took {counted(len(empty), 'empty file')}, such as {empty[0]}: {how}")
    groups = [group for tree in trees.values() if tree.classes for group in tree.groups]
    kinds = Counter("+".join(sorted(field for _, field in group.files)) for group in groups)
    if len(kinds) > 1:
        each = ", ".join(f"{kind} ({count:,})" for kind, count in kinds.most_common(5))
        more = ", ..." if len(kinds) > 5 else ""
        notes.append(f"samples have different fields: {each}{more}")
    return notes


def _lists(urls: Sequence[str], kind: str, wanted: Wanted) -> FoundSource:
    rows = tables.read_lists(urls, kind, wanted.columns)
    root = folder_of(urls[0]) if wanted.root is None else wanted.root
    found = tables.columns_of(rows, root)
    column_map = tables.make_map(found, wanted.columns, wanted.key, root)
    classes = tables.numbered_words(tables.words_of_labels(column_map, found, lambda _: rows))
    column_map = replace(column_map, classes=classes)
    text = f"a list of {counted(len(rows), 'row')} (.{kind})"
    samples = {"": tables.TableRows(rows, column_map, range(len(rows)))}
    content = digest((row, column_map.versions(row)) for row in rows)
    return FoundSource(text, samples, content, _shown(found, column_map), classes)


def _arrow(
    splits: Mapping[str, Sequence[str]], wanted: Wanted, root: str | None, urls: Sequence[str]
) -> FoundSource:
    """A source of Parquet or Arrow files, copied from ``urls`` if they are not local. With a ``root``, texts
    may name files, as in other lists."""
    contents = list(map(version_of, urls))
    parts: dict[str, arrow.ArrowRows] = {}
    words: dict[str, set[str]] = {}
    for split, paths in splits.items():
        if wanted.any_order and paths[0].endswith(".parquet"):
            paths = arrow.as_arrow(paths, wanted.scratch())
        blocks, found = arrow.read_arrow(paths)
        rows_of = partial(arrow.read_columns, blocks)
        texts = [name for name, column in found.items() if column.kind == "text"]
        if root is not None and texts:
            found = {**found, **tables.columns_of(rows_of(texts), root)}
        column_map = tables.make_map(found, wanted.columns, wanted.key, root or "")
        for name, of_split in tables.words_of_labels(column_map, found, rows_of).items():
            words.setdefault(name, set()).update(of_split)
        files = [name for name in column_map.files if name in column_map.fields]
        sized = rows_of([*{*files, *filter(None, [column_map.key])}]) if files else ()
        sizes = []
        for number, row in enumerate(sized):
            sizes.append(column_map.size_of(number, row))
            contents.append(column_map.versions(row))
        parts[split] = arrow.ArrowRows(blocks, column_map, files_bytes=sizes)
    in_words = tables.numbered_words(words)
    samples: dict[str, Samples] = {
        split: replace(part, map=replace(part.map, classes=in_words)) for split, part in parts.items()
    }
    labels = {name: column.names for name, column in found.items() if column.names}
    classes = {column_map.fields[name]: names for name, names in labels.items() if name in column_map.fields}
    count = sum(map(len, splits.values()))
    rows = sum(map(len, samples.values()))
    text = f"a dataset of {counted(rows, 'row')} in {counted(count, 'file')}"
    return FoundSource(text, samples, digest(contents), _shown(found, column_map), {**classes, **in_words})


def _mds(format: Format, source: str, wanted: Wanted) -> FoundSource:
    opened = format.samples(source, copies_bytes=None)  # to be read in any order
    shards: Any = opened.shards
    columns, key = opened.columns, wanted.key
    tables.check_key(key, columns)
    first = next((number for number, length in enumerate(shards.lengths) if length), 0)
    others = {name: data for name, data in shards.read(first, 0).items() if wanted.columns or name != key}
    plan = plan_fields(others, columns, "tar", wanted.columns)
    fields = [(name, field, convert) for name, (field, _, convert) in plan.items()]
    if key:
        fields.append((key, KEY, from_column(columns[key], KEY)))
    check_distinct([field for _, field, _ in fields])
    shown = {**dict.fromkeys(columns, "left out"), **{name: field for name, field, _ in fields}}
    names: Sequence[str] = format.indexes[:1]
    if is_local(source):
        there = sorted(os.listdir(local_path(source)))
        names = [name for name in there if name in format.indexes or ".mds" in name]
    content = digest([shards.lengths, *(version_of(os.path.join(source, name)) for name in names)])
    samples = {"": MDSSamples(IndexedSamples(shards), fields)}
    return FoundSource(f"an MDS dataset ({format.name})", samples, content, shown)


def _shown(found: Mapping[str, tables.TableColumn], column_map: tables.ColumnMap) -> dict[str, str]:
    """Says for each column which field it becomes."""
    rest = f"{column_map.rest} (a part of it)" if column_map.rest else "left out"
    shown = {name: column_map.fields.get(name, rest) for name in found}
    shown = {name: f"{field} (by its content)" if "*" in field else field for name, field in shown.items()}
    if column_map.key:
        shown[column_map.key] = "__key__"
    return shown


@dataclass(frozen=True)
class MDSSamples:
    """The samples of a dataset as those of tar shards, or some of them. A worker gets a copy."""

    stored: IndexedSamples  # which are not decoded
    fields: Sequence[tuple[str, str, Convert]]  # columns, their fields, and the functions between their bytes
    numbers: Sequence[int] = ()  # the samples to iterate

    def __len__(self) -> int:
        return len(self.stored)

    @cached_property
    def _mean_size(self) -> int:
        sizes = [sample_bytes(sample) for sample in self.part(range(min(_LOOKED_AT, len(self))))]
        return sum(sizes) // max(len(sizes), 1)

    def size_of(self, number: int) -> int:
        """About the bytes of a sample in a tar archive: the mean of the first."""
        return self._mean_size

    def part(self, numbers: Sequence[int]) -> MDSSamples:
        return replace(self, numbers=numbers)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in self.numbers:
            stored = self.stored.shards.read(*self.stored.place(number))
            key = stored.pop(KEY, None)
            sample: dict[str, Any] = {KEY: b"%09d" % number if key is None else bytes(key)}
            sample.update((field, convert(stored[name])) for name, field, convert in self.fields)
            sample[KEY] = sample[KEY].decode()
            yield sample
