"""What connects to Ray, and what is packed for its machines."""

import os
import subprocess
import sys
import types

import pytest

from mpwds.cluster.engine import connect, pack


def test_a_module_with_two_names_is_packed_once(monkeypatch):
    helper = types.ModuleType("helper")
    helper.__file__ = os.path.abspath("helper.py")
    exec("def double(n): return 2 * n", vars(helper))
    for name in ("helper", "old_name_of_helper"):
        monkeypatch.setitem(sys.modules, name, helper)
    for _ in range(2):
        program = f"import pickle; print(pickle.loads({pack(helper.double)!r})(4))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout == "8\n"


@pytest.mark.parametrize(
    "folder", ["/home/me/.local/lib/python3.11/site-packages", "/usr/lib/python3/dist-packages"]
)
def test_what_is_installed_elsewhere_is_not_packed(folder, monkeypatch):
    installed = types.ModuleType("installed")
    installed.__file__ = f"{folder}/installed.py"
    exec("def double(n): return 2 * n", vars(installed))
    monkeypatch.setitem(sys.modules, "installed", installed)
    assert len(pack(installed.double)) < 100


def test_what_a_module_holds_that_cannot_be_sent_is_named(monkeypatch):
    helper = types.ModuleType("helper")
    helper.__file__ = os.path.abspath("helper.py")
    exec("import threading\nLOCK = threading.Lock()\ndef f(n): return LOCK and n", vars(helper))
    monkeypatch.setitem(sys.modules, "helper", helper)
    with pytest.raises(TypeError, match=r"'work'\]'s global LOCK is a lock, which cannot be sent"):
        pack({"work": helper.f})


def test_an_address_where_nothing_answers_is_named_at_once(monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConnectionError, match="no Ray cluster answers at RAY_ADDRESS=127.0.0.1:1 .*unset"):
        connect()
