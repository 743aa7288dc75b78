"""Draws the way of a batch from shards to the training loop, and where workers may run.

    python tools/draw_batch.py docs/images

Writes ``batch-light.svg``, ``topologies-light.svg`` and their dark counterparts.
"""

from __future__ import annotations

from pictures import WIDTH, Picture, svg, text, write_pictures

WORKERS, BLOCKS = 2, 3


def arrow(picture: Picture, x: int, y: int, to_x: int, to_y: int) -> None:
    """A line with a head that points to the right."""
    colour = picture.theme.faint
    picture.parts.append(
        f'<path d="M{x} {y}L{to_x - 6} {to_y}" stroke="{colour}" stroke-width="1.5" fill="none"/>'
        f'<path d="M{to_x} {to_y}l-8 -4v8z" fill="{colour}"/>'
    )


def box(picture: Picture, x: int, y: int, width: int, height: int, *lines: str) -> None:
    """A frame with a bold line, and faint ones below it."""
    picture.frame(x, y, width, height)
    for number, line in enumerate(lines):
        picture.say(x + 10, y + 20 + 17 * number, line, bold=not number, faint=bool(number))


def batch(name: str) -> str:
    picture = Picture(name)
    picture.say(0, 16, "Shards", bold=True)
    picture.say(128, 16, "Worker processes", bold=True)
    picture.say(372, 16, "Shared memory", bold=True)
    picture.say(590, 16, "Training process", bold=True)
    for worker in range(WORKERS):
        top = 30 + worker * 108
        for shard in range(3):
            picture.chip(0, top + 8 + shard * 26, worker, width=64, height=18)
        arrow(picture, 68, top + 42, 126, top + 42)
        box(picture, 128, top, 178, 88, f"worker {worker}", "read, shuffle, decode,", "augment, batched")
        arrow(picture, 308, top + 42, 370, top + 42)
        picture.frame(372, top, 150, 88, dashed=True)
        for block in range(BLOCKS):
            number = str(2 * block + worker) if block < 2 else ""
            picture.chip(382 + block * 46, top + 24, worker, number, width=38, height=40)
        arrow(picture, 524, top + 42, 588, 132 + 16 * (2 * worker - 1))
    lines = "for batch in loader:", "tensors are views", "of the blocks; worker", "0 and 1 take turns"
    box(picture, 590, 84, 168, 96, *lines)
    picture.say(128, 258, "One copy: decoded samples are written into the block of their batch.", faint=True)
    picture.say(128, 278, "A block is used again when no part of its batch is alive.", faint=True)
    return svg(picture.parts, 290)


def topologies(name: str) -> str:
    picture = Picture(name)
    column = (WIDTH - 32) // 3
    panels = {
        "One machine": ("MultiLoader(dataset, workers=4)", "workers of this process"),
        "Servers": ('RemoteLoader("tcp://cpu{1..2}:7880")', "workers of other machines"),
        "Both": ("MultiLoader(..., workers=4, remote=...)", "in one epoch, in one order"),
    }
    for number, (title, (call, meaning)) in enumerate(panels.items()):
        left = number * (column + 16)
        heading(picture, left, 0, title, call, meaning)
        local = number != 1
        remote = number != 0
        picture.frame(left + 1, 66, column - 2, 74)
        picture.say(left + 10, 86, "training machine", faint=True)
        picture.chip(left + 10, 98, 0, "loop", width=52, height=30)
        for worker in range(4 if local else 0):
            picture.chip(left + 76 + worker * 36, 98, 1, "w", width=30, height=30)
        for server in range(2 if remote else 0):
            machine(picture, left + server * (column // 2), 156, column // 2 - 7, f"cpu{server + 1}")
    group(picture, 0, 244, WIDTH // 2 - 8)
    cluster(picture, WIDTH // 2 + 8, 244, WIDTH // 2 - 8)
    return svg(picture.parts, 464)


def group(picture: Picture, left: int, top: int, width: int) -> None:
    """Trainers that get the same batches."""
    call = 'RemoteLoader("tcp://cpu{1..2}:7880", group="sweep")'
    heading(picture, left, top, "Groups", call, "each batch is made once, and all trainers get it")
    step = (width + 8) // 3
    loops(picture, left, top + 66, step, "trainer")
    for trainer in range(3):
        picture.chip(left + trainer * step + 70, top + 98, 2, "7", width=30, height=30)
    for server in range(2):
        machine(picture, left + server * step, top + 156, step - 10, f"cpu{server + 1}")


def cluster(picture: Picture, left: int, top: int, width: int) -> None:
    """Ranks, and servers that come and go."""
    call = 'RemoteLoader("dns+tcp://feeders:7880", streams=96)'
    heading(picture, left, top, "Clusters", call, "servers come and go; the order stays")
    loops(picture, left, top + 66, (width + 8) // 3, "rank")
    step = (width + 8) // 4
    for server, label in enumerate(("server", "server", "is new", "is lost")):
        lost = label == "is lost"
        machine(picture, left + server * step, top + 156, step - 10, label, 0 if lost else 2, dashed=lost)


def heading(picture: Picture, left: int, top: int, title: str, call: str, meaning: str) -> None:
    picture.say(left, top + 16, title, bold=True)
    picture.parts.append(text(left, top + 36, call, picture.theme.text, size=11))
    picture.say(left, top + 54, meaning, faint=True)


def loops(picture: Picture, left: int, top: int, step: int, label: str) -> None:
    """Three training processes."""
    for number in range(3):
        x = left + number * step
        picture.frame(x + 1, top, step - 10, 74)
        picture.say(x + 10, top + 20, f"{label} {number}", faint=True)
        picture.chip(x + 10, top + 32, 0, "loop", width=52, height=30)


def machine(
    picture: Picture, x: int, top: int, width: int, label: str, workers: int = 2, dashed: bool = False
) -> None:
    """A machine that makes batches."""
    picture.frame(x + 1, top, width, 62, dashed=dashed)
    picture.say(x + 10, top + 18, label, faint=True)
    for worker in range(workers):
        picture.chip(x + 10 + worker * 36, top + 26, 2, "w", width=30, height=28)


if __name__ == "__main__":
    write_pictures(__doc__, {"batch": batch, "topologies": topologies})
