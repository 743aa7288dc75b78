"""Makes the documentation's screenshots: a contact sheet, a notebook, a feed in a terminal and its page.

    pip install nbconvert
    python tools/screenshots.py docs/images
    python tools/screenshots.py docs/images --only notebook

Writes ``contact-sheet.png``, ``notebook-light.png``, ``monitor-light.svg``, ``feed-page-light.png`` and the
dark counterparts of the last three. Needs Chromium.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter
from nbconvert.preprocessors import ExecutePreprocessor
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

import mpwds
from mpwds.cli.demo.training import ensure_digits

PIPELINE = """
import mpwds

dataset = (
    mpwds.WebDataset("digits-train-{000..011}.tar", shardshuffle=True)
    .shuffle(500)
    .decode("rgb8")
    .to_tuple("png", "cls")
    .batched(64)
)
"""
MPWDS = [sys.executable, "-m", "mpwds"]
URL = "tcp://127.0.0.1:7880"
CELLS = [
    """import mpwds

digits = mpwds.IndexedDataset("digits-train-{000..011}.tar")
digits""",
    """dataset = (
    mpwds.WebDataset("digits-train-{000..011}.tar", shardshuffle=True)
    .shuffle(500)
    .decode("rgb8")
    .to_tuple("png", "cls")
    .batched(64)
)
loader = mpwds.MultiLoader(dataset, workers=2)
for images, labels in loader:
    pass
loader.stats()""",
]


def contact_sheet(folder: Path, target: Path) -> None:
    shards = "digits-train-{000..011}.tar"
    save = ["--save", str(target / "contact-sheet.png"), "--limit", "60"]
    subprocess.run([*MPWDS, "show", shards, *save], cwd=folder, check=True)


def notebook(folder: Path, target: Path) -> None:
    """Runs two cells, and takes pictures of the notebook."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    ExecutePreprocessor().preprocess(book, {"metadata": {"path": str(folder)}})
    with open_browser(width=900, height=600) as tab:
        for theme in THEMES:
            page, _ = HTMLExporter(theme=theme).from_notebook_node(book)
            (folder / "notebook.html").write_text(page)
            tab.emulate_media(color_scheme=theme)
            tab.goto(f"file://{folder}/notebook.html", wait_until="domcontentloaded")
            tab.screenshot(path=target / f"notebook-{theme}.png", full_page=True)


def monitor(folder: Path, target: Path) -> None:
    """Prints one reading of a feed, as a terminal shows it."""
    with feed(folder):
        words = [*MPWDS, "monitor", URL, "--once", "--interval", "10"]
        terminal = {**os.environ, "COLUMNS": "110", "FORCE_COLOR": "1", "TERM": "xterm-256color"}
        printed = subprocess.run(
            words, env=terminal, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.rstrip()
    for name, theme in TERMINALS.items():
        console = Console(record=True, width=110, file=io.StringIO())
        console.print(Text.from_ansi(printed))
        drawn = console.export_svg(title=f"mpwds monitor {URL}", theme=theme)
        drawn = drawn.replace("rgba(255,255,255,0.35)", "#8c959f")  # the frame, also on a white page
        # A picture in a page loads no fonts.
        drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
        (target / f"monitor-{name}.svg").write_text(drawn)


def feed_page(folder: Path, target: Path) -> None:
    show = [*MPWDS, "show", URL, "--web"]
    with feed(folder), subprocess.Popen(show, cwd=folder, stdout=subprocess.PIPE, text=True) as page:
        assert page.stdout is not None
        try:
            line = next(line for line in page.stdout if "http://" in line)
            with open_browser(width=1100, height=760) as tab:
                tab.goto(next(word for word in line.split() if word.startswith("http://")))
                tab.wait_for_selector("#samples figure")
                tab.wait_for_selector("#stages .stage")
                tab.wait_for_timeout(12_000)  # for figures of ten readings
                for theme in THEMES:
                    tab.emulate_media(color_scheme=theme)
                    tab.screenshot(path=target / f"feed-page-{theme}.png")
        finally:
            page.terminate()


@contextlib.contextmanager
def feed(folder: Path) -> Iterator[None]:
    """Serves the digits, and trains from them."""
    (folder / "pipeline.py").write_text(PIPELINE)
    serve = [*MPWDS, "serve", "pipeline.py:dataset", "--bind", URL, "--workers", "2"]
    ended = threading.Event()
    with subprocess.Popen(serve, cwd=folder, stdout=subprocess.PIPE) as server:
        try:
            with mpwds.RemoteLoader(URL) as loader:
                trainer = threading.Thread(target=train, args=(loader, ended))
                trainer.start()
                try:
                    yield
                finally:
                    ended.set()
                    trainer.join()
        finally:
            server.terminate()


def train(loader: mpwds.RemoteLoader, ended: threading.Event) -> None:
    while not ended.is_set():
        for _ in loader:
            if ended.wait(0.05):
                break


@contextlib.contextmanager
def open_browser(width: int, height: int) -> Iterator[Any]:
    """A tab of Chromium."""
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        yield browser.new_context(viewport={"width": width, "height": height}).new_page()
        browser.close()


THEMES = "light", "dark"
# Background, text, and the eight colours of a terminal: those of tools/pictures.py.
TERMINALS = {
    "light": TerminalTheme(
        (255, 255, 255),
        (31, 35, 40),
        [
            *((31, 35, 40), (207, 34, 46), (26, 127, 55), (154, 103, 0)),
            *((9, 105, 218), (130, 80, 223), (14, 124, 134), (89, 99, 110)),
        ],
    ),
    "dark": TerminalTheme(
        (13, 17, 23),
        (240, 246, 252),
        [
            *((72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34)),
            *((68, 147, 248), (163, 113, 247), (57, 197, 207), (145, 152, 161)),
        ],
    ),
}

SCREENSHOTS = {
    "contact-sheet": contact_sheet,
    "notebook": notebook,
    "monitor": monitor,
    "feed-page": feed_page,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--only", nargs="+", choices=SCREENSHOTS, default=list(SCREENSHOTS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        ensure_digits(Path(name))
        for screenshot in options.only:
            SCREENSHOTS[screenshot](Path(name), options.folder.absolute())


if __name__ == "__main__":
    main()
