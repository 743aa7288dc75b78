"""Makes the documentation's screenshots: a contact sheet of shards, and the page of a feed in a browser.

    python tools/screenshots.py docs/images

Writes ``contact-sheet.png``, ``feed-page-light.png`` and ``feed-page-dark.png``. Needs Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from playwright.sync_api import sync_playwright

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


def contact_sheet(folder: Path, target: Path) -> None:
    shards = "digits-train-{000..011}.tar"
    subprocess.run([*MPWDS, "show", shards, "--save", str(target), "--limit", "60"], cwd=folder, check=True)


def feed_page(folder: Path, target: Path) -> None:
    """Serves the digits, trains from them, and takes pictures of the page, light and dark."""
    (folder / "pipeline.py").write_text(PIPELINE)
    url = "tcp://127.0.0.1:7880"
    serve = [*MPWDS, "serve", "pipeline.py:dataset", "--bind", url, "--workers", "2"]
    show = [*MPWDS, "show", url, "--web"]
    ended = threading.Event()
    with (
        subprocess.Popen(serve, cwd=folder, stdout=subprocess.PIPE) as server,
        subprocess.Popen(show, cwd=folder, stdout=subprocess.PIPE, text=True) as page,
        mpwds.RemoteLoader(url) as loader,
    ):
        trainer = threading.Thread(target=train, args=(loader, ended))
        trainer.start()
        try:
            assert page.stdout is not None
            take_pictures(next(line for line in page.stdout if "http://" in line), target)
        finally:
            ended.set()
            trainer.join()
            page.terminate()
            server.terminate()


def train(loader: mpwds.RemoteLoader, ended: threading.Event) -> None:
    while not ended.is_set():
        for _ in loader:
            if ended.wait(0.05):
                break


def take_pictures(line: str, target: Path) -> None:
    link = next(word for word in line.split() if word.startswith("http://"))
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        tab = browser.new_context(viewport={"width": 1100, "height": 760}).new_page()
        tab.goto(link)
        tab.wait_for_selector("#samples figure")
        tab.wait_for_selector("#stages .stage")
        tab.wait_for_timeout(12_000)  # for figures of ten readings
        for scheme in "light", "dark":
            tab.emulate_media(color_scheme=scheme)
            tab.screenshot(path=target / f"feed-page-{scheme}.png")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the pictures go")
    target = parser.parse_args().folder.absolute()
    with tempfile.TemporaryDirectory() as name:
        ensure_digits(Path(name))
        contact_sheet(Path(name), target / "contact-sheet.png")
        feed_page(Path(name), target)


if __name__ == "__main__":
    main()
