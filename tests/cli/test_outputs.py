"""Names that commands write to: only a number in the last part makes a series, and other % are characters."""

import os

import pytest

from mpwds.cli.outputs import beside, existing, is_series, numbered


@pytest.fixture
def source(tmp_path, monkeypatch, write_shard):
    """A shard of three samples, in a folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    write_shard("in.tar", *({"cls": number} for number in range(3)))
    (tmp_path / "stages.py").write_text("stages = []\n")
    return "in.tar"


@pytest.mark.parametrize("folder", ["my%20dir", "100%done"])
@pytest.mark.parametrize(
    ("arguments", "name", "count"),
    [
        (("split", "in.tar", "{}", "--maxcount", 1), "50%-%d.tar", 3),
        (("proc", "stages.py:stages", "in.tar", "{}", "--repeat", 2, "-j", 1), "out-%02d.tar", 2),
        (("convert", "in.tar", "{}", "--maxcount", 2), "50%-%d.tar", 2),
        (("convert", "in.tar", "{}", "--maxcount", 2), "%d.msgpack", 2),
        (("create", "files", "{}", "--maxcount", 1), "x-%d.tar", 2),
        (("merge", "in.tar", "{}"), "60%.tar", 1),
        (("convert", "in.tar", "{}"), "60%.tar", 1),
        (("convert", "in.tar", "{}"), "60%.msgpack", 1),
        (("create", "files", "{}"), "60%.tar", 1),
        (("repair", "in.tar", "-o", "{}"), "60%.tar", 1),
        (("index", "create", "in.tar", "-o", "{}"), "60%.json", 1),
    ],
)
def test_percent_signs_are_characters_like_others(run, source, write_files, folder, arguments, name, count):
    write_files({"1.txt": b"", "2.txt": b""}, "files")
    os.mkdir(folder)
    done = run(*(str(word).format(f"{folder}/{name}") for word in arguments))
    assert done.returncode == 0, done.stderr
    target = f"{folder}/{name}"
    assert existing(target) == [numbered(target, number) for number in range(count)]


def test_a_series_has_one_number_in_its_last_part():
    assert [is_series(name) for name in ("x-%d.tar", "x-%03d/y.tar", "x%20day.tar", "50%")] == [1, 0, 0, 0]
    assert numbered("%d/50%-%03d.tar", 7) == "%d/50%-007.tar"
    assert beside("a/x-%06d.tar", ".json") == "a/x.json"
    with pytest.raises(ValueError, match="needs one % directive"):
        numbered("%d-%d.tar", 0)
