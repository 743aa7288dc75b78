"""Braces in shard patterns: what braceexpand makes of them, but not more than memory can hold."""

import tracemalloc

import pytest
from braceexpand import braceexpand
from hypothesis import given
from hypothesis import strategies as st

from mpwds.storage.streams import patterns
from mpwds.storage.streams.patterns import expand_braces, expand_urls

NAMES = st.recursive(
    st.sampled_from(
        [
            "x",
            "",
            "a.tar",
            r"\{",
            r"\,",
            "{1..3}",
            "{9..0..-4}",
            "{-2..2..2}",
            "{007..011}",
            "{a..c}",
            "{a}",
        ]
    ),
    lambda inner: (
        st.lists(inner, min_size=2, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}")
    ),
    max_leaves=5,
)


@given(NAMES)
def test_names_are_counted_before_they_are_made(pattern):
    names = list(braceexpand(pattern))
    assert expand_braces(pattern) == names
    assert patterns._count(pattern) == len(names)


@pytest.mark.parametrize(
    "pattern",
    [
        "x-{0..99999999999}.tar",
        "{0..9999}{0..9999}",
        "{a,{{0..99999}{0..99999},b}}",
        "{a..z}" * 20,
        "{-99999999999..0..2}",
        "{0..99999999999}{",
        "::".join(["{0..600000}"] * 2),
    ],
)
def test_a_pattern_of_too_many_names_is_an_error_that_takes_no_memory(pattern):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"the braces in .* names; 1000000 are allowed"):
            expand_urls(pattern)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pattern", ["{" + "0" * 4000 + "..999999}", "x" * 100_000 + "{0..99999}"])
def test_a_pattern_of_names_that_are_too_long_together_is_an_error_that_takes_no_memory(pattern):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"of 1000000000 characters in all"):
            expand_urls(pattern)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
