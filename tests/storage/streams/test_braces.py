"""Shard patterns: braces as braceexpand expands them, within what memory can hold, and globs of files."""

import os
import pickle
from itertools import islice

import pytest
from braceexpand import braceexpand
from hypothesis import example, given
from hypothesis import strategies as st

from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.storage.streams.patterns import Names, expand_urls
from mpwds.storage.writing.tar_writer import TarWriter
from tests.memory import allocating_below

WORDS = ["x", "", "a.tar", r"\{", r"\,", "{1..3}", "{9..0..-4}", "{-2..2..2}", "{007..011}", "{a..c}", "{a}"]
NAMES = st.recursive(
    st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, min_size=2, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}")
    ),
    max_leaves=5,
)


@given(NAMES)
def test_names_are_those_of_braceexpand(pattern):
    names = list(braceexpand(pattern))
    assert list(Names(pattern)) == names


TOKENS = st.sampled_from(["{", "}", ",", "..", "-", "0", "07", "1", "12", "a", "Z", "\\", "{1..3}", "{a,b}"])


@given(st.lists(TOKENS, max_size=9).map("".join))
@example("{a,b\\\\\\\\{1..2}}")
@example("}{1,2}{")
def test_any_text_gives_the_names_or_the_refusal_of_braceexpand(pattern):
    try:
        names = list(islice(braceexpand(pattern), 1000))
    except ValueError:
        with pytest.raises(ValueError, match="do not match"):
            Names(pattern)
    else:
        assert Names(pattern)[:1000] == names


@given(st.lists(NAMES, max_size=3), st.slices(30), st.data())
def test_names_are_a_sequence(patterns, part, data):
    names, listed = Names(*patterns), [name for pattern in patterns for name in braceexpand(pattern)]
    assert len(names) == len(listed)
    assert names[part] == listed[part]
    assert list(pickle.loads(pickle.dumps(names))) == listed
    if listed:
        number = data.draw(st.integers(-len(listed), len(listed) - 1))
        assert names[number] == listed[number]
    with pytest.raises(IndexError):
        names[len(listed)]


MANY_NAMES = [
    "x-{0..99999999999}.tar",
    "{0..9999}{0..9999}",
    "{a,{{0..99999}{0..99999},b}}",
    "{a..z}" * 20,
    "{-99999999999..0..2}",
    "::".join(["{0..600000}"] * 2),
]
LONG_NAMES = ["{" + "0" * 4000 + "..999999}", "x" * 100_000 + "{0..99999}"]


@pytest.mark.parametrize("pattern", [*MANY_NAMES, *LONG_NAMES])
def test_a_pattern_of_too_many_or_too_long_names_is_an_error_that_takes_no_memory(pattern):
    message = r"the braces in .* names; 1000000 are allowed"
    message = message if pattern in MANY_NAMES else "of 1000000000 characters in all"
    with allocating_below(1 << 20), pytest.raises(ValueError, match=message):
        expand_urls(pattern)


class TestGlobs:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for name in ("b-1.tar", "a-1.tar", "a-0.tar", "a-0.txt", "x[1].tar", "x1.tar", "*.json"):
            (tmp_path / name).touch()

    @pytest.mark.parametrize(
        ("pattern", "files"),
        [
            ("a-*.tar", ["a-0.tar", "a-1.tar"]),
            ("{b,a}-?.tar", ["b-1.tar", "a-0.tar", "a-1.tar"]),
            ("[ab]-1.tar::a-0.*", ["a-1.tar", "b-1.tar", "a-0.tar", "a-0.txt"]),
            ("x[1].tar", ["x[1].tar"]),
            ("*.json", ["*.json"]),
            ("https://host/*.tar?x=1", ["https://host/*.tar?x=1"]),
            ("pipe:cat a-*.tar", ["pipe:cat a-*.tar"]),
        ],
    )
    def test_stand_for_the_local_files_that_match(self, pattern, files):
        assert expand_urls(pattern) == files

    def test_a_file_whose_name_looks_like_a_command_stays_a_file(self, tmp_path):
        (tmp_path / "pipe:touch owned #.tar").touch()
        assert expand_urls("pip*.tar") == ["./pipe:touch owned #.tar"]

    def test_of_file_urls_stand_for_paths(self, tmp_path):
        assert expand_urls(f"file://{tmp_path}/a-*.tar") == [f"{tmp_path}/a-0.tar", f"{tmp_path}/a-1.tar"]

    @pytest.mark.parametrize("pattern", ["c-*.tar", "{a,c}-?.tar", "file:/nowhere/[x].tar"])
    def test_that_nothing_matches_are_an_error(self, pattern):
        with pytest.raises(FileNotFoundError, match="no file matches (c-|file:/nowhere)"):
            expand_urls(pattern)

    def test_two_asterisks_match_folders_at_any_depth(self, tmp_path):
        names = [f"{tmp_path}/deep/{name}.tar" for name in ("0", "a/1", "a/b/2")]
        for name in names:
            os.makedirs(os.path.dirname(name), exist_ok=True)
            open(name, "w").close()
        assert expand_urls(f"{tmp_path}/deep/**/*.tar") == names

    def test_a_dataset_keeps_the_files_that_it_found(self, tmp_path):
        for name in ("a-0.tar", "a-1.tar"):
            with TarWriter(name) as sink:
                sink.write({"__key__": "0", "cls": 0})
        dataset = pickle.loads(pickle.dumps(WebDataset("a-*.tar")))
        (tmp_path / "a-2.tar").touch()
        assert [sample["__url__"] for sample in dataset] == ["a-0.tar", "a-1.tar"]
