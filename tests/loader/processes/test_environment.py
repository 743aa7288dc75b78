"""The trainer's environment, adopted by a process that is not its child; and children that have ended."""

import os
import subprocess
import sys

import pytest

from mpwds.loader.processes import environment, processes
from mpwds.loader.processes.processes import WorkerProcess


def test_numbers_of_threads_stay(monkeypatch):
    name = processes.THREAD_VARIABLES[0]
    monkeypatch.delenv(name, raising=False)
    elsewhere = environment.current()
    monkeypatch.setenv(name, "1")
    environment.apply(elsewhere)
    assert os.environ[name] == "1"


def test_a_folder_that_is_gone_is_no_trouble(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    there = environment.current()
    folder.rmdir()
    assert environment.current().folder == ""
    monkeypatch.chdir(tmp_path)
    environment.apply(there)
    assert os.getcwd() == str(tmp_path)


@pytest.mark.parametrize(("option", "expected"), [("-i", "True"), ("-q", "False")])
def test_a_program_that_goes_on_in_a_prompt_is_interactive(option, expected):
    program = "from mpwds.loader.processes.environment import is_interactive; print(is_interactive())"
    run = subprocess.run([sys.executable, option, "-c", program], input="", capture_output=True, text=True)
    assert run.stdout.split() == [expected]


def test_a_worker_that_other_code_has_reaped_has_ended():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    worker = WorkerProcess(child.pid)
    assert worker.wait(0) is True
    assert worker.exitcode is None
