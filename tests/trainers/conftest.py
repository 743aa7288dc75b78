"""Tests that need jax, Lightning, Accelerate, Transformers or Keras: ``make test-trainers`` runs them."""

from tests.examples.conftest import run as run

# The first two are run, not imported; the last by test_jax_arrays, in a process of its own.
collect_ignore_glob = ["programs/*", "ranks/*", "jax_specification.py"]
