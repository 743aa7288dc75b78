"""Values of a dataset specification, which know their file, line and key for error messages."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from mpwds.errors import SpecError
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.urls import without_credentials
from mpwds.suggestions import shown

Path = tuple["str | int", ...]


class SpecValue:
    """A value of a specification that knows its file, its line and the keys that lead to it."""

    def __init__(
        self, value: Any, file: str | None = None, lines: Mapping[Path, int] | None = None, path: Path = ()
    ) -> None:
        self.value = value
        self.file = file
        self._lines = lines or {}
        self._path = path
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        self._key = steps.removeprefix(".")

    @property
    def where(self) -> str:
        """The place, for messages: ``words.yaml, line 7, datasets[1].choose``."""
        if self.file is None:
            return f"{self._key} of the specification" if self._key else "the specification"
        line = self._lines.get(self._path)
        return ", ".join(filter(None, [self.file, f"line {line}" if line else "", self._key]))

    def fail(self, problem: str) -> NoReturn:
        """Raises ``SpecError`` about this value."""
        raise SpecError(f"{self.where} {problem}", self.file, self._lines.get(self._path), self._key)

    def __contains__(self, key: str) -> bool:
        return key in self.value

    def __getitem__(self, key: str | int) -> SpecValue:
        return SpecValue(self.value[key], self.file, self._lines, (*self._path, key))

    def get(self, key: str, default: Any) -> SpecValue:
        """The value under ``key``, or ``default`` at its place."""
        return SpecValue(self.value.get(key, default), self.file, self._lines, (*self._path, key))

    def mapping(self, *allowed: str) -> SpecValue:
        """This value, which must be a mapping; with ``allowed``, one without other keys."""
        if not isinstance(self.value, dict):
            self.fail(f"must be a mapping, got {shown(self.value)}")
        for key in self.value:
            if not isinstance(key, str):
                self.fail(f"has the key {shown(key)}, which is not a string")
            if allowed and key not in allowed:
                self[key].fail(f"is unknown: allowed here are {', '.join(allowed)}")
        return self

    def items(self) -> list[SpecValue]:
        """The items of this value, which must be a non-empty list."""
        if not isinstance(self.value, list) or not self.value:
            self.fail(f"must be a list of at least one item, got {shown(self.value)}")
        return [self[index] for index in range(len(self.value))]

    def strings(self) -> list[SpecValue]:
        """The strings of this value, a string or a list of strings."""
        values = [self] if isinstance(self.value, str) else self.items()
        for value in values:
            if not isinstance(value.value, str) or not value.value:
                value.fail(f"must be a string, got {shown(value.value)}")
        return values

    def text(self) -> str:
        """This value, which must be a string."""
        if not isinstance(self.value, str):
            self.fail(f"must be a string, got {shown(self.value)}")
        return self.value

    def integer(self, least: int) -> int:
        """This value, which must be a whole number and at least ``least``."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < least:
            self.fail(f"must be a whole number, {least} or more, got {shown(self.value)}")
        return self.value

    def number(self, most: float = math.inf) -> float:
        """This value, which must be a number from 0 to ``most``."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            bounds = "0 or more" if most == math.inf else f"from 0 to {most:g}"
            self.fail(f"must be a number, {bounds}, got {shown(value)}")
        if math.isinf(value):
            self.fail("must be finite")
        return float(value)


def read_spec(spec: str | os.PathLike[str] | Mapping[str, Any]) -> SpecValue:
    """Parses a specification: a YAML file by path or URL, or a dict.

    Raises:
        SpecError: The file is not YAML, or has a key twice.
        OSError: It cannot be read.
        ImportError: PyYAML is missing.
    """
    if isinstance(spec, Mapping):
        return SpecValue(dict(spec))
    file = os.fspath(spec)
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            f"reading the dataset specification {file} needs PyYAML: pip install 'mpwds[yaml]'"
        ) from error
    with open_at(file) as stream:
        content = stream.read()
    file = without_credentials(file)
    try:
        text = content.decode()
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except UnicodeDecodeError as error:
        raise SpecError(f"{file} is not YAML: it is not UTF-8 text ({error})", file) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        at = file if line is None else f"{file}, line {line}"
        raise SpecError(f"{at} is not YAML: {getattr(error, 'problem', None) or error}", file, line) from None
    lines: dict[Path, int] = {}
    for path, line in _lines(node, (), set()):
        if path in lines:
            raise SpecError(
                f"{file}, line {line}: the key {shown(path[-1])} is already in line {lines[path]}", file, line
            )
        lines[path] = line
    return SpecValue(value, file, lines)


def _lines(node: Any, path: Path, seen: set[int]) -> Iterator[tuple[Path, int]]:
    """The line of each value below a YAML node; for a mapping's value, the line of its key.

    A value that aliases repeat is visited once: it may contain itself, or be too large to visit each time.
    """
    if isinstance(getattr(node, "value", None), list) and id(node) not in seen:
        seen.add(id(node))
        for number, item in enumerate(node.value):
            key_node, value_node = item if isinstance(item, tuple) else (item, item)
            step = key_node.value if isinstance(item, tuple) else number
            if isinstance(step, (str, int)):
                yield (*path, step), key_node.start_mark.line + 1
                yield from _lines(value_node, (*path, step), seen)
