"""Marks of parameters."""

import pytest


def slow(*values):
    """Parameters that ``make test`` leaves out and ``make test-slow`` runs."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]
