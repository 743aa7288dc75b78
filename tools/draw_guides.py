"""Draws the pictures of the guides: who reads which shards, epochs of equal length, padding, and what waits.

    python tools/draw_guides.py docs/images

Writes ``shares-light.svg``, ``even-light.svg``, ``padding-light.svg``, ``bounds-light.svg``,
``verdicts-light.svg`` and their dark counterparts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from pictures import GAP, PAD, WIDTH, Picture, svg, text, write_pictures

SHARDS, RANKS, WORKERS = 12, 2, 2
BATCHES = [6, 4, 5]
"""Batches that each rank has."""


def shares(name: str) -> str:
    """The shards of an epoch, and which worker of which rank reads each."""
    picture = Picture(name)
    order = random.Random(5).sample(range(SHARDS), SHARDS)
    step = (WIDTH + 6) // SHARDS
    picture.say(0, 16, "The shards, in the epoch's order, are dealt to the ranks in turn", bold=True)
    for place, shard in enumerate(order):
        rank, worker = place % RANKS, place // RANKS % WORKERS
        left = place * step
        picture.chip(left, 28, RANKS * rank + worker, str(shard), width=step - 6)
        label = f"rank {rank}"
        picture.parts.append(
            text(left + step // 2 - 3, 70, label, picture.theme.faint, anchor="middle", size=12)
        )
    picture.say(0, 104, "Each rank deals its shards to its workers in turn", bold=True)
    panel = WIDTH // RANKS + 8
    for rank in range(RANKS):
        left = rank * panel
        picture.frame(left + 1, 116, WIDTH - panel - 2, 96)
        picture.say(left + PAD, 169, f"rank {rank}")
        for worker in range(WORKERS):
            y = 124 + worker * 44
            picture.frame(left + 64, y, 288, 36, dashed=True)
            picture.say(left + 64 + PAD, y + 23, f"worker {worker} reads", faint=True)
            for number, shard in enumerate(order[rank::RANKS][worker::WORKERS]):
                x = left + 178 + number * (44 + GAP)
                picture.chip(x, y + 5, RANKS * rank + worker, str(shard), width=44)
    return svg(picture.parts, 220)


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


TRAINS, COMPUTES, READS, COPIES, SENDS, AFTER, QUEUES = range(7)
"""What a span of a timeline is, by its colour; that of ``QUEUES`` is grey."""
Work = list[tuple[float, int]]
"""What is done for a batch: how long each part takes, and what it is."""


@dataclass(frozen=True)
class Case:
    """Timelines of workers and a trainer.

    ``workers`` has what each worker does for its first batch, its second and so on, over and over. ``step``
    is what the trainer does with a batch. From ``lost[0]`` to ``lost[1]`` the second half of the workers,
    which is on the second of two servers, does not answer.
    """

    title: str
    workers: list[list[Work]]
    step: Work
    lost: tuple[float, float] | None = None


def alike(workers: int, work: Work) -> list[list[Work]]:
    return [[work]] * workers


def unequal(times: list[float]) -> list[Work]:
    return [[(time / 4, READS), (time * 3 / 4, COMPUTES)] for time in times]


BOUNDS = [
    Case("A stage is the bound: the trainer waits", alike(2, [(1, READS), (5, COMPUTES)]), [(1, TRAINS)]),
    Case(
        "Storage is the bound: the workers wait for bytes",
        alike(2, [(5, READS), (1, COMPUTES)]),
        [(1, TRAINS)],
    ),
    Case(
        "The training step is the bound: the workers wait",
        alike(2, [(0.5, READS), (1.5, COMPUTES)]),
        [(3, TRAINS)],
    ),
    Case(
        "One worker is slow: the others wait for its turn",
        [[[(0.5, READS), (1, COMPUTES)]], [[(0.5, READS), (7, COMPUTES)]]],
        [(1, TRAINS)],
    ),
]
SLICES: Work = [(1, COMPUTES), (1, QUEUES)]
VERDICTS = [
    Case(
        "Small batches: sending takes longer than making",
        alike(2, [(0.3, READS), (0.3, COMPUTES), (1.4, SENDS)]),
        [(0.5, TRAINS)],
    ),
    Case(
        "Batches take unequal time: the workers wait",
        [unequal([1, 1, 1, 1, 1, 8]), unequal([1, 8, 1, 1, 1, 1])],
        [(0.7, TRAINS)],
    ),
    Case(
        "Stages after the loader are the bound",
        alike(2, [(0.5, READS), (1, COMPUTES)]),
        [(2.5, AFTER), (1, TRAINS)],
    ),
    Case(
        "Receiving is the bound: kept batches are copied",
        alike(2, [(0.5, READS), (1, COMPUTES)]),
        [(1.8, COPIES), (1.5, TRAINS)],
    ),
    Case(
        "More workers than processors: they queue",
        [*alike(2, SLICES * 3), *alike(2, SLICES[::-1] * 3)],
        [(0.6, TRAINS)],
    ),
    Case(
        "A server does not answer: the trainer waits",
        alike(4, [(0.7, READS), (2.3, COMPUTES)]),
        [(0.75, TRAINS)],
        lost=(8, 16),
    ),
]
PREFETCH = 2
"""Batches that a worker has ready at most."""
LASTS = 26


def bounds(name: str) -> str:
    picture = Picture(name)
    bottom = cases(picture, BOUNDS)
    key(picture, bottom, {"reads": READS, "computes": COMPUTES, "trains": TRAINS})
    return svg(picture.parts, bottom + 30)


def verdicts(name: str) -> str:
    picture = Picture(name)
    bottom = cases(picture, VERDICTS)
    words = {"reads": READS, "computes": COMPUTES, "sends": SENDS, "queues": QUEUES}
    key(picture, bottom, {**words, "copies": COPIES, "stages": AFTER, "trains": TRAINS})
    return svg(picture.parts, bottom + 30)


def cases(picture: Picture, shown: list[Case]) -> int:
    """Draws cases, two in a row. Returns where they end."""
    top = 0
    for first in range(0, len(shown), 2):
        for column, case in enumerate(shown[first : first + 2]):
            draw_case(picture, case, column * (WIDTH // 2 + 10), top)
        top += 48 + 28 * (len(shown[first].workers) + 1)
    return top


def draw_case(picture: Picture, case: Case, left: int, top: int) -> None:
    picture.say(left, top + 16, case.title, bold=True)
    workers = len(case.workers)
    for row, spans in enumerate(timelines(case)):
        y = top + 30 + row * 28
        name = f"cpu{1 + row * 2 // workers}" if case.lost else f"worker {row}"
        picture.say(left, y + 14, name if row < workers else "trainer", faint=True)
        for start, end, what in spans:
            if start < LASTS:
                x, width = left + 62 + round(start * 11), round((min(end, LASTS) - start) * 11) - 1
                span(picture, x, y, max(1, width), 18, what)
        if case.lost and workers // 2 <= row < workers:
            x, width = (left + 62 + round(case.lost[0] * 11), round((case.lost[1] - case.lost[0]) * 11) - 2)
            picture.frame(x, y, width, 18, dashed=True)
            picture.say(x + 14, y + 13, "no answer", faint=True)


def span(picture: Picture, x: int, y: int, width: int, height: int, what: int) -> None:
    if what != QUEUES:
        picture.chip(x, y, what, width=width, height=height)
        return
    colour = picture.theme.peers
    picture.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{colour}"/>')


def key(picture: Picture, top: int, words: dict[str, int]) -> None:
    for place, (word, what) in enumerate(words.items()):
        span(picture, place * 96, top + 6, 18, 14, what)
        picture.say(place * 96 + 24, top + 18, word, faint=True)
    picture.say(len(words) * 96, top + 18, "gaps: waits", faint=True)


def timelines(case: Case) -> list[list[tuple[float, float, int]]]:
    """Spans of each worker and of the trainer, who takes batches in turn."""
    workers = len(case.workers)
    spans: list[list[tuple[float, float, int]]] = [[] for _ in range(workers + 1)]
    ready: list[list[float]] = [[] for _ in range(workers)]
    taken: list[list[float]] = [[] for _ in range(workers)]
    trained = 0.0

    def make(worker: int) -> None:
        """Makes the worker's next batch, as soon as it has made the last one and room is for this one."""
        number = len(ready[worker])
        start = max(
            ready[worker][-1:] + taken[worker][number - PREFETCH : number - PREFETCH + 1], default=0.0
        )
        works = case.workers[worker]
        work = works[number % len(works)]
        end = start + sum(lasts for lasts, _ in work)
        lost, back = case.lost if case.lost and worker >= workers // 2 else (0.0, 0.0)
        if start < back and end > lost:
            add(spans[worker], start, work, until=lost)
            start = back
        ready[worker].append(add(spans[worker], start, work))

    for batch in range(60):
        worker = batch % workers
        while len(ready[worker]) < len(taken[worker]) + PREFETCH:
            make(worker)
        begins = max(trained, ready[worker][len(taken[worker])])
        taken[worker].append(begins)
        trained = add(spans[-1], begins, case.step)
    return spans


def add(
    spans: list[tuple[float, float, int]], start: float, work: Work, until: float = float("inf")
) -> float:
    """Adds the spans of a batch that begins at ``start``, as far as ``until``. Returns when it is done."""
    for lasts, what in work:
        if start < until:
            spans.append((start, min(start + lasts, until), what))
        start += lasts
    return start


if __name__ == "__main__":
    pictures = {"shares": shares, "even": even, "padding": padding, "bounds": bounds, "verdicts": verdicts}
    write_pictures(__doc__, pictures)
