"""Values of a dataset specification that know where they stand: file, line and key."""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from mpwds.errors import SpecError
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.urls import without_credentials

Path = tuple["str | int", ...]

_REPR = reprlib.Repr()  # aliases can make a value too large to be shown
_REPR.maxstring = _REPR.maxother = 200
_shown = _REPR.repr


class SpecValue:
    """A value of a specification, with its place.

    Args:
        value: What YAML made of it.
        file: The file that it stands in.
        lines: Line of each value in the file, by path.
        path: Keys and indices that lead to it.

    Example:
        >>> spec = SpecValue({"datasets": [{"choose": "many"}]})
        >>> spec["datasets"].items()[0]["choose"].where
        'datasets[0].choose of the specification'
    """

    def __init__(
        self, value: Any, file: str | None = None, lines: Mapping[Path, int] | None = None, path: Path = ()
    ) -> None:
        self.value = value
        self.file = file
        self._lines = lines or {}
        self._path = path

    @property
    def key(self) -> str:
        """The keys that lead here: ``datasets[1].choose``."""
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self._path)
        return steps.removeprefix(".")

    @property
    def where(self) -> str:
        """The place, for messages: ``words.yaml, line 7, datasets[1].choose``."""
        if self.file is None:
            return f"{self.key} of the specification" if self._path else "the specification"
        line = self._lines.get(self._path)
        return ", ".join(filter(None, [self.file, f"line {line}" if line else "", self.key]))

    def fail(self, problem: str) -> NoReturn:
        """Raises :class:`SpecError` about this value: ``words.yaml, line 7, datasets[1].choose: ...``."""
        raise SpecError(f"{self.where} {problem}", self.file, self._lines.get(self._path), self.key)

    def __contains__(self, key: str) -> bool:
        return key in self.value

    def __getitem__(self, key: str | int) -> SpecValue:
        return SpecValue(self.value[key], self.file, self._lines, (*self._path, key))

    def get(self, key: str, default: Any = None) -> SpecValue:
        """The value under ``key``, or ``default`` in its place."""
        return SpecValue(self.value.get(key, default), self.file, self._lines, (*self._path, key))

    def mapping(self, *allowed: str) -> SpecValue:
        """This value, which must be a mapping; if ``allowed`` is given, one without other keys."""
        if not isinstance(self.value, dict):
            self.fail(f"must be a mapping, got {_shown(self.value)}")
        for key in self.value:
            if not isinstance(key, str):
                self.fail(f"has the key {key!r}, which is not a string")
            if allowed and key not in allowed:
                self[key].fail(f"is unknown: allowed here are {', '.join(allowed)}")
        return self

    def items(self) -> list[SpecValue]:
        """The items of this value, which must be a list that is not empty."""
        if not isinstance(self.value, list) or not self.value:
            self.fail(f"must be a list of at least one item, got {_shown(self.value)}")
        return [self[index] for index in range(len(self.value))]

    def strings(self) -> list[SpecValue]:
        """The strings of this value, which must be a string or a list of strings."""
        values = [self] if isinstance(self.value, str) else self.items()
        for value in values:
            if not isinstance(value.value, str) or not value.value:
                value.fail(f"must be a string, got {_shown(value.value)}")
        return values

    def text(self) -> str:
        """This value, which must be a string."""
        if not isinstance(self.value, str):
            self.fail(f"must be a string, got {_shown(self.value)}")
        text: str = self.value
        return text

    def flag(self) -> bool:
        """This value, which must be true or false."""
        if not isinstance(self.value, bool):
            self.fail(f"must be true or false, got {_shown(self.value)}")
        flag: bool = self.value
        return flag

    def integer(self, least: int) -> int:
        """This value, which must be a whole number, at least ``least``."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < least:
            self.fail(f"must be a whole number, {least} or more, got {_shown(self.value)}")
        integer: int = self.value
        return integer

    def number(self, least: float = 0.0, most: float = math.inf) -> float:
        """This value, which must be a number from ``least`` to ``most``."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            bounds = f"{least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"
            self.fail(f"must be a number, {bounds}, got {_shown(value)}")
        if math.isinf(value):
            self.fail("must be finite")
        return float(value)


def read_spec(spec: str | os.PathLike[str] | Mapping[str, Any]) -> SpecValue:
    """A specification from a YAML file, or from a dict.

    Args:
        spec: Path or URL of the file, or what YAML would make of one.

    Raises:
        SpecError: The file is not YAML, or has a key twice.
        OSError: It cannot be read.
        ImportError: PyYAML is missing: the extra ``mpwds[yaml]`` brings it.

    Example:
        >>> read_spec({"datasets": []})["datasets"].value
        []
    """
    if isinstance(spec, Mapping):
        return SpecValue(dict(spec))
    file = os.fspath(spec)
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            f"to read the dataset specification {file} PyYAML is needed: pip install 'mpwds[yaml]'"
        ) from error
    with open_at(file) as stream:
        content = stream.read()
    file = without_credentials(file)
    try:
        text = content.decode()
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except UnicodeDecodeError as error:
        raise SpecError(f"{file} is no YAML: it is not text in UTF-8 ({error})", file) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        at = file if line is None else f"{file}, line {line}"
        raise SpecError(f"{at} is no YAML: {getattr(error, 'problem', None) or error}", file, line) from None
    lines: dict[Path, int] = {}
    for path, line in _lines(node, (), set()):
        if path in lines:
            raise SpecError(
                f"{file}, line {line}: the key {path[-1]!r} stands in line {lines[path]} already", file, line
            )
        lines[path] = line
    return SpecValue(value, file, lines)


def _lines(node: Any, path: Path, seen: set[int]) -> Iterator[tuple[Path, int]]:
    """The line of each value below a YAML node, that of a mapping's value being its key's.

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
