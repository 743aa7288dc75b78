"""Draws the streams of docs/guides/training/elastic.md on their ranks and workers, before and after a change.

    python tools/draw_streams.py docs/images

Writes ``streams-light.svg`` and ``streams-dark.svg``. The example has 6 streams, first on 3 ranks, then on 2.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from plot import THEMES, WIDTH, Theme, svg, text

STREAMS, SHARDS, SAVED_AFTER, BATCHES = 6, 18, 12, 18
BEFORE, AFTER = [1, 1, 1], [1, 3]
"""Workers of each rank."""

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


def draw(name: str) -> str:
    picture = Picture(name)
    shards_and_streams(picture)
    job(picture, 0, 172, "Before: 3 ranks, a worker each", BEFORE)
    job(picture, WIDTH // 2 + 10, 172, "After: 2 ranks, with one worker and three", AFTER)
    order(picture, 360)
    return svg(picture.parts, 446)


def shards_and_streams(picture: Picture) -> None:
    step = (WIDTH + 4) // SHARDS
    picture.say(0, 16, "The shards, in the epoch's order, are dealt to the streams", bold=True)
    for shard in range(SHARDS):
        picture.chip(shard * step, 28, shard % STREAMS, width=step - 4, height=16)
    picture.say(0, 80, "Each stream has its own shards, shuffle buffer, random numbers and state", bold=True)
    width = (WIDTH + 8) // STREAMS
    for stream in range(STREAMS):
        left = stream * width
        picture.chip(left, 92, stream, f"stream{stream}", width=width - 8)
        for shard in range(SHARDS // STREAMS):
            picture.chip(left + shard * 20, 124, stream, width=16, height=10)
        picture.say(left + 64, 134, "shards", faint=True)


def job(picture: Picture, left: int, top: int, title: str, workers: list[int]) -> None:
    """A panel of ranks, the workers in them, and the streams that each worker carries."""
    picture.say(left, top, title, bold=True)
    ranks = len(workers)
    for rank, of_rank in enumerate(workers):
        carried = range(rank, STREAMS, ranks)
        shares = [list(carried)[worker::of_rank] for worker in range(of_rank)]
        y = top + 12 + rank * (148 // ranks)
        height = 148 // ranks - 8
        picture.frame(left + 1, y, WIDTH // 2 - 12, height)
        picture.say(left + PAD, y + height // 2 + 4, f"rank {rank}")
        x = left + 70
        for share in shares:
            width = len(share) * (CHIP + GAP) + GAP
            picture.frame(x, y + (height - 34) // 2, width, 34, dashed=True)
            for place, stream in enumerate(share):
                picture.chip(x + GAP + place * (CHIP + GAP), y + (height - CHIP) // 2, stream, str(stream))
            x += width + 8
        label = "a worker" if of_rank == 1 else f"{of_rank} workers"
        picture.say(x + 4, y + height // 2 + 4, label, faint=True)


def order(picture: Picture, top: int) -> None:
    """The batches of the job, and which rank delivers each."""
    picture.say(0, top, "The job's batches: batch n comes from stream n mod 6, on any ranks", bold=True)
    step = (WIDTH - 50) // BATCHES
    for batch in range(BATCHES):
        before = batch < SAVED_AFTER
        left = 50 + batch * step + (0 if before else 6)
        picture.chip(left, top + 12, batch % STREAMS, str(batch), width=step - 8)
        rank = batch % len(BEFORE if before else AFTER)
        picture.parts.append(
            text(left + step // 2 - 4, top + 56, str(rank), picture.theme.faint, anchor="middle", size=12)
        )
    picture.say(0, top + 56, "by rank", faint=True)
    saved = 50 + SAVED_AFTER * step - 1
    picture.line(saved, top + 8, top + 62)
    picture.say(saved - 96, top + 78, "saved after batch 11, loaded on the other ranks", faint=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the pictures go")
    folder = parser.parse_args().folder
    for name in THEMES:
        (folder / f"streams-{name}.svg").write_text(draw(name))


if __name__ == "__main__":
    main()
