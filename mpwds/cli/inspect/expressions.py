"""Expressions over the fields of a sample: a small part of Python's, interpreted without running code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from mpwds.pipeline.decoding.decoders import Decoder

_MOST_NODES = 200


class Expression:
    """A condition on a sample, written in a small part of Python.

    Names are fields: ``cls == 3 and len(jpg) > 1000 and json.width > 200``. Text, numbers, ``json``, ``npy``
    and the like are decoded; other fields are bytes. ``mask.png`` is the field of that name, or else what
    ``mask`` holds under ``png``. ``mask`` is ``mask.png``, too, if no other field begins so.
    ``field["2.png"]`` reaches names that Python does not allow. ``key`` is the sample's key. There are ``and
    or not``, comparisons, ``in``, arithmetic of numbers, ``[index]``, and the functions ``len abs int float
    str lower``. A comparison with something that a sample lacks is false.

    str lower``. A comparison with something that a sample lacks is false.

    Raises ``ValueError`` if the text is not such an expression; or, when it is called, a field cannot be
    decoded, or values cannot be compared.

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
            tree = ast.parse(text.strip(), mode="eval").body
            if sum(1 for _ in ast.walk(tree)) > _MOST_NODES:
                raise self._error(f"it has more than {_MOST_NODES} parts")
            self._holds = self._built(tree)
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
        except (TypeError, ValueError, ArithmeticError) as error:
            raise self._error(f'on sample "{key}": {error}') from error

    def _error(self, reason: str) -> ValueError:
        return ValueError(f'expression "{self.text}": {reason}')

    def _built(self, node: ast.expr) -> _Part:
        """The function that an expression stands for."""
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
            case ast.Compare(left=left, ops=ops, comparators=others) if {
                *map(type, ops)
            } <= _COMPARISONS.keys():
                sides = [left, *others]
                tests = [
                    self._applied(_COMPARISONS[type(op)], *sides[place : place + 2])
                    for place, op in enumerate(ops)
                ]
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
            longer = [each for each in self._encoded if _begins(each, field)]
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


def _begins(name: str, part: str) -> bool:
    return name.startswith(f"{part}.")


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
    "len": len,
    "abs": abs,
    "int": int,
    "float": float,
    "str": str,
    "lower": str.lower,
}
