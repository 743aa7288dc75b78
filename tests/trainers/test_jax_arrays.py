"""output="jax", tested where jax may start its threads; and without jax."""

import importlib.util
import os
import subprocess
import sys

import pytest

import mpwds

HERE = os.path.dirname(__file__)


def test_loaders_deliver_jax_arrays_as_specified():
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            os.path.join(HERE, "jax_specification.py"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=os.path.dirname(os.path.dirname(HERE)),
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_without_jax_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"output='jax' needs the package jax: pip install 'mpwds\[jax\]'"):
        mpwds.MultiLoader([], output="jax")
