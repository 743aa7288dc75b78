"""The page for newcomers from tensorcom names every public name, argument and URL, and says what is true."""

import importlib.metadata
import inspect
import re
import types
from pathlib import Path

import pytest
import tensorcom
import tensorcom.tenbin
import tensorcom.zcom

from mpwds import tensorcom as ours

PAGE = (Path(__file__).parents[1] / "docs/coming-from/tensorcom.md").read_text()


def rows(heading):
    """The rows of a table: (names, answer)."""
    section = re.split(r"\n##+ ", PAGE.partition(f"# {heading}\n")[2])[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            names, answer, _ = [cell.strip() for cell in line.strip("|").split(" |")]
            yield re.findall(r"`([\w-]+)", names), answer


def names(heading, answers=None):
    return {name for found, answer in rows(heading) for name in found if not answers or answer in answers}


def made_by(module):
    for name, value in vars(module).items():
        if not isinstance(value, types.ModuleType) and name[0] != "_":
            home = getattr(value, "__module__", module.__name__)
            if home == module.__name__:
                yield name


TABLES = {
    "tensorcom": (["Connection", "tenbin", "zcom", "TensorcomDataset"], ours),
    "tensorcom.zcom": (made_by(tensorcom.zcom), ours.zcom),
    "tensorcom.tenbin": (made_by(tensorcom.tenbin), ours.tenbin),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_name_is_on_the_page_and_there_if_it_says_so(table):
    theirs, module = TABLES[table]
    assert names(table) == set(theirs)
    assert {name for name in names(table, ["same", "better"]) if not hasattr(module, name)} == set()
    assert {name for name in names(table, ["not there"]) if hasattr(module, name)} == set()


def test_every_argument_and_method_of_a_connection_is_on_the_page_and_there():
    def signature(kind):
        return {*inspect.signature(kind).parameters, *filter(lambda name: name[0] != "_", dir(kind))}

    theirs = signature(tensorcom.Connection)
    assert names("Connection") == theirs <= signature(ours.Connection)


def test_arguments_have_their_order_and_defaults():
    theirs = inspect.signature(tensorcom.Connection).parameters.values()
    mine = [*inspect.signature(ours.Connection).parameters.values()]
    assert [(p.name, p.default) for p in mine[: len(theirs)]] == [(p.name, p.default) for p in theirs]
    assert {p.kind for p in mine[len(theirs) :]} == {inspect.Parameter.KEYWORD_ONLY}


def test_every_url_is_on_the_page():
    assert names("URLs") == set(ours.zcom.schemes)


def test_every_tool_is_on_the_page():
    files = importlib.metadata.files("tensorcom")
    tools = {path.name for path in files if path.parent.name == "bin"}
    assert names("Tools") == tools
