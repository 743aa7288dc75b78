"""Draws the pictures of the guides: epochs of equal length, and padding with and without buckets.

    python tools/draw_guides.py docs/images

Writes ``even-light.svg``, ``padding-light.svg`` and their dark counterparts.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from draw_streams import Picture
from plot import THEMES, WIDTH, svg

BATCHES = [6, 4, 5]
"""Batches that each rank has."""


def even(name: str) -> str:
    picture = Picture(name)
    column = (WIDTH - 40) // 3
    meanings = {
        "drop": ("as many as the shortest rank", "batches are left out"),
        "pad": ("as many as the longest rank", "the last batch is repeated"),
        "wrap": ("as many as the longest rank", "another pass begins"),
    }
    for number, (mode, meaning) in enumerate(meanings.items()):
        left = number * (column + 20)
        length = min(BATCHES) if mode == "drop" else max(BATCHES)
        picture.say(left, 16, f'even="{mode}"', bold=True)
        for line, words in enumerate(meaning):
            picture.say(left, 36 + 17 * line, words, faint=True)
        for rank, own in enumerate(BATCHES):
            top = 72 + 38 * rank
            picture.say(left, top + 18, f"rank {rank}", faint=True)
            for batch in range(max(own, length)):
                x = left + 46 + batch * 31
                if batch < min(own, length):
                    picture.chip(x, top, rank, str(batch), height=28)
                elif batch >= length:
                    picture.frame(x, top, 26, 28, dashed=True)
                else:
                    picture.chip(x, top + 6, rank, str(own - 1 if mode == "pad" else batch - own), height=16)
    return svg(picture.parts, 190)


def padding(name: str) -> str:
    """Two columns of batches: as they come, and from buckets."""
    picture = Picture(name)
    rng = random.Random(3)
    lengths = [min(300, round(rng.lognormvariate(4.3, 0.7))) for _ in range(24)]
    buckets = sorted(lengths)
    for column, (title, order) in enumerate({"batched(6)": lengths, "bucketed(len, ...)": buckets}.items()):
        left = column * (WIDTH // 2 + 10)
        rows = [order[start : start + 6] for start in range(0, len(order), 6)]
        padded = sum(max(row) * len(row) for row in rows)
        share = round(100 * (1 - sum(order) / padded))
        picture.say(left, 16, f"{title}: {share} % padding", bold=True)
        for number, row in enumerate(rows):
            for place, length in enumerate(row):
                y = 30 + number * 78 + place * 11
                picture.chip(left, y, number, width=length, height=8)
                if (rest := max(row) - length) > 0:
                    picture.parts.append(
                        f'<rect x="{left + length}" y="{y}" width="{rest}" height="8" '
                        f'fill="{picture.theme.peers}" opacity="0.45"/>'
                    )
    return svg(picture.parts, 340)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the pictures go")
    folder = parser.parse_args().folder
    for name in THEMES:
        (folder / f"even-{name}.svg").write_text(even(name))
        (folder / f"padding-{name}.svg").write_text(padding(name))


if __name__ == "__main__":
    main()
