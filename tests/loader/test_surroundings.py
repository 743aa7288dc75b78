"""Surroundings: what a process inherits, taken on by one that is no child."""

import os
import sys

from mpwds.loader import processes, surroundings


def test_a_process_takes_on_all_of_them(monkeypatch, tmp_path):
    before = surroundings.here()
    monkeypatch.setenv("ONLY_HERE", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/nowhere", *sys.path])
    there = surroundings.here()
    surroundings.take_on(before)
    assert surroundings.here() == before
    assert "ONLY_HERE" not in os.environ
    surroundings.take_on(there)
    assert (os.environ["ONLY_HERE"], os.getcwd(), sys.path[0]) == ("1", str(tmp_path), "/nowhere")


def test_numbers_of_threads_stay(monkeypatch):
    name = processes.THREAD_VARIABLES[0]
    monkeypatch.delenv(name, raising=False)
    elsewhere = surroundings.here()
    monkeypatch.setenv(name, "1")
    surroundings.take_on(elsewhere)
    assert os.environ[name] == "1"


def test_a_folder_that_is_gone_is_no_trouble(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    there = surroundings.here()
    folder.rmdir()
    assert surroundings.here().folder == ""
    monkeypatch.chdir(tmp_path)
    surroundings.take_on(there)
    assert os.getcwd() == str(tmp_path)
