"""Draws the streams of docs/guides/training/elastic.md on their ranks and workers, before and after a change.

    python tools/draw_streams.py docs/images

Writes ``streams-light.svg`` and ``streams-dark.svg``. The example has 6 streams, first on 3 ranks, then on 2.
"""

from __future__ import annotations

from pictures import CHIP, GAP, PAD, WIDTH, Picture, svg, text, write_pictures

STREAMS, SHARDS, SAVED_AFTER, BATCHES = 6, 18, 12, 18
BEFORE, AFTER = [1, 1, 1], [1, 3]
"""Workers of each rank."""


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


if __name__ == "__main__":
    write_pictures(__doc__, {"streams": draw})
