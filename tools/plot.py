"""Draws the pictures of the report's figures: samples per second beside peers, growth, and orders.

    python tools/plot.py    # what tools/bench/report.py does, too: in docs/proof, from its report.json

Writes ``throughput-light.svg``, ``growth-light.svg``, ``shuffles-light.svg`` and their dark counterparts, as
far as the report has the benchmarks that measure them.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pictures import COLOURS, THEMES, WIDTH, Picture, svg, text

LABELS, FIGURES, BAR, ROW, TITLE = 256, 84, 14, 24, 46
CAPTION = 115
"""Characters of small print in a line."""
# A chart of curves: its size, the size of its plot, and where that begins.
CHART_WIDTH, CHART_HEIGHT, PLOT_WIDTH, PLOT_HEIGHT, LEFT, TOP = 380, 240, 300, 138, 56, 46
# The squares of orders, four in a row.
SIDE, COLUMN, SQUARE_ROW = 172, 196, 230
REFERENCES = ("DataLoader", "at best")
UNITS = (1e9, "G"), (1e6, "M"), (1e3, "k")


@dataclass(frozen=True)
class Panel:
    """One kind of work: its heading, its name in the benchmark, and a label for each contestant shown.

    A contestant without a figure is left out, and so is a panel without contestants.
    """

    title: str
    contest: str
    labels: dict[str, str]


PANELS = [
    Panel(
        "Ready batches of 9.6 MB, which the training loop reads (samples/s)",
        "ready batches of 9.6 MB, read",
        {
            "mpwds.MultiLoader": "mpwds MultiLoader",
            "SPDL, SharedMemorySegmentPool": "SPDL, shared memory pool",
            "grain, mp_prefetch": "grain",
            "torch DataLoader, fork": "torch DataLoader, fork",
            "torch DataLoader, forkserver": "torch DataLoader, forkserver",
            "torch DataLoader, spawn": "torch DataLoader, spawn",
            "tensorcom": "tensorcom",
        },
    ),
    Panel(
        "Photographs of 107 kB to random crops, [64, 224, 224, 3], each as it ships (images/s)",
        "107 kB to uint8, each as it ships",
        {
            "mpwds, random_resized_crop": "mpwds random_resized_crop",
            "DALI, on the CPU": "DALI, on the CPU",
            "grain + Pillow": "grain, Pillow",
            "litdata + torchvision v2": "litdata, torchvision v2",
            "SPDL, its own decoder": "SPDL, its own decoder",
            "Energon + torchvision v2": "Energon, torchvision v2",
            "webdataset + DataLoader + torchvision v2": "webdataset, torchvision v2",
            "MosaicML Streaming + torchvision v2": "MosaicML Streaming, torchvision v2",
        },
    ),
]


def throughput(loader: dict[str, Any], images: dict[str, Any], theme_name: str) -> str:
    """Bars of samples per second, one panel for each kind of work, ours first."""
    theme = THEMES[theme_name]
    samples_per_s = {**loader["samples_per_s"], **images["samples_per_s"]}
    machine = dict.fromkeys(part for each in (loader, images) for part in each["machine"].split(", "))
    parts: list[str] = []
    top = 0
    for panel in PANELS:
        found = samples_per_s.get(panel.contest, {})
        shown = {label: found[name] for name, label in panel.labels.items() if name in found}
        if not shown:
            continue
        parts.append(text(0, top + 24, panel.title, theme.text, weight=600))
        top += TITLE
        longest = max(shown.values())
        for label, value in shown.items():
            ours = label.startswith("mpwds")
            width = max(2, round((WIDTH - LABELS - FIGURES) * value / longest))
            weight = 600 if ours else 400
            parts.append(text(LABELS - 12, top + 11, label, theme.text, anchor="end", weight=weight))
            colour = theme.ours if ours else theme.peers
            parts.append(
                f'<rect x="{LABELS}" y="{top}" width="{width}" height="{BAR}" rx="3" fill="{colour}"/>'
            )
            parts.append(text(LABELS + width + 8, top + 11, f"{value:,.0f}", theme.text, weight=weight))
            top += ROW
        top += 12
    caption = f"Two workers. {', '.join(machine)}."
    for line in textwrap.wrap(caption, CAPTION, break_on_hyphens=False):
        parts.append(text(0, top + 10, line, theme.faint, size=11))
        top += 15
    return svg(parts, top + 5)


def growth(figures: dict[str, Any], theme_name: str) -> str:
    """Charts of curves, two in a row, on logarithmic scales."""
    picture = Picture(theme_name)
    for number, chart in enumerate(figures["charts"]):
        draw_chart(picture, number % 2 * CHART_WIDTH, number // 2 * CHART_HEIGHT, chart, COLOURS[theme_name])
    bottom = -(-len(figures["charts"]) // 2) * CHART_HEIGHT
    picture.parts.append(text(0, bottom + 10, f"{figures['machine']}.", picture.theme.faint, size=11))
    return svg(picture.parts, bottom + 20)


def draw_chart(picture: Picture, left: int, top: int, chart: dict[str, Any], colours: list[str]) -> None:
    theme = picture.theme
    xs, ys = zip(*(point for points in chart["curves"].values() for point in points), strict=True)
    first, last = math.log10(min(xs)), math.log10(max(xs))
    # Whole decades, and two of them at least: small changes shall not look large.
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    high = max(high, low + 2)

    def at_x(x: float) -> int:
        return left + LEFT + round(PLOT_WIDTH * (math.log10(x) - first) / (last - first))

    def at_y(y: float) -> int:
        return top + TOP + round(PLOT_HEIGHT * (high - math.log10(y)) / (high - low))

    picture.say(left, top + 14, chart["title"], bold=True)
    for decade in range(low, high + 1):
        y = at_y(10**decade)
        picture.parts.append(
            f'<path d="M{left + LEFT} {y}h{PLOT_WIDTH}" stroke="{theme.peers}" stroke-width="0.5"/>'
        )
        label = amount(10**decade)
        picture.parts.append(text(left + LEFT - 8, y + 4, label, theme.faint, anchor="end", size=11))
    points = next(iter(chart["curves"].values()))
    for x in [x for x, _ in points[:: 1 if len(points) < 8 else 3]]:
        picture.parts.append(
            text(at_x(x), top + TOP + PLOT_HEIGHT + 16, amount(x), theme.faint, anchor="middle", size=11)
        )
    middle, bottom = left + LEFT + PLOT_WIDTH // 2, top + TOP + PLOT_HEIGHT + 32
    picture.parts.append(text(middle, bottom, chart["grows"], theme.faint, anchor="middle", size=11))
    key = left
    for number, (label, points) in enumerate(chart["curves"].items()):
        is_reference = label.startswith(REFERENCES)
        colour = theme.faint if is_reference else colours[number]
        dashes = ' stroke-dasharray="4 3"' if is_reference else ""
        line = " ".join(f"{at_x(x)},{at_y(y)}" for x, y in points)
        picture.parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
            f'<path d="M{key} {top + 28}h14" stroke="{colour}" stroke-width="2"{dashes}/>'
        )
        picture.parts.append(text(key + 18, top + 32, label, theme.faint, size=11))
        key += 34 + 6 * len(label)


def amount(value: float) -> str:
    """A number in a few characters: 64, 256k, 1M."""
    for size, unit in UNITS:
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"


def shuffles(figures: dict[str, Any], theme_name: str) -> str:
    """A square for each order: a sample's place in the epoch to the right, its place in storage upwards."""
    picture = Picture(theme_name)
    for number, order in enumerate(figures["orders"]):
        left, top = number % 4 * COLUMN, number // 4 * SQUARE_ROW
        picture.say(left, top + 14, order["name"], bold=True)
        picture.frame(left + 1, top + 24, SIDE - 2, SIDE)
        places = [int(place) for place in order["places"].split()]
        xs = [left + 3 + position * (SIDE - 8) // len(places) for position in range(len(places))]
        ys = [top + 22 + SIDE - place * (SIDE - 4) // 1000 for place in places]
        points = "".join(f"M{x} {y}h2" for x, y in zip(xs, ys, strict=True))
        picture.parts.append(f'<path d="{points}" stroke="{picture.theme.ours}" stroke-width="2"/>')
        picture.say(left, top + SIDE + 42, f"{order['classes']} classes in a batch", faint=True)
    return svg(picture.parts, -(-len(figures["orders"]) // 4) * SQUARE_ROW)


DRAWN: dict[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    "throughput": (("loader", "images"), throughput),
    "growth": (("growth",), growth),
    "shuffles": (("shuffles",), shuffles),
}
"""The benchmarks whose ``--json`` has the figures of a picture, and what draws it, by the picture's name."""
MEASURED = frozenset(benchmark for benchmarks, _ in DRAWN.values() for benchmark in benchmarks)


def pictures(report: dict[str, Any]) -> dict[str, str]:
    """The texts of the files of all pictures whose figures a report has, by their names."""
    figures = {name: run["figures"] for name, run in report.items() if "figures" in run}
    return {
        f"{name}-{theme}.svg": drawn(*(figures[benchmark] for benchmark in benchmarks), theme)
        for name, (benchmarks, drawn) in DRAWN.items()
        if figures.keys() >= {*benchmarks}
        for theme in THEMES
    }


def draw(report: dict[str, Any], folder: Path) -> None:
    for name, picture in pictures(report).items():
        (folder / name).write_text(picture)


if __name__ == "__main__":
    proof = Path(__file__).resolve().parents[1] / "docs/proof"
    draw(json.loads((proof / "report.json").read_text()), proof)
