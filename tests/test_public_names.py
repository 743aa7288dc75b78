import importlib
import importlib.metadata
import importlib.util
import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

import mpwds
from mpwds import names


def imported_by(code):
    report = f"{code}; import sys; print(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-c", report], capture_output=True, check=True, text=True
        ).stdout.split()
    )


def test_import_is_cheap():
    imported = imported_by("import mpwds")
    assert imported.isdisjoint({"torch", "numpy", "zmq", "PIL"})
    assert [name for name in imported if name.startswith("mpwds.compat")] == []


def test_a_dataset_does_not_import_torch():
    assert "torch" not in imported_by(
        "import mpwds; list(mpwds.DataPipeline(range(3)).shuffle(3).map(abs).batched(2))"
    )


def test_every_public_name_is_there():
    public = {*names.HOMES, *mpwds.__all__}
    assert {name for name in public if getattr(mpwds, name, None) is None} == set()


def test_dir_shows_the_names_that_do_the_job():
    assert set(dir(mpwds)) == set(mpwds.__all__)
    assert set(dir(mpwds.filters)) == set(mpwds.filters.__all__) >= {"shuffle", "batched"}
    assert len(mpwds.__all__) < 40


@pytest.mark.parametrize("name", names.PEERS)
def test_a_module_of_a_peer_has_the_names_that_it_promises(name):
    module = importlib.import_module(f"mpwds.{name}")
    assert module is eval(f"mpwds.{name}")
    assert importlib.util.find_spec(f"mpwds.{name}").name == module.__name__ == f"mpwds.{name}"
    assert [each for each in names.homes_of(name) if not hasattr(module, each)] == []
    assert pickle.loads(cloudpickle.dumps(module)) is module


def test_the_first_loaders_messages_are_switched_on_in_its_module(monkeypatch, capsys):
    monkeypatch.setattr(mpwds.multi, "verbose", 1)
    mpwds.multi.D("said")
    assert capsys.readouterr().err == "said\n"


def test_a_module_of_webdatasets_is_imported_in_every_way():
    statements = (
        "import mpwds.filters; mpwds.filters.shuffle",
        "from mpwds.filters import shuffle",
        "from mpwds import filters; filters.shuffle",
        "import mpwds; mpwds.filters.shuffle, mpwds.nest, mpwds.tenbin, mpwds.cluster, mpwds.compat",
        "import mpwds.tensorcom.zcom; mpwds.tensorcom.zcom.Connection",
        "from mpwds.streaming.base.format.mds import MDSWriter",
        "import mpwds; mpwds.gopen('pipe:true').close(); import mpwds.gopen; mpwds.gopen.gopen_schemes",
        "import mpwds.gopen; mpwds.gopen('pipe:true').close()",
        "import pickle; pickle.loads(b'cmpwds.utils\\nidentity\\n.')(1)",
    )
    program = f"""if True:
        import os
        for statement in {statements}:
            if (child := os.fork()) == 0:  # has imported nothing of mpwds yet
                exec(statement)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, statement
    """
    subprocess.run([sys.executable, "-c", program], check=True)


def test_type_checkers_are_told_the_names():
    """If this fails, run ``python tools/stubs.py``."""
    package = Path(mpwds.__file__).parent
    stubs = runpy.run_path(str(package.parent / "tools" / "stubs.py"))["stubs"]
    assert {stub.stem: stub.read_text() for stub in package.glob("*.pyi")} == stubs()


@pytest.mark.slow
def test_type_checkers_know_the_methods_arguments_and_what_they_return(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import mpwds as wds\n"
        "from mpwds.filters import shuffle\n"
        "longer: wds.WebDataset = wds.WebDataset('x.tar').map(str.upper).slice(1, 4).batched(2)\n"
        "stage: int = shuffle(10)\n"
        "longer.rsample('half')\n"
        "longer.batched(4, drop_last=True)\n"
    )
    root = Path(mpwds.__file__).parents[1]
    options = ["--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent", "--no-site-packages"]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(program)],
        env={**os.environ, "MYPYPATH": str(root)},
        capture_output=True,
        text=True,
    )
    lines = [line for line in checked.stdout.splitlines() if "program.py" in line]
    assert [line.split(":")[1] for line in lines] == ["4", "5", "6"], checked.stdout


def test_the_version_is_the_installed_packages():
    assert mpwds.__version__ == importlib.metadata.version("mpwds")
