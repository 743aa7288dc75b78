"""Folders and paths: read-only, removed, long, or full of files that are called like what we import."""

import os
import sys
from pathlib import Path

import pytest

from tests.loader.faults.programs import with_loader

pytestmark = pytest.mark.slow

PRINT = "    print(*(int(array[-1]) for array in loader()))\n"
RUN = with_loader(PRINT)
WHOLE = (0, "0 1 2 3 4 5 6 7 8 9 10 11\n", "")

fresh = pytest.mark.parametrize("kind", ["spawn", "forkserver"])


@pytest.mark.parametrize("kind", ["spawn", "DataLoader"])
def test_no_folder_needs_to_be_writable(program, kind):
    read_only = "/proc"  # to root too
    environment = dict.fromkeys(["TMPDIR", "HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"], read_only)
    assert program(RUN, kind, within=f"cd {read_only}", environment=environment).finish() == WHOLE


def test_no_folder_needs_to_be_there(program):
    environment = dict.fromkeys(["TMPDIR", "HOME"], "/there/is/none")
    assert program(RUN, "spawn", environment=environment).finish() == WHOLE


@fresh
def test_paths_may_be_longer_than_a_sockets_name(program, tmp_path, kind):
    folder = tmp_path / ("long" * 40)
    assert program(RUN, kind, folder=folder).finish() == WHOLE


@pytest.mark.parametrize("kind", ["spawn", "fork", "DataLoader"])
def test_the_working_directory_may_have_been_removed(program, tmp_path, kind):
    # torch itself cannot be imported there.
    before = "    import torch\n    mpwds.DataLoader\n" if kind == "DataLoader" else ""
    text = before + "    os.rmdir(os.getcwd())\n" + 2 * PRINT
    assert program(with_loader(text), kind).finish() == (0, 2 * WHOLE[1], "")


@pytest.mark.parametrize("name", ["queue.py", "worker.py", "my script.py"])
def test_the_programs_name_does_not_matter(program, name):
    assert program(RUN, "spawn", name=name).finish() == WHOLE


@fresh
def test_modules_are_found_where_the_program_finds_them(program, kind, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "found_late.py").write_text("def number(index):\n    return index\n")
    text = f"""
    import sys
    sys.path.insert(0, {str(tmp_path / "elsewhere")!r})
    sys.path.append("")
    sys.path.append("/there/is/none")
    import found_late
    import mpwds
    dataset = mpwds.DataPipeline(range(4)).map(found_late.number)
    print(*mpwds.MultiLoader(dataset, workers=2, start_method={kind!r}, output="numpy"))
"""
    assert program(text).finish() == (0, "0 1 2 3\n", "")


def test_start_up_files_of_interactive_sessions_are_left_alone(program, tmp_path):
    (tmp_path / "startup.py").write_text("raise SystemExit(9)\n")
    environment = {"PYTHONSTARTUP": str(tmp_path / "startup.py"), "PYTHONINSPECT": None}
    assert program(RUN, "spawn", environment=environment).finish() == WHOLE


@pytest.mark.parametrize("option", ["-I", "-O", "-X dev -W error"])
def test_options_of_the_interpreter_do_not_matter(program, option):
    path = [os.getcwd(), str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    text = f"    import sys\n    sys.path[:0] = {path!r}\n" + RUN
    within = f'exec {sys.executable} {option} "$@"'
    assert program(text, "spawn", within=within).finish() == WHOLE
