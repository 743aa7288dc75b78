"""Grouping members into samples: as webdataset groups them, with errors that say where."""

import io
import re
import tarfile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys

from mpwds.errors import ShardError
from mpwds.pipeline.sources.samples import read_samples
from mpwds.storage.tar.names import group
from tests.pipeline.conftest import add


@pytest.fixture
def shard(tar):
    return lambda *members: tar([(name, name.encode()) for name in members])


def archive_of(members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in members:
            add(archive, name, data)
    return stream.getvalue()


def samples(path, **options):
    return [sample for _, _, sample in read_samples(path, **options)]


def keys_and_fields(path, **options):
    return [(sample["__key__"], sorted(sample)[2:]) for sample in samples(path, **options)]


def is_meta(name):
    """Whether webdataset leaves the member out because of its name."""
    return bool(re.match(r"__[^/]*__($|/)", name)) or (
        "/" not in name and name.startswith("__") and name.endswith("__")
    )


@pytest.mark.parametrize("options", [{"select": lambda name: True}, {"rename": lambda name: name}])
def test_names_that_are_selected_or_renamed_are_grouped_as_others_are(shard, options):
    path = shard("d.v1/a.seg.PNG", "d.v1/a.CLS", "__x__.cls", "d.v1/.b.TXT", "b.CLS")
    assert samples(path, **options) == samples(path)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("a./_B", min_size=1, max_size=10), max_size=8))
@example(["d.v1/a.seg.png", "d.v1/a.CLS", "d.v1/b.cls", "d.v1/a.txt"])
@example(["README", "__meta__/a.txt", "__index__", ".hidden", "a.txt", "LICENSE", "a.cls"])
@example(["__x.a", "__x.b__", "__x.c"])
@example(["a.b", "a.b/c.d", "a.c"])
@example(["a.b/.c", "a.b/.d"])
def test_any_members_are_grouped_as_webdataset_groups_them(members):
    """A name that comes twice in a sample is left out by both."""
    numbered = [(name, str(number).encode()) for number, name in enumerate(members)]
    data = archive_of(numbered)
    kept = [(name, number) for name, number in numbered if not is_meta(name)]
    files = [{"fname": name, "data": number, "__url__": "x.tar"} for name, number in kept]
    errors = []
    read = samples("x.tar", open=lambda url, offset: io.BytesIO(data), on_error=errors.append)
    assert read == list(group_by_keys(iter(files), handler=lambda error: True))
    assert len(read) + len(errors) <= len(members)
    named = group(zip(members, members, strict=True))
    grouped = [(key, [each for each in dict(found) if each is not None]) for key, found in named if key]
    assert grouped == [(sample["__key__"], list(sample)[2:]) for sample in read]


def test_members_of_no_sample_go_with_the_sample_after_them_or_the_last():
    named = [(name, name) for name in ("README", "a.x", "LICENSE", "a.y", "__meta__/x", "b.x", "c")]
    assert [(key, [name for _, name in members]) for key, members in group(named)] == [
        ("a", ["README", "a.x", "LICENSE", "a.y"]),
        ("b", ["__meta__/x", "b.x", "c"]),
    ]
    assert list(group([("README", 1)])) == [("", [(None, 1)])]


def test_each_sample_comes_with_its_offset_and_that_of_the_next(shard):
    path = shard("README", "a.txt", "__meta__/x", "a.cls", "LICENSE", "b.txt", "c.txt", "NOTES")
    read = list(read_samples(path))
    assert [(start, following) for start, following, _ in read] == [(1024, 5120), (5120, 6144), (6144, None)]
    for index, (start, _, _) in enumerate(read):
        assert list(read_samples(path, start)) == read[index:]


def test_an_extension_twice_in_a_sample_is_an_error_that_names_file_and_shard(shard):
    path = shard("a.txt", "a.TXT")
    expected = r"a\.TXT at offset 1024 of .*x\.tar: sample 'a' has a member 'txt'"
    with pytest.raises(ShardError, match=expected) as caught:
        samples(path)
    assert caught.value.member == "a.TXT"


@pytest.mark.parametrize("name", ["a.__key__", "a.__url__"])
def test_a_member_cannot_take_the_place_of_a_samples_key_or_url(shard, name):
    with pytest.raises(ShardError, match="has a member '__"):
        samples(shard(name))


def test_members_are_renamed_then_selected_and_then_grouped(shard):
    seen = []

    def select(name):
        seen.append(name)
        return not name.endswith(".cls")

    path = shard("x/a.png", "__meta__/x.txt", "x/a.cls", "x/b.png")
    read = keys_and_fields(path, rename=lambda name: name.replace("x/", "y/"), select=select)
    assert read == [("y/a", ["png"]), ("y/b", ["png"])]
    assert seen == ["y/a.png", "y/a.cls", "y/b.png"]


def test_a_new_name_is_no_description_of_the_shard_whatever_it_looks_like(shard):
    """webdataset looks at the names in the archive, too."""
    path = shard("a.png", "__meta__/b.png")
    assert keys_and_fields(path, rename=lambda name: "__x__/" + name) == [("__x__/a", ["png"])]


def test_an_error_of_select_or_rename_says_where_and_may_be_handled(shard):
    def fails(name):
        return name[99] if "b" in name else name

    path = shard("a.png", "b.png", "c.png")
    for options in ({"select": fails}, {"rename": fails}):
        with pytest.raises(IndexError) as caught:
            samples(path, **options)
        assert caught.value.__notes__ == [f"on the name of member b.png of {path}"]
        errors = []
        assert [key for key, _ in keys_and_fields(path, on_error=errors.append, **options)] == ["a", "c"]
        assert [error.member for error in errors] == ["b.png"]


def test_a_sample_that_damage_cuts_short_is_not_yielded(shard):
    path = shard("a.txt", "b.txt", "b.cls")
    with open(path, "r+b") as archive:
        archive.truncate(2 * 1024 + 700)
    read = read_samples(path)
    assert next(read)[2]["__key__"] == "a"
    with pytest.raises(ShardError, match="truncated"):
        next(read)


def test_a_shard_that_may_be_truncated_is_warned_of_where_it_is_read(shard):
    path = shard("a.txt")
    with open(path, "r+b") as archive:
        archive.truncate(1024)
    with pytest.warns(RuntimeWarning, match="may be truncated") as caught:
        samples(path)
    assert caught[0].filename == __file__
