"""The trainer's environment, adopted by a process that is not its child."""

import os
import sys

from mpwds.loader.processes import parent_environment, processes


def test_a_process_adopts_all_of_it(monkeypatch, tmp_path):
    before = parent_environment.current()
    monkeypatch.setenv("ONLY_HERE", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/nowhere", *sys.path])
    there = parent_environment.current()
    parent_environment.adopt(before)
    assert parent_environment.current() == before
    assert "ONLY_HERE" not in os.environ
    parent_environment.adopt(there)
    assert (os.environ["ONLY_HERE"], os.getcwd(), sys.path[0]) == ("1", str(tmp_path), "/nowhere")


def test_numbers_of_threads_stay(monkeypatch):
    name = processes.THREAD_VARIABLES[0]
    monkeypatch.delenv(name, raising=False)
    elsewhere = parent_environment.current()
    monkeypatch.setenv(name, "1")
    parent_environment.adopt(elsewhere)
    assert os.environ[name] == "1"


def test_a_folder_that_is_gone_is_no_trouble(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    there = parent_environment.current()
    folder.rmdir()
    assert parent_environment.current().folder == ""
    monkeypatch.chdir(tmp_path)
    parent_environment.adopt(there)
    assert os.getcwd() == str(tmp_path)
