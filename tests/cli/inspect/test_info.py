from pathlib import Path

import pytest

from mpwds.storage.tar.scanning import ScannedMember, scan


def test_sums_up_shards_and_fields(run, shards, objects):
    *each, total = objects(run("info", shards, "--json").stdout)
    assert [shard["samples"] for shard in each] == [8, 8, 8]
    assert (total["shards"], total["samples"], total["problems"]) == (3, 24, 0)
    assert total["bytes"] == sum(shard["bytes"] for shard in each)
    assert set(total["fields"]) == {"jpg", "cls", "json", "txt"}


def test_tells_kinds_shapes_values_and_sizes(run, shards, samples, objects):
    fields = objects(run("info", shards, "--shapes", "--json").stdout)[-1]["fields"]
    sizes = [len(sample["jpg"]) for sample in samples]
    assert fields["jpg"]["kinds"] == {"JPEG image, RGB": 24}
    assert fields["jpg"]["shapes"] == [{"min": [20, 16, 3], "max": [20, 39, 3]}]
    assert fields["jpg"]["bytes"] == {
        "total": sum(sizes),
        "min": min(sizes),
        "mean": sum(sizes) / 24,
        "max": max(sizes),
    }
    assert fields["cls"]["values"] == {"min": 0, "max": 2}
    assert fields["json"]["kinds"] == {"object with width, source": 24}


def test_looks_into_the_first_samples_alone_unless_asked(run, write_shard, objects):
    shard = write_shard("x.tar", *({"cls": number} for number in range(50)))
    (_, total) = objects(run("info", shard, "--json").stdout)
    assert total["fields"]["cls"]["samples"] == 50
    assert total["fields"]["cls"]["looked_into"] == 10


def test_the_table_names_everything(run, shards, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")  # the shards' paths may be long
    output = run("info", shards).stdout
    for text in ("train-2.tar", "JPEG image, RGB, 20 x 16-", "int, 0 to 2", "3 shards, 24 samples"):
        assert text in output


def test_damage_is_shown_and_is_a_status(run, shard, flipped, entries, objects):
    flipped(shard, offset := entries(shard)[5].offset)
    result = run("info", shard)
    assert result.returncode == 1
    assert "checksum" in result.stdout
    result = run("info", shard, "--json")
    assert result.returncode == 1
    (problem,) = objects(result.stdout)[-1]["first_problems"]
    assert (problem["shard"], problem["offset"], problem["key"]) == (str(shard), offset, "n1/0001")


def test_of_many_shards_the_first_are_in_the_table(run, shards, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    assert "more shards" not in run("info", shards).stdout
    monkeypatch.setattr("mpwds.cli.inspect.commands._MOST_SHARDS", 2)
    output = run("info", shards).stdout
    assert [number for number in range(3) if f"train-{number}.tar" in output] == [0, 1]
    assert "and 1 more shards; --json lists all of them" in output


def test_of_many_problems_the_first_are_listed_and_all_are_counted(
    run, shards, tmp_path, flipped, objects, monkeypatch
):
    monkeypatch.setattr("mpwds.cli.inspect.describing._MOST_PROBLEMS", 3)
    offsets = {}
    for number, path in enumerate(sorted(tmp_path.glob("*.tar"))):
        shard = [
            entry.offset for entry in scan(str(path), lambda name: False) if isinstance(entry, ScannedMember)
        ]
        offsets[str(path)] = shard[5 : 5 + 8 * (number + 1) : 8]
        for offset in offsets[str(path)]:
            flipped(path, offset)
    total = objects(run("info", shards, "--json").stdout)[-1]
    assert total["problems"] == 6
    listed = [(problem["shard"], problem["offset"]) for problem in total["first_problems"]]
    assert listed == [(path, offset) for path in offsets for offset in offsets[path]][:3]


def test_of_many_fields_those_after_a_thousand_are_counted_as_one(run, tar, objects, monkeypatch):
    monkeypatch.setattr("mpwds.cli.inspect.describing._MOST_FIELDS", 2)
    shard = tar("x.tar", {f"a.{field}": b"data" for field in ("one", "two", "three", "four")})
    fields = objects(run("info", shard, "--json").stdout)[-1]["fields"]
    assert {name: figures["samples"] for name, figures in fields.items()} == {
        "one": 1,
        "two": 1,
        "(others)": 2,
    }


@pytest.mark.slow
@pytest.mark.parametrize("words", [("info",), ("verify", "--decode")])
def test_several_processes_find_the_same(run, shards, shard, flipped, nothing_left, words):
    flipped(shard, 3)
    alone = run(*words, shards, "--json").stdout
    assert alone
    assert run(*words, shards, "--json", "-j", "3").stdout == alone


@pytest.mark.parametrize("command", ["info", "ls"])
def test_an_empty_shard_is_a_damaged_place_beside_the_others(run, shards, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "400")  # no path is folded
    Path("train-1.tar").write_bytes(b"")
    result = run(command, shards)
    assert result.returncode == 1
    assert "cannot be read" in result.stdout
    for name in ("train-0.tar", "train-2.tar"):
        assert name in result.stdout


def test_a_field_that_is_rare_says_how_to_look_at_it(run, write_shard):
    shard = write_shard("x.tar", *({"cls": 1} for _ in range(20)), {"cls": 1, "txt": "rare"})
    (row,) = [line for line in run("info", shard).stdout.splitlines() if line.split()[:1] == ["txt"]]
    assert "--shapes" in row
    (row,) = [
        line for line in run("info", shard, "--shapes").stdout.splitlines() if line.split()[:1] == ["txt"]
    ]
    assert "text, 4" in row
