"""Pictures of the documentation, as SVG files, each for a light and a dark page."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH = 760


@dataclass(frozen=True)
class Theme:
    """Colours of the text, of our bars and of the peers' bars."""

    text: str
    faint: str
    ours: str
    peers: str


THEMES = {
    "light": Theme("#1f2328", "#59636e", "#0969da", "#afb8c1"),
    "dark": Theme("#f0f6fc", "#9198a1", "#4493f8", "#3d444d"),
}

COLOURS = {
    "light": ["#0969da", "#1a7f37", "#9a6700", "#cf222e", "#8250df", "#0e7c86"],
    "dark": ["#4493f8", "#3fb950", "#d29922", "#ff7b72", "#a371f7", "#39c5cf"],
}
ON_COLOUR = {"light": "#ffffff", "dark": "#0d1117"}
CHIP, GAP, PAD = 26, 6, 10


class Picture:
    """The parts of the picture in one theme."""

    def __init__(self, name: str) -> None:
        self.theme: Theme = THEMES[name]
        self._colours, self._on_colour = COLOURS[name], ON_COLOUR[name]
        self.parts: list[str] = []

    def say(self, x: int, y: int, words: str, *, faint: bool = False, bold: bool = False) -> None:
        colour = self.theme.faint if faint else self.theme.text
        self.parts.append(text(x, y, words, colour, weight=600 if bold else 400, size=12 if faint else 13))

    def chip(
        self, x: int, y: int, stream: int, label: str = "", width: int = CHIP, height: int = CHIP
    ) -> None:
        """A box in the colour of a stream."""
        colour = self._colours[stream]
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{colour}"/>')
        if label:
            middle = x + width // 2
            self.parts.append(
                text(
                    middle, y + height // 2 + 4, label, self._on_colour, anchor="middle", weight=600, size=12
                )
            )

    def frame(self, x: int, y: int, width: int, height: int, *, dashed: bool = False) -> None:
        dashes = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="none" '
            f'stroke="{self.theme.faint}"{dashes}/>'
        )

    def line(self, x: int, top: int, bottom: int) -> None:
        self.parts.append(
            f'<path d="M{x} {top}V{bottom}" stroke="{self.theme.text}" stroke-width="2" fill="none"/>'
        )


def svg(parts: list[str], height: int) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def text(
    x: int, y: int, words: str, colour: str, *, anchor: str = "start", weight: int = 400, size: int = 13
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(words)}</text>'
    )


def write_pictures(description: str | None, draw: dict[str, Callable[[str], str]]) -> None:
    """Writes each picture in each theme into the folder that the command line names.

    ``draw`` has a function for each picture's name, which draws it in the theme of a name.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the pictures go")
    folder = parser.parse_args().folder
    for theme in THEMES:
        for name, drawn in draw.items():
            (folder / f"{name}-{theme}.svg").write_text(drawn(theme))
