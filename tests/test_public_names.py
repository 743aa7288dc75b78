import ast
import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import mpwds


def imported_by(code):
    report = f"{code}; import sys; print(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-c", report], capture_output=True, check=True, text=True
        ).stdout.split()
    )


def test_import_is_cheap():
    assert imported_by("import mpwds").isdisjoint({"torch", "numpy", "zmq", "PIL"})


def test_a_dataset_does_not_import_torch():
    assert "torch" not in imported_by(
        "import mpwds; list(mpwds.DataPipeline(range(3)).shuffle(3).map(abs).batched(2))"
    )


@pytest.mark.parametrize("name", mpwds.__all__)
def test_every_public_name_is_there(name):
    assert getattr(mpwds, name) is not None
    assert name in dir(mpwds)


def test_the_version_is_the_installed_packages():
    assert mpwds.__version__ == importlib.metadata.version("mpwds")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'mpwds' has no attribute 'EndlessDataset'"):
        mpwds.EndlessDataset  # looking the name up is what is tested


def test_type_checkers_are_told_the_same_names():
    stub = ast.parse(Path(mpwds.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    assert {"__version__", *(alias.asname for node in imports for alias in node.names)} == set(mpwds.__all__)
    for node in imports:
        for alias in node.names:
            if node.module != "mpwds":
                home = importlib.import_module(node.module)
                found = getattr(mpwds, alias.name)
                if isinstance(found, ModuleType):  # `gopen`, once the module of that name was imported
                    found = getattr(found, alias.name)
                assert getattr(home, alias.name) is found
