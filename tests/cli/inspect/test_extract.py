import contextlib
import os
from pathlib import Path

import pytest

from mpwds.cli.inspect.extract import Folder, UnsafeName


def files_below(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_writes_members_under_their_names(run, shard, entries):
    result = run("extract", shard, "-o", "out")
    assert result.returncode == 0
    assert result.stdout == "wrote 32 files of 8 samples to out\n"
    assert files_below(Path("out")) == {entry.name: entry.data for entry in entries(shard)}


def test_a_folder_may_be_a_file_url_but_not_elsewhere(run, refused, shard):
    assert run("extract", shard, "-o", "file:my%20files", "-n", 0).returncode == 0
    assert files_below(Path("my files"))
    for output in ("s3://bucket/files", "-"):
        assert f"{output} is no local folder" in refused("extract", shard, "-o", output, status=2)
    assert not {"file:my%20files", "s3:", "-"} & {*os.listdir()}


def test_writes_what_is_chosen(run, shards):
    run("extract", shards, "-o", "out", "-w", "cls == 1", "-n", "10:", "-f", "cls")
    assert set(files_below(Path("out"))) == {f"n1/00{number}.cls" for number in (10, 13, 16, 19, 22)}


def test_replaces_no_file_unless_forced(run, refused, shard):
    Path("out/n0").mkdir(parents=True)
    Path("out/n0/0003.cls").write_text("mine")
    arguments = ("extract", shard, "-o", Path("out"), "-f", "cls")
    assert "n0/0003.cls: it exists, or two samples have it: extract elsewhere" in refused(*arguments)
    assert Path("out/n0/0003.cls").read_text() == "mine"
    assert run(*arguments, "--force").returncode == 0
    assert Path("out/n0/0003.cls").read_text() == "0"


@pytest.mark.parametrize(
    "name", ["../x.txt", "/{}/x.txt", "a/../../x.txt", "a//x.txt", "link/x.txt", "file/x.txt"]
)
def test_nothing_leaves_the_folder(refused, tar, tmp_path, name):
    Path("out").mkdir()
    Path("elsewhere").mkdir()
    Path("out/link").symlink_to(Path("elsewhere"))
    Path("out/file").write_text("")
    shard = tar("x.tar", {name.format(tmp_path): b"outside", "a.txt": b"inside"})
    before = set(Path().rglob("*"))
    assert "not written" in refused("extract", shard, "-o", "out")
    assert {path.name for path in set(Path().rglob("*")) - before} <= {"a", "a.txt"}
    assert files_below(Path("out"))["a.txt"] == b"inside"


def test_a_link_is_replaced_not_followed():
    Path("out").mkdir()
    Path("target").write_text("kept")
    Path("out/a.txt").symlink_to(Path("target"))
    with Folder("out", force=True) as folder:
        folder.write("a.txt", b"new")
    assert Path("target").read_text() == "kept"
    assert Path("out/a.txt").read_bytes() == b"new"


def test_a_name_that_starts_with_a_dot_stays_below():
    with Folder("out") as folder:
        folder.write("./a/./b.txt", b"data")
        for name in (".", "a\0b"):
            with pytest.raises(UnsafeName, match="leads out of the folder"):
                folder.write(name, b"data")
    assert files_below(Path("out")) == {"a/b.txt": b"data"}


@pytest.mark.parametrize("name", ["a/b/" + "n" * 300 + ".txt", "a/" + "n" * 300 + "/b.txt"])
def test_a_name_that_the_file_system_cannot_hold_is_named(name):
    with Folder("out") as folder, pytest.raises(OSError, match=f"too long: 'out/{name}'"):
        folder.write(name, b"data")


@pytest.mark.parametrize("name", ["file.d", "file.d/x.txt"])
def test_a_folder_in_place_of_a_file_is_named(name):
    Path("out/file.d/x.txt").mkdir(parents=True)
    with Folder("out", force=True) as folder, pytest.raises(IsADirectoryError, match=f": 'out/{name}'"):
        folder.write(name, b"data")


def test_a_file_that_cannot_be_finished_is_removed(monkeypatch):
    def fail(*arguments, **options):
        raise OSError("no space")

    monkeypatch.setattr("os.link", fail)
    with Folder("out") as folder, pytest.raises(OSError, match="no space"):
        folder.write("a.txt", b"data")
    assert files_below(Path("out")) == {}


def test_json_tells_what_was_written_and_what_was_not(run, tar, objects):
    shard = tar("x.tar", {"a.txt": b"one", "a.cls": b"1", "../b.txt": b"two", "../c.txt": b"two"})
    result = run("extract", shard, "-o", "out", "--json")
    assert result.returncode == 1
    assert objects(result.stdout) == [{"samples": 3, "files": 2, "output": "out", "problems": 2}]


@pytest.mark.parametrize("force", [False, True])
def test_a_file_that_appears_meanwhile_is_replaced_only_if_forced(tmp_path, monkeypatch, force):
    Path("a.txt").write_text("mine")
    monkeypatch.setattr(os, "access", lambda *arguments, **options: False)
    with Folder(str(tmp_path), force) as folder:
        with contextlib.nullcontext() if force else pytest.raises(FileExistsError):
            folder.write("a.txt", b"new")
    assert Path("a.txt").read_text() == ("new" if force else "mine")


def test_no_folder_stays_open(tmp_path):
    before = os.listdir("/proc/self/fd")
    Path("file").write_text("")
    with Folder(str(tmp_path)) as folder:
        for name in ("a/b/c.txt", "a/d.txt", "x.txt"):
            folder.write(name, b"data")
        with pytest.raises(UnsafeName):
            folder.write("a/../../x", b"data")
        with pytest.raises(UnsafeName):
            folder.write("file/x", b"data")
    assert os.listdir("/proc/self/fd") == before
