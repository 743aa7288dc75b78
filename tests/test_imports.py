"""after_import: something done when a module is imported, not before, and only once."""

import importlib
import importlib.resources
import importlib.util
import subprocess
import sys

import pytest

from mpwds.imports import after_import


@pytest.fixture
def make_module(tmp_path, monkeypatch):
    """Writes a package that can be imported until the test ends."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def make(name, text=""):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
        (tmp_path / name / "data.txt").write_text("content")
        made.append(name)

    yield make
    for name in made:
        sys.modules.pop(name, None)


def test_acts_when_the_module_is_imported_and_leaves_it_as_it_is(make_module):
    make_module("watched_module", "value = 1\nloader_inside = type(__loader__).__name__")
    seen = []
    finders = list(sys.meta_path)
    after_import("watched_module", lambda module: seen.append(module.value))
    assert (seen, "watched_module" in sys.modules) == ([], False)
    module = importlib.import_module("watched_module")
    assert seen == [1]
    assert sys.meta_path == finders
    assert module.loader_inside == type(module.__spec__.loader).__name__ == "SourceFileLoader"
    assert importlib.resources.files(module).joinpath("data.txt").read_text() == "content"


def test_looking_for_the_module_without_importing_it_changes_nothing(make_module):
    make_module("watched_and_found")
    seen = []
    after_import("watched_and_found", lambda module: seen.append(module.__name__))
    assert importlib.util.find_spec("watched_and_found") is not None
    assert seen == []
    importlib.import_module("watched_and_found")
    assert seen == ["watched_and_found"]


def test_acts_at_once_on_a_module_that_is_there():
    seen = []
    after_import("subprocess", seen.append)
    assert seen == [subprocess]


def test_a_later_action_replaces_one_that_waits(make_module):
    make_module("watched_twice")
    seen = []
    after_import("watched_twice", lambda module: seen.append("first"))
    after_import("watched_twice", lambda module: seen.append("second"))
    importlib.import_module("watched_twice")
    assert seen == ["second"]


def test_a_module_that_does_not_exist_stays_an_import_error():
    after_import("no_such_module_at_all", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module_at_all'"):
        importlib.import_module("no_such_module_at_all")
