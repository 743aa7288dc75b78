"""Draws the pictures of the guides: epochs of equal length, and padding with and without buckets.

    python tools/draw_guides.py docs/images

Writes ``even-light.svg``, ``padding-light.svg``, ``bounds-light.svg`` and their dark counterparts.
"""

from __future__ import annotations

import random

from pictures import WIDTH, Picture, svg, write_pictures

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


CASES = {
    "A stage is the bound: the trainer waits": ([(1, 5), (1, 5)], 1),
    "Storage is the bound: the workers wait for bytes": ([(5, 1), (5, 1)], 1),
    "The training step is the bound: the workers wait": ([(0.5, 1.5), (0.5, 1.5)], 3),
    "One worker is slow: the others wait for its turn": ([(0.5, 1), (0.5, 7)], 1),
}
"""By title: the time that each worker reads and computes for a batch, and the time of a training step."""

LASTS = 26


def bounds(name: str) -> str:
    picture = Picture(name)
    for number, (title, (workers, step)) in enumerate(CASES.items()):
        left, top = number % 2 * (WIDTH // 2 + 10), number // 2 * 132
        picture.say(left, top + 16, title, bold=True)
        for row, spans in enumerate(timelines(workers, step)):
            y = top + 30 + row * 28
            picture.say(left, y + 14, f"worker {row}" if row < len(workers) else "trainer", faint=True)
            for start, end, colour in spans:
                if start < LASTS:
                    x, width = left + 62 + round(start * 11), round((min(end, LASTS) - start) * 11) - 1
                    picture.chip(x, y, colour, width=max(1, width), height=18)
    for place, (colour, words) in enumerate(((2, "reads"), (1, "computes"), (0, "trains"))):
        picture.chip(place * 110, 278, colour, width=18, height=14)
        picture.say(place * 110 + 24, 290, words, faint=True)
    picture.say(330, 290, "gaps: waits", faint=True)
    return svg(picture.parts, 300)


def timelines(workers: list[tuple[float, float]], step: float) -> list[list[tuple[float, float, int]]]:
    """Spans of each worker and of the trainer, who takes batches in turn. A worker has one batch ahead."""
    spans: list[list[tuple[float, float, int]]] = [[] for _ in (*workers, "trainer")]
    free, trained = [0.0] * len(workers), 0.0  # when a worker may begin a batch, and the trainer a step
    ready: list[list[float]] = [[] for _ in workers]

    def make(worker: int) -> None:
        read, computed = workers[worker]
        start = free[worker]
        spans[worker] += [(start, start + read, 2), (start + read, start + read + computed, 1)]
        ready[worker].append(start + read + computed)
        free[worker] = start + read + computed

    for worker in range(len(workers)):
        make(worker)
    for batch in range(60):
        worker = batch % len(workers)
        taken = max(trained, ready[worker][batch // len(workers)])
        free[worker] = max(free[worker], taken)
        make(worker)
        spans[-1].append((taken, taken + step, 0))
        trained = taken + step
    return spans


if __name__ == "__main__":
    write_pictures(__doc__, {"even": even, "padding": padding, "bounds": bounds})
