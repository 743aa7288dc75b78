import pytest


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


def test_a_field_that_cannot_be_read_is_counted_apart(run, tar, objects):
    shard = tar("x.tar", {"a.json": b"{}", "b.json": b"{"})
    assert objects(run("info", shard, "--json").stdout)[-1]["fields"]["json"]["kinds"]["unreadable"] == 1


def test_the_table_names_everything(run, shards, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")  # the shards' paths may be long
    output = run("info", shards).stdout
    for text in ("train-2.tar", "JPEG image, RGB, 20 x 16-", "int, 0 to 2", "3 shards, 24 samples"):
        assert text in output


def test_damage_is_shown_and_is_a_status(run, shard, flipped, entries):
    flipped(shard, entries(shard)[5].offset)
    result = run("info", shard)
    assert result.returncode == 1
    assert "checksum" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("words", [("info",), ("verify", "--decode")])
def test_several_processes_find_the_same(run, shards, shard, flipped, nothing_left, words):
    flipped(shard, 3)
    alone = run(*words, shards, "--json").stdout
    assert alone
    assert run(*words, shards, "--json", "-j", "3").stdout == alone


@pytest.mark.parametrize("command", ["info", "ls"])
def test_an_empty_shard_is_a_damaged_place_beside_the_others(run, shards, tmp_path, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "400")  # no path is folded
    (tmp_path / "train-1.tar").write_bytes(b"")
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
