"""The site that `make test-docs` builds: its links lead somewhere, and its search finds what people type."""

import functools
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from sphinx.search.en import SearchEnglish

from mpwds.names import HOMES, find

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/docs"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
MADE_BY_SPHINX = {"genindex.html", "search.html", "py-modindex.html"}

SEARCHES = {
    "batch": "how-it-works/batch",
    "bucket": "guides/data/text",
    "cache": "guides/data/caches",
    "checkpoint": "guides/training/checkpoints",
    "collate": "coming-from/dataloader",
    "credentials": "guides/data/cloud-storage",
    "crop": "guides/data/images",
    "DataLoader": "coming-from/dataloader",
    "distributed": "guides/training/distributed",
    "epoch": "faq",
    "install": "start/install",
    "Jupyter notebook": "guides/training/notebooks",
    "GPU": "guides/training/gpus",
    "Lightning": "guides/training/trainers",
    "padding": "guides/data/text",
    "pickle": "guides/servers/security",
    "pin_memory": "guides/training/gpus",
    "resume": "guides/training/checkpoints",
    "s3": "guides/data/cloud-storage",
    "shuffle": "guides/data/indexed-access",
    "slow": "faq",
    "tfrecord": "coming-from/tf-data",
    "video": "guides/data/audio-and-video",
    "webdataset": "coming-from/webdataset",
    "worker died": "reference/errors",
}


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


class Page(HTMLParser):
    """The links of a page, and the anchors in it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found.get("id"), found.get("name")}
        self.links += [link for name in ("href", "src") if (link := found.get(name)) is not None]


@functools.cache
def page(name):
    return Page(SITE / name)


@functools.cache
def search_index():
    text = (SITE / "searchindex.js").read_text()
    return json.loads(re.fullmatch(r"Search\.setIndex\((.*)\)", text, re.DOTALL)[1])


def found_by(word):
    """The pages that the site's search finds for one word."""
    index = search_index()
    found = set()
    for table in index["terms"], index["titleterms"]:
        numbers = table.get(SearchEnglish({}).stem(word.lower()), [])
        found |= {index["docnames"][n] for n in ([numbers] if isinstance(numbers, int) else numbers)}
    return found


def test_every_page_of_the_documentation_is_in_the_site():
    sources = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in ROOT.glob("docs/**/*.md")}
    assert {*PAGES} - MADE_BY_SPHINX == {path.as_posix() for path in sources}


@pytest.mark.parametrize("name", PAGES)
def test_the_links_of_a_page_lead_somewhere(name):
    for link in page(name).links:
        target = urlsplit(link)
        if target.scheme or target.netloc:
            continue
        path = (SITE / name).parent.joinpath(unquote(target.path)).resolve() if target.path else SITE / name
        assert path.is_file(), link
        if path.suffix == ".html":
            anchors = page(path.relative_to(SITE).as_posix()).anchors
            assert unquote(target.fragment) in anchors, link


def test_the_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("program", sorted(ROOT.glob("tools/draw_*.py")), ids=lambda path: path.stem)
def test_pictures_are_as_their_program_draws_them(program, tmp_path):
    subprocess.run([sys.executable, program, tmp_path], check=True)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert len(drawn) > 1
    assert {name: (ROOT / "docs/images" / name).read_text() for name in drawn} == drawn


@pytest.mark.parametrize("source", sorted((ROOT / "docs/proof").glob("*.md")), ids=lambda path: path.stem)
def test_the_tests_that_prove_something_exist(source):
    folder = ROOT
    for name in re.findall(r"`((?:tests/|tools/|test_)[\w/.]+)", source.read_text()):
        path = folder / name if name.startswith("test_") else ROOT / name
        assert path.exists(), name
        folder = path.parent


def test_every_feature_has_a_test_or_a_program():
    table = (
        (ROOT / "docs/proof/features.md")
        .read_text()
        .partition("## What mpwds has\n")[2]
        .partition("\n## ")[0]
    )
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 15
    for feature, here, _ in rows:
        shown = re.findall(r"\]\(\.\./\.\./((?:tests|tools)/[\w/.]+)\)", here)
        assert shown, feature
        assert [path for path in shown if not (ROOT / path).is_file()] == [], feature


@pytest.mark.parametrize(("words", "expected"), SEARCHES.items())
def test_the_search_finds(words, expected):
    assert expected in set.intersection(*map(found_by, re.findall(r"\w+", words)))


def test_a_default_is_shown_as_its_value():
    text = re.sub("<[^>]*>", "", (SITE / "reference/api/loaders.html").read_text())
    assert "heartbeat_timeout=10.0," in text


@pytest.mark.parametrize("name", sorted(HOMES))
def test_each_public_class_and_function_is_in_the_reference(name):
    if not callable(find(name)):
        pytest.skip("a constant")
    pages = [page(each) for each in PAGES if each.startswith("reference/api/")]
    assert any(f"mpwds.{name}" in each.anchors for each in pages)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if BROWSER is None:
        pytest.skip("there is no browser here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_each_page_fits_a_screen_and_shows_its_pictures(browser, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    for name in PAGES:
        tab.goto((SITE / name).as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, name
        shown = "[...document.images].filter(each => each.checkVisibility()).map(each => each.naturalWidth)"
        assert 0 not in tab.evaluate(shown), name
    context.close()


def test_a_reader_finds_a_page_by_typing(browser):
    tab = browser.new_page()
    tab.goto((SITE / "index.html").as_uri())
    tab.fill("input[name=q]", "resume")
    tab.press("input[name=q]", "Enter")
    tab.wait_for_selector("#search-results li a", timeout=120_000)
    found = tab.locator("#search-results li a").all_inner_texts()
    assert "Checkpoints and exact resume" in found
