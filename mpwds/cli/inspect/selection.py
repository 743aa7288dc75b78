"""The samples and fields that a command is about: chosen by keys, numbers, and conditions on their fields.

Conditions are a small part of Python's expressions, interpreted without running code.
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from typing import Any, Final

import typer

from mpwds.cli.inspect.shards import Problem, Sample, Wants, read_or_report, shards_of
from mpwds.cli.options import Chosen
from mpwds.pipeline.decoding.decoders import Decoder
from mpwds.viewing.wording import printable


class SampleSelection:
    """The samples of shards that a user chose by options, with their chosen fields alone.

    Iterating reads the fields, and leaves out samples that damage may have made incomplete. ``limit`` is the
    most samples, ``None`` for all. ``problems`` counts the problems that standard error names.
    """

    def __init__(self, urls: Sequence[str], chosen: Chosen, limit: int | None = None) -> None:
        self._shards = shards_of(urls)
        try:
            self._ranges = tuple(map(_range, _words(chosen.number)))
            self._where = Expression(chosen.where) if chosen.where else None
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        self._keys = chosen.key or ()
        self._fields = _words(chosen.fields.lower())
        self._end = max((each.stop for each in self._ranges), default=sys.maxsize)
        self.limit = limit
        self.problems = 0

    def __iter__(self) -> Iterator[Sample]:
        for sample in self.read(self.takes):
            if sample.is_whole:
                yield sample
            else:
                what = "left out: members may be missing, because the shard is damaged here"
                self.report(Problem(sample.shard, sample.offset, sample.key, "", what))

    def read(self, wants: Wants, report: Callable[[Problem], None] | None = None) -> Iterator[Sample]:
        """Yields all chosen samples, and reads nothing after the last number and the limit.

        ``wants`` says which fields to read, beside those that the choice depends on.
        """

        def needs(number: int, key: str, field: str) -> object:
            where = self._where
            is_tested = where is not None and key and where.needs(field) and self._names(number, key)
            return is_tested or wants(number, key, field)

        unknown = {*self._fields, *(self._where.fields if self._where is not None else ())}
        seen: dict[str, None] = {}
        number = count = 0
        for shard in self._shards:
            if count == self.limit or number >= self._end:
                break
            with closing(read_or_report(shard, needs, number)) as read:
                for found in read:
                    if isinstance(found, Problem):
                        (report or self.report)(found)
                    if not isinstance(found, Sample):
                        continue
                    number = found.number + 1
                    if unknown:
                        seen.update(dict.fromkeys(found.members))
                        known = [*seen, *map(str.lower, seen)]
                        unknown -= {name for name in unknown if _is_there(name, known)}
                    if self._holds(found):
                        count += 1
                        taken = filter(self._takes_field, found.members)
                        found.members = {name: found.members[name] for name in taken}
                        yield found
                    if count == self.limit or number >= self._end:
                        break
        for name in sorted(unknown) if seen else ():
            print(printable(f"no sample has a field {name!r}: there are {', '.join(seen)}"), file=sys.stderr)
        if not count and not (unknown and seen) and (self._keys or self._ranges or self._where):
            print("no sample is chosen by --key, --number and --where", file=sys.stderr)

    def takes(self, number: int, key: str, field: str) -> bool:
        """True if a field of a sample may be chosen."""
        return bool(key) and self._takes_field(field) and self._names(number, key)

    def _takes_field(self, field: str) -> bool:
        return _matches(field.lower(), self._fields)  # columns of MDS may have capital letters

    def report(self, problem: Problem) -> None:
        """Counts a problem and prints it on standard error."""
        self.problems += 1
        print(printable(str(problem)), file=sys.stderr)

    def _names(self, number: int, key: str) -> bool:
        in_ranges = not self._ranges or any(number in each for each in self._ranges)
        return in_ranges and _matches(key, self._keys)

    def _holds(self, sample: Sample) -> bool:
        if not self._names(sample.number, sample.key):
            return False
        return self._where is None or self._where(sample.data(), sample.key)


def _is_there(name: str, fields: Iterable[str]) -> bool:
    return any(fnmatchcase(field, name) or field.startswith(f"{name}.") for field in fields)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _range(text: str) -> range:
    """``7`` or ``10:20``, of which either side may be missing."""
    start, colon, stop = text.partition(":")
    try:
        first = int(start or "0")
        found = range(first, int(stop) if stop else sys.maxsize if colon else first + 1)
    except ValueError:
        raise ValueError(f"{text!r} is no number of a sample, or a range of them such as 10:20") from None
    if first < 0 or not found:
        raise ValueError(f"{text!r} holds no number of a sample: they begin at 0, and a range before its end")
    return found


def _matches(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


class Expression:
    """A condition on a sample, written in a small part of Python.

    Names are fields: ``cls == 3 and len(jpg) > 1000 and json.width > 200``. Text, numbers, ``json``, ``npy``
    and the like are decoded; other fields are bytes. ``mask.png`` is the field of that name, or else what
    ``mask`` holds under ``png``. ``mask`` is ``mask.png``, too, if no other field begins so.
    ``field["2.png"]`` reaches names that Python does not allow. ``key`` is the sample's key. A comparison
    with something that a sample lacks is false.

    Example:
        >>> Expression("cls in (3, 4) and json.width > 200")({"cls": b"3", "json": b'{"width": 640}'})
        True
        >>> Expression("open('/etc/passwd')")
        Traceback (most recent call last):
        ValueError: expression "open('/etc/passwd')": it can call only len, abs, int, float, str, lower, ...
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._names: set[str] = set()
        try:
            self._holds = self._built(ast.parse(text.strip(), mode="eval").body)
        except SyntaxError as error:
            raise self._error(f"{error.msg}; write it like cls == 3 and len(jpg) > 1000") from None
        except (RecursionError, MemoryError):
            raise self._error("it is nested too deeply") from None

    @property
    def fields(self) -> set[str]:
        """The fields that the expression looks at, up to the first dot of their names."""
        return {name.partition(".")[0] for name in self._names if name != "key"}

    def needs(self, field: str) -> bool:
        """True if a field may be one of those that the expression names."""
        return any(name.partition(".")[0] == field.partition(".")[0] for name in self._names)

    def __call__(self, fields: Mapping[str, bytes], key: str = "") -> bool:
        """True if the condition holds for a sample's fields, which are given as bytes."""
        try:
            return bool(self._holds(_Fields(fields, key)))
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise self._error(f'on sample "{key}": {error}') from error

    def _error(self, reason: str) -> ValueError:
        return ValueError(f'expression "{self.text}": {reason}')

    def _built(self, node: ast.expr) -> _Part:
        name = _name_of(node)
        if name is not None:
            self._names.add(name)
            return lambda fields: fields.value(name)
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | bytes() | None as value):
                return lambda fields: value
            case ast.BoolOp(op=op, values=values):
                parts, combined = list(map(self._built, values)), all if isinstance(op, ast.And) else any
                return lambda fields: combined(part(fields) for part in parts)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                members = list(map(self._built, elements))
                return lambda fields: [member(fields) for member in members]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                negated = self._built(operand)
                return lambda fields: not negated(fields)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._applied(lambda value: _number(0) - _number(value), operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                compute = _ARITHMETIC[type(op)]
                return self._applied(lambda one, other: compute(_number(one), _number(other)), left, right)
            case ast.Compare(left=left, ops=ops, comparators=rest) if _COMPARISONS.keys() >= {
                *map(type, ops)
            }:
                functions = [_COMPARISONS[type(op)] for op in ops]
                tests = list(map(self._applied, functions, [left, *rest], rest))
                return lambda fields: all(test(fields) for test in tests)
            case ast.Attribute(value=value, attr=attribute):
                return self._applied(lambda found: _item(found, attribute), value)
            case ast.Subscript(value=value, slice=index):
                return self._applied(_item, value, index)
            case ast.Call(func=ast.Name(id=function), args=[argument], keywords=[]) if function in _FUNCTIONS:
                return self._applied(_FUNCTIONS[function], argument)
            case ast.Call():
                raise self._error(f"it can call only {', '.join(_FUNCTIONS)}, each with one argument")
        raise self._error(f"{ast.unparse(node)} is not allowed in it")

    def _applied(self, function: Callable[..., Any], *nodes: ast.expr) -> _Part:
        """A function of expressions' values, which is missing where one of them is."""
        parts = list(map(self._built, nodes))

        def apply(fields: _Fields) -> Any:
            values = [part(fields) for part in parts]
            return _MISSING if any(value is _MISSING for value in values) else function(*values)

        return apply


class _Missing:
    def __bool__(self) -> bool:
        return False


_MISSING: Final = _Missing()
"""The value of what a sample does not have."""


class _Fields:
    """A sample's fields, decoded when they are first used."""

    _decode = Decoder(partial=True)

    def __init__(self, fields: Mapping[str, bytes], key: str) -> None:
        self._encoded = fields
        self._key = key
        self._decoded: dict[str, Any] = {}

    def value(self, name: str) -> Any:
        if name == "key":
            return self._key
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            field = ".".join(parts[:count])
            longer = [each for each in self._encoded if each.startswith(f"{field}.")]
            if field in self._encoded or len(longer) == 1:
                value = self._field(field if field in self._encoded else longer[0])
                for part in parts[count:]:
                    value = _item(value, part)
                return value
        return _MISSING

    def _field(self, field: str) -> Any:
        if field not in self._decoded:
            self._decoded[field] = self._decode({field: self._encoded[field]})[field]
        return self._decoded[field]


_Part = Callable[[_Fields], Any]


def _name_of(node: ast.expr) -> str | None:
    """The field, and path in it, that an expression names: ``json``, ``json.width``, ``field["2.png"]``."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute) if (front := _name_of(value)) is not None:
            return f"{front}.{attribute}"
        case ast.Subscript(value=ast.Name(id="field"), slice=ast.Constant(value=str() as name)):
            return name
    return None


def _item(value: Any, index: Any) -> Any:
    if isinstance(value, Mapping):
        return value.get(index, _MISSING)
    try:
        return value[index]
    except (IndexError, TypeError):
        return _MISSING


def _number(value: Any) -> Any:
    if isinstance(value, (str, bytes, list, tuple)):  # which + and * make longer, and % formats
        raise TypeError(f"arithmetic is for numbers, not {type(value).__name__}")
    return value


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    function.__name__: function for function in (len, abs, int, float, str, str.lower)
}
