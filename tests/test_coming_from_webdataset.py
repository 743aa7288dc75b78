"""The page for newcomers from webdataset names every public name, and what it says of each is true."""

import importlib
import pkgutil
import re
import types
from pathlib import Path

import pytest
import webdataset

import mpwds

PAGE = Path(__file__).parents[1] / "docs/coming-from/webdataset.md"
ANSWERS = ("same", "better", "not there")


def tables():
    """For each table, by its heading: (names, answer, how) of its rows."""
    found, rows = {}, []
    for line in PAGE.read_text().splitlines():
        if line.startswith("### "):
            rows = found[line[4:]] = []
        elif line.startswith("| `"):
            names, answer, how = [cell.strip() for cell in line.strip("|").split(" |")]
            rows.append((re.findall(r"`(\w+)`", names), answer, how))
    return found


TABLES = tables()
ROWS = [(table, *row) for table, rows in TABLES.items() for row in rows]


def named(table):
    return {name for names, _, _ in TABLES.get(table, []) for name in names}


def public_names(module):
    """The names that a module makes; of the package itself, those of its submodules that it hands out."""
    for name, value in vars(module).items():
        home = getattr(value, "__module__", None)
        foreign = isinstance(home, str) and home != module.__name__
        if module is webdataset:
            foreign = isinstance(home, str) and not home.startswith("webdataset")
        if not foreign and not name.startswith("_") and not isinstance(value, types.ModuleType):
            yield name


def submodules():
    names = {module.name for module in pkgutil.iter_modules(webdataset.__path__)} - {"gopen"}
    modules = {name: importlib.import_module(f"webdataset.{name}") for name in names}
    return {**modules, "gopen": importlib.import_module("webdataset.gopen")}


def places(table, name):
    """Where a name of a table may be found; the place that is most like webdataset's comes last."""
    if table == "Methods of datasets":
        return [mpwds.WebDataset]
    module = table.rpartition("webdataset.")[2].rpartition("mpwds.")[2]
    found = [mpwds]
    if importlib.util.find_spec(f"mpwds.{module}") is not None:
        found.append(importlib.import_module(f"mpwds.{module}"))
    return found


def test_every_public_name_of_webdataset_is_on_the_page():
    assert set(public_names(webdataset)) - named("webdataset") == set()


@pytest.mark.parametrize("module", sorted(submodules()))
def test_every_public_name_of_a_submodule_is_on_the_page(module):
    headings = [heading for heading in TABLES if f"webdataset.{module}" in heading.split(", ")]
    known = named("webdataset").union(*map(named, headings))
    assert set(public_names(submodules()[module])) - known == set()


def test_every_method_of_webdatasets_datasets_is_on_the_page():
    methods = {name for name in dir(webdataset.WebDataset) if callable(getattr(webdataset.WebDataset, name))}
    inherited = set(dir(webdataset.pytorch.IterableDataset))
    assert {name for name in methods - inherited if name[0] != "_"} - named("Methods of datasets") == set()


def test_no_name_is_made_up():
    def exists(table, name):
        if table == "webdataset":
            return hasattr(webdataset, name)
        if table == "Methods of datasets":
            return hasattr(webdataset.WebDataset, name)
        modules = [part.removeprefix("webdataset.") for part in table.split(", ")]
        return any(hasattr(submodules()[module], name) for module in modules)

    tables = [table for table in TABLES if table.startswith(("webdataset", "Methods"))]
    made_up = [(table, name) for table in tables for name in named(table) if not exists(table, name)]
    assert made_up == []


def test_what_is_there_is_there():
    there = [(table, name) for table, names, answer, _ in ROWS if answer != "not there" for name in names]
    assert [row for row in there if not any(hasattr(place, row[1]) for place in places(*row))] == []
    assert len(there) > 200


def test_what_is_not_there_is_not_there():
    missing = [(table, name) for table, names, answer, _ in ROWS if answer == "not there" for name in names]
    assert [row for row in missing if hasattr(places(*row)[-1], row[1])] == []


def test_every_row_has_an_answer_and_says_why_it_is_not_the_same():
    for row in ROWS:
        _, names, answer, how = row
        assert names, row
        assert answer in ANSWERS, row
        assert how or answer == "same", row


FACES = ["autodecode", "cache", "filters", "gopen", "handlers", "mix", "shardlists", "tariterators", "utils"]


@pytest.mark.parametrize("module", [*FACES, "writer"])
def test_a_name_of_a_submodule_is_found_under_that_submodule_too(module):
    answers = {name: answer for _, names, answer, _ in ROWS for name in names}
    theirs = {name for name in public_names(submodules()[module]) if answers[name] != "not there"}
    ours = importlib.import_module(f"mpwds.{module}")
    assert {name for name in theirs if not hasattr(ours, name)} == set()


def test_every_option_without_effect_is_listed():
    sources = [path.read_text() for path in Path(mpwds.__file__).parent.rglob("*.py")]
    options = {name for source in sources for name in re.findall(r"(\w+): Without effect\.", source)}
    section = PAGE.read_text().partition("### Without effect")[2].partition("\n## ")[0]
    assert options >= {"detshuffle", "verbose", "handler"}
    assert {name for name in options if f"{name}=" not in section} == set()
