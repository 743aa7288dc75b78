"""Draws the README's picture of throughput from what ``tools/bench/loader.py --json`` measured.

    python tools/bench/loader.py --only images ready --json docs/images/throughput.json
    python tools/plot.py docs/images/throughput.json docs/images

Writes ``throughput-light.svg`` and ``throughput-dark.svg``: bars of samples per second, one panel for each
kind of work, ours first.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from pictures import THEMES, WIDTH, Theme, svg, text

LABELS, FIGURES, BAR, ROW, TITLE = 220, 84, 14, 24, 46


@dataclass(frozen=True)
class Panel:
    """One kind of work: its heading, its name in the benchmark, and a label for each contestant shown."""

    title: str
    contest: str
    labels: dict[str, str]


PANELS = [
    Panel(
        "Ready batches of 10 MB, worker to training loop (rows/s)",
        "ready batches of 10 MB (a row is a sample)",
        {
            "mpwds.MultiLoader": "mpwds MultiLoader",
            "SPDL, SharedMemorySegmentPool": "SPDL, shared memory pool",
            "torch DataLoader": "torch DataLoader",
        },
    ),
    Panel(
        "Tar shards to float32 batches, JPEGs decoded (images/s)",
        "JPEG to float32 [64, 3, 224, 224]",
        {
            "mpwds.MultiLoader": "mpwds MultiLoader",
            "SPDL, SharedMemorySegmentPool": "SPDL, shared memory pool",
            "grain, mp_prefetch": "grain",
            "webdataset + DataLoader": "webdataset + DataLoader",
            "torch DataLoader, map-style": "torch DataLoader",
        },
    ),
]


def draw(figures: dict[str, dict[str, float]], machine: str, theme: Theme) -> str:
    """The picture, as the text of an SVG file."""
    parts: list[str] = []
    top = 0
    for panel in PANELS:
        found = figures[panel.contest]
        shown = {label: found[name] for name, label in panel.labels.items() if name in found}
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
    parts.append(text(0, top + 10, f"Two workers. {machine}.", theme.faint, size=11))
    return svg(parts, top + 20)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", type=Path, help="what loader.py --json wrote")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    options = parser.parse_args()
    measured = json.loads(options.figures.read_text())
    for name, theme in THEMES.items():
        picture = draw(measured["samples_per_s"], measured["machine"], theme)
        (options.folder / f"throughput-{name}.svg").write_text(picture)


if __name__ == "__main__":
    main()
