"""Text of figures and tables, the same in the terminal, in notebooks, on pictures and on the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

T = TypeVar("T")


def number(value: float | None) -> str:
    """A value in about four digits.

    Example:
        >>> number(0.12345), number(14789.5), number(1234567), number(-2.0), number(None)
        ('0.1235', '14,790', '1.235e+06', '-2', '-')
    """
    if value is None:
        return "-"
    if abs(value) < 1_000_000 and (isinstance(value, int) or abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def shape_text(shape: Sequence[int | str]) -> str:
    """A shape as it is written in code.

    Example:
        >>> shape_text((64, "*", 3)), shape_text(())
        ('[64, *, 3]', '[]')
    """
    return f"[{', '.join(map(str, shape))}]"


def counted(number: int, what: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "shard"), counted(2000, "sample"), counted(0, "batch")
        ('1 shard', '2,000 samples', '0 batches')
    """
    plural = "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{'' if number == 1 else plural}"


def per(amount: float, total: float) -> float:
    """A share or a rate; 0 of nothing, and of a time that is not known.

    Example:
        >>> per(3, 4), per(3, 0), per(3, float("nan"))
        (0.75, 0.0, 0.0)
    """
    return amount / total if total > 0 and math.isfinite(total) else 0.0


def rate(per_s: float) -> str:
    """A rate, with fewer digits the larger it is.

    Example:
        >>> rate(0.0), rate(3.14159), rate(123.4), rate(45678.9)
        ('0', '3.14', '123', '45,679')
    """
    if per_s == 0:
        return "0"
    if per_s < 10:
        return f"{per_s:.2f}"
    return f"{per_s:.1f}" if per_s < 100 else f"{per_s:,.0f}"


def size(nbytes: float) -> str:
    """Bytes in the unit that suits them.

    Example:
        >>> size(512), size(38_500_000), size(2.5e9)
        ('512 B', '38.5 MB', '2.5 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= factor:
            scaled = nbytes / factor
            return f"{scaled:.1f} {unit}" if scaled < 100 else f"{scaled:,.0f} {unit}"
    return f"{nbytes:.0f} B"


def three_digits(value: float) -> str:
    """A figure of at least three digits, never in powers of ten.

    Example:
        >>> three_digits(0.0357), three_digits(12.0), three_digits(1036.2)
        ('0.0357', '12', '1,036')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """A time in its two largest units.

    Example:
        >>> duration(3.2), duration(75), duration(7384), duration(200_000)
        ('3 s', '1 min 15 s', '2 h 3 min', '2 d 7 h')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def printable(text: str, keep: str = "") -> str:
    """A text that does nothing to a terminal: characters that do not print, but for ``keep``, become ``�``.

    Example:
        >>> printable("label\\x1b[2J")
        'label�[2J'
    """
    return "".join(each if each.isprintable() or each in keep else "�" for each in text)


@dataclass(frozen=True)
class Table:
    """Rows of text: the first ``left`` columns are words, the others figures."""

    title: str
    columns: tuple[str, ...]
    left: int
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(
        cls, title: str, left: int, columns: Mapping[str, Callable[[T], str]], items: Iterable[T]
    ) -> Table:
        """A row for each item; a column's function words its cell.

        Example:
            >>> Table.of("", 1, {"letter": str, "code": lambda each: str(ord(each))}, "ab").rows
            (('a', '97'), ('b', '98'))
        """
        rows = (tuple(cell(item) for cell in columns.values()) for item in items)
        return cls(title, tuple(columns), left, tuple(rows))


def as_text(parts: Sequence[str | Table]) -> str:
    """Lines of text, and tables in columns of one width: words are aligned left, figures right.

    Example:
        >>> print(as_text(["two workers:", Table("", ("worker", "batches"), 1, (("0", "9"), ("1", "12")))]))
        two workers:
        worker  batches
        0             9
        1            12
    """
    return "\n".join(line for part in parts for line in _lines(part))


def _lines(part: str | Table) -> list[str]:
    if isinstance(part, str):
        return [part]
    cells = [part.columns, *part.rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        words = [cell.ljust(width) for cell, width in zip(row[: part.left], widths, strict=False)]
        figures = zip(row[part.left :], widths[part.left :], strict=True)
        lines.append("  ".join([*words, *(cell.rjust(width) for cell, width in figures)]).rstrip())
    return lines


def as_html(parts: Sequence[str | Table]) -> str:
    """The same for a notebook."""
    return "".join(map(_html, parts))


def _html(part: str | Table) -> str:
    if isinstance(part, str):
        return f"<div>{escape(part)}</div>"
    cells = [[f"<td>{escape(cell)}</td>" for cell in row] for row in part.rows]
    head = [f"<th>{escape(name)}</th>" for name in part.columns]
    return f"<table><tr>{'</tr><tr>'.join(map(''.join, [head, *cells]))}</tr></table>"
