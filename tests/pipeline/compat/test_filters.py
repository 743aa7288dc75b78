"""The names with an underscore, which programs written for webdataset import."""

import random

import pytest

import mpwds.filters


def test_an_underscore_takes_the_source_first():
    assert list(mpwds.filters._batched(range(3), 2, None)) == [[0, 1], [2]]
    assert sorted(mpwds.filters._shuffle(iter(range(9)), 3, 1, random.Random(7))) == list(range(9))
    assert mpwds.filters.xdecode is mpwds.xdecode  # though there is decode, without its x


def test_other_names_are_not_there():
    for name in ("_no_stage", "no_stage", "_"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(mpwds.filters, name)
