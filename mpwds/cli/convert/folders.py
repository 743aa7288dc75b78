"""Samples of a tree of files: files of one base name are a sample, and its folder may be its class."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mpwds.storage.tar.names import split_name
from mpwds.storage.writing.tar_members import member_bytes
from mpwds.viewing.wording import counted

_LABEL = "cls"


class Group(NamedTuple):
    """The files of one sample: their names from the root on, each with its field; their bytes in a tar."""

    key: str
    files: tuple[tuple[str, str], ...]
    size_bytes: int


@dataclass(frozen=True)
class Tree:
    """The samples of a folder, in the order of their keys. A worker reads some of them."""

    root: str
    groups: Sequence[Group]
    classes: Sequence[str] = ()  # the class folders; empty if folders are no classes
    skipped: Sequence[str] = ()  # files that can be no field: no extension, hidden, or in a folder __x__
    empty: Sequence[str] = ()  # files without a byte, which are fields nevertheless
    digest: str = ""  # of the names, sizes and times of all files

    def __len__(self) -> int:
        return len(self.groups)

    def size_of(self, number: int) -> int:
        group = self.groups[number]
        return group.size_bytes + (member_bytes(1, f"{group.key}.{_LABEL}") if self.classes else 0)

    def part(self, numbers: Sequence[int]) -> Tree:
        return Tree(self.root, [self.groups[number] for number in numbers], self.classes)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        labels = {name: b"%d" % number for number, name in enumerate(self.classes)}
        for key, files, _ in self.groups:
            sample: dict[str, Any] = {"__key__": key}
            if labels:
                sample[_LABEL] = labels[key.partition("/")[0]]
            for name, field in files:
                with open(os.path.join(self.root, name), "rb", buffering=0) as file:
                    sample[field] = file.read()
            yield sample


def read_tree(root: str, with_classes: bool | None = None) -> Tree:
    """Finds the samples of a folder and all folders below it.

    Files whose paths agree up to the first dot of the base name form a sample, as in a tar shard; the rest of
    the base name, in lower case, is the field. Symbolic links are followed. Hidden files, hidden folders,
    files without an extension, and names like ``__x__`` in ``root``, which readers skip, are left out.

    ``with_classes`` makes each folder in ``root`` a class, whose samples get its number, in the order of
    their names, as ``cls`` (torchvision's ``ImageFolder``). If it is ``None``, they are classes if ``root``
    holds nothing but two or more folders, and each sample is a single file. That fewer than a tenth of the
    samples are why they are none is an error.
    """
    tree = group_files(root, sorted(_files_below(root)))
    folders = sorted({group.key.partition("/")[0] for group in tree.groups if "/" in group.key})
    flat = next((group.key for group in tree.groups if "/" not in group.key), None)
    if with_classes is None:
        strays = [group for group in tree.groups if "/" not in group.key or len(group.files) > 1]
        with_classes = len(folders) > 1 and not strays
        if len(folders) > 1 and 0 < len(strays) * 10 < len(tree.groups):
            names = " and ".join(name for name, _ in strays[0].files[:2])
            raise ValueError(
                f"{root}: its folders would be classes, but for {counted(len(strays), 'sample')} of "
                f"{len(tree.groups):,}: {names}. Move these away, or rename files that agree up to their "
                "first dot; or say --from groups for no classes"
            )
    if not with_classes:
        return tree
    if flat is not None:
        raise ValueError(f"{root}: {flat}.* lies beside the class folders, so it has no class")
    labelled = next((group.key for group in tree.groups if any(f == _LABEL for _, f in group.files)), None)
    if labelled is not None:
        raise ValueError(f"{root}: {labelled}.cls is a label already: the folders cannot be classes, too")
    return replace(tree, classes=folders)


def group_files(root: str, files: Iterable[tuple[str, int, int]]) -> Tree:
    """The samples of files (name below ``root``, size, time in ns), in the order in which samples begin."""
    found: dict[str, list[tuple[str, str, int]]] = {}
    skipped, empty = [], []
    content = hashlib.blake2b(digest_size=16)
    for name, size, time_ns in files:
        key, field = split_name(os.path.normpath(name))
        if key.startswith("../"):
            raise ValueError(f"{name} is outside of the folder: say with --root where names start")
        if field:
            content.update(f"{name}\0{size} {time_ns}\n".encode("utf-8", "surrogateescape"))
            found.setdefault(key, []).append((name, field, size))
            if not size and os.path.isfile(os.path.join(root, name)):  # a pipe may have bytes
                empty.append(name)
        else:
            skipped.append(name)
    if not found:
        raise ValueError(f"{root}: there is no file that can be a field of a sample, such as 0001.jpg")
    groups = [_group(root, key, files) for key, files in found.items()]
    return Tree(root, groups, (), skipped, empty, content.hexdigest())


def stat_files(root: str, names: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """The sizes and times of files. Raises ``OSError`` if one does not exist."""
    for name in names:
        status = os.stat(os.path.join(root, name))
        yield name, status.st_size, status.st_mtime_ns


def _group(root: str, key: str, files: list[tuple[str, str, int]]) -> Group:
    by_field: dict[str, str] = {}
    for name, field, _ in files:
        if field in by_field:
            if os.path.normpath(name) == os.path.normpath(by_field[field]):
                raise ValueError(f"the list names {os.path.join(root, name)} twice: remove one of the lines")
            both = f"{os.path.join(root, by_field[field])} and {name}"
            raise ValueError(f"{both} would be the same field: names differ in case alone")
        by_field[field] = name
    size = sum(member_bytes(size, name) for name, _, size in files)
    # An absolute name would not be found again below the folder that the shard is unpacked to.
    return Group(key.lstrip("/"), tuple((name, field) for name, field, _ in files), size)


def _files_below(root: str) -> Iterator[tuple[str, int, int]]:
    """The names of all files below a folder, from it on, their sizes and times."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                status = entry.stat()
                name = os.path.join(folder, entry.name)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(name)
                elif stat.S_ISREG(status.st_mode):
                    yield name, status.st_size, status.st_mtime_ns
