import json
import subprocess

import pytest


def test_lists_samples_with_their_fields_and_sizes(run, shard, entries):
    result = run("ls", shard)
    first, line, *_ = result.stdout.splitlines()
    jpg = next(entry for entry in entries(shard) if entry.name.endswith(".jpg"))
    assert first == f"{shard}:"
    assert line.split()[:1] == ["0"]
    assert f"n0/0000  cls 1 B, jpg {jpg.size} B, json " in line
    assert result.returncode == 0


def test_json_tells_offsets(run, shard, objects, entries):
    by_name = {entry.name: entry for entry in entries(shard)}
    for sample in objects(run("ls", shard, "--json").stdout):
        for field in sample["fields"].values():
            assert (field["offset"], field["bytes"]) == (
                by_name[field["name"]].offset,
                by_name[field["name"]].size,
            )


def test_long_has_a_line_for_each_field(run, shard, entries):
    lines = run("ls", shard, "--long", "-n", "2", "-f", "cls,txt").stdout.splitlines()
    offsets = {entry.name: str(entry.offset) for entry in entries(shard)}
    assert [line.split() for line in lines[1:]] == [
        ["2", "16", "B", "n2/0002"],
        [offsets["n2/0002.cls"], "1", "n2/0002.cls"],
        [offsets["n2/0002.txt"], "15", "n2/0002.txt"],
    ]


def test_a_terminal_gets_lines_of_its_width(run, shard, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    whole = run("ls", shard).stdout.splitlines()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run("ls", shard).stdout.splitlines() == [f"{line[:29]}…" for line in whole]
    monkeypatch.setenv("COLUMNS", str(len(whole[1])))
    assert run("ls", shard, "-n", "0").stdout.splitlines()[1] == whole[1]


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["-k", "n1/*"], [1, 4, 7, 10, 13, 16, 19, 22]),
        (["-k", "*/0003", "-k", "*/0004"], [3, 4]),
        (["-n", "6:10"], [6, 7, 8, 9]),
        (["-n", "3,22:"], [3, 22, 23]),
        (["-n", ":2"], [0, 1]),
        (["-w", "cls == 2 and json.width > 30"], [17, 20, 23]),
        (["-w", 'json.source == "web"', "--limit", "3"], [1, 3, 5]),
        (["--limit", "0"], []),
    ],
)
def test_chooses_samples(run, shards, objects, options, numbers):
    found = objects(run("ls", shards, "--json", *options).stdout)
    assert [sample["number"] for sample in found] == numbers


@pytest.mark.parametrize("option", ["--number=:8", "--limit=8"])
def test_reads_no_shard_behind_the_last_sample(run, shard, option):
    result = run("ls", shard, "missing.tar", option)
    assert result.returncode == 0


@pytest.mark.parametrize("option", ["--number=:3", "--limit=3"])
def test_reads_no_sample_behind_the_last(run, shard, flipped, entries, option):
    flipped(shard, entries(shard)[25].offset)
    result = run("ls", shard, option)
    assert (result.returncode, len(result.stdout.splitlines())) == (0, 4)


def test_chooses_fields(run, shard, objects):
    found = objects(run("ls", shard, "--json", "--fields", "J*, cls").stdout)
    assert list(found[0]["fields"]) == ["cls", "jpg", "json"]


def test_damage_is_listed_where_it_is(run, shard, flipped, entries):
    damaged = entries(shard)[9]
    flipped(shard, damaged.offset)
    result = run("ls", shard)
    assert result.returncode == 1
    _, before, _, note, interrupted, following, *_ = result.stdout.splitlines()
    assert "n0/0000" in before
    assert note.startswith(f'damaged: {shard}, offset {damaged.offset}, sample "n2/0002": tar header')
    assert "n2/0002" in interrupted
    assert "n0/0003" in following
    assert interrupted.endswith("(incomplete: the shard is damaged here)")
    assert "incomplete" not in following


def test_a_sample_behind_damage_may_be_incomplete(run, shard, flipped, entries):
    flipped(shard, entries(shard)[8].offset)
    *_, note, interrupted, behind, sound = run("ls", shard, "-n", ":4").stdout.splitlines()
    assert note.startswith("damaged: ")
    assert "n1/0001" in interrupted
    assert "n2/0002" in behind
    assert behind.endswith("(incomplete: the shard is damaged here)")
    assert "incomplete" not in sound


@pytest.mark.parametrize("name", ["a", "-"])
def test_damage_is_worded_well_whatever_the_shard_is_called(run, shard, monkeypatch, name):
    shard.write_bytes(shard.read_bytes()[:5000])
    shard.rename("a")
    with open("a") as file:
        monkeypatch.setattr("sys.stdin", file)
        output = run("ls", name).stdout
    assert f"damaged: {name}, offset 4608, sample" in output
    assert ": the shard is truncated or damaged in the member at offset" in output


SHOWN_BY = "ls, ls --json, info, info --json, verify, verify --json, cat --fields=cls, show, extract -o out"


@pytest.mark.parametrize(
    "words", [*SHOWN_BY.split(", "), "repair -o fixed.tar", "repair -o fixed.tar --json"]
)
def test_credentials_are_not_shown(run, shard, flipped, entries, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "400")
    flipped(shard, entries(shard)[9].offset)
    command, *options = words.split()
    result = run(command, f"pipe:cat {shard} # https://user:secret@host/", *options)
    assert "host" in result.stdout + result.stderr
    assert "secret" not in result.stdout + result.stderr


def test_a_missing_shard_is_one_line(refused):
    errors = refused("ls", "no.tar")
    assert errors.count("\n") == 1
    assert "no.tar" in errors


def test_reads_standard_input_and_urls(command, shard):
    with open(shard, "rb") as file:
        piped = subprocess.run([*command, "ls", "-"], stdin=file, capture_output=True, text=True, check=True)
    by_command = subprocess.run(
        [*command, "ls", f"pipe:gzip -c {shard}"], capture_output=True, text=True, check=True
    )
    assert piped.stdout.splitlines()[1:] == by_command.stdout.splitlines()[1:]
    assert piped.stdout.count("\n") == 9


def test_a_description_at_a_url_may_have_a_query(run, web, shard, objects):
    web.files["/train-0.tar"] = shard.read_bytes()
    shards = [{"url": "train-0.tar", "nsamples": 8}]
    web.files["/all.json"] = json.dumps({"wids_version": 1, "shardlist": shards}).encode()
    found = objects(run("ls", web.url("/all.json?token=1"), "--json").stdout)
    assert [each["number"] for each in found] == list(range(8))


@pytest.mark.parametrize("words", ["ls -l", "show"])
def test_names_and_texts_do_nothing_to_a_terminal(run, tar, words):
    assert "\x1b" not in run(*words.split(), tar("x.tar", {"a\x1b[2J.txt": b"red\x1b[31m"})).stdout


@pytest.mark.parametrize(
    ("options", "unknown"),
    [
        (["--fields", "jgp"], ["jgp"]),
        (["--fields", "jpg,c*"], []),
        (["--where", "jsn.width > 3 and key == 'a'"], ["jsn"]),
        (["--fields", "p*", "--limit", 1], ["p*"]),
    ],
)
def test_a_field_that_no_sample_has_is_named(run, shards, options, unknown):
    told = [f"no sample has a field {name!r}: there are cls, jpg, json, txt\n" for name in unknown]
    assert run("ls", shards, *options).stderr == "".join(told)


def test_a_field_with_a_dot_in_its_name_is_there(run, write_shard):
    shard = write_shard("x.tar", {"seg.txt": "a"})
    assert run("ls", shard, "--where", "seg.txt == 'a'").stderr == ""


@pytest.mark.parametrize("option", ["--number=99999", "--key=zzz", "--where=cls == 77"])
def test_a_choice_of_nothing_is_told(run, shards, option):
    result = run("ls", shards, option)
    assert (result.returncode, result.stdout) == (0, "")
    assert "no sample is chosen" in result.stderr
