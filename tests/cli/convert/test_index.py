"""``mpwds index``: descriptions of indexed datasets."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

import mpwds
from mpwds.viewing.wording import size
from tests.cli.running import signalled
from tests.loader.faults.processes import wait_until_gone


@pytest.fixture
def shards():
    """Two shards of three samples in the current folder; returns their pattern."""
    with mpwds.ShardWriter("x-%d.tar", maxcount=3, verbose=0, mtime=0) as sink:
        for number in range(6):
            sink.write({"__key__": f"{number}", "cls": number, "bin": b"\x1b[2J" + bytes(100)})
    return "x-{0..1}.tar"


@pytest.fixture
def description(run, shards):
    assert run("index", "create", shards, "-o", "all.json", "--name", "mine").returncode == 0
    return Path("all.json")


def test_a_description_counts_the_samples_of_each_shard(description):
    found = json.loads(description.read_text())
    assert [(shard["url"], shard["nsamples"]) for shard in found["shardlist"]] == [
        ("x-0.tar", 3),
        ("x-1.tar", 3),
    ]
    assert found["name"] == "mine"
    assert "offsets" not in found["shardlist"][0]  # unless they are asked for


def test_a_list_of_shards_comes_from_standard_input_and_goes_to_standard_output(command, shards):
    made = subprocess.run(
        [*command, "index", "create", "-", "-o", "-", "--offsets"],
        input=b"x-0.tar\n",
        capture_output=True,
        check=True,
    )
    (shard,) = json.loads(made.stdout)["shardlist"]
    assert (shard["url"], shard["nsamples"]) == ("x-0.tar", 3)
    assert "offsets" in shard


def test_a_description_that_exists_is_replaced_only_by_force(run, shards, description):
    before = description.read_bytes()
    assert run("index", "create", shards, "-o", description).returncode == 1
    assert description.read_bytes() == before
    assert run("index", "create", shards, "-o", description, "--force", "--name", "other").returncode == 0
    assert json.loads(description.read_text())["name"] == "other"


def test_a_shard_is_not_replaced_by_its_description(refused, write_shard):
    shard = write_shard("x.tar", {"cls": 1})
    before = shard.read_bytes()
    assert "cannot be written as well" in refused("index", "create", shard, "-o", shard, "--force", status=2)
    assert shard.read_bytes() == before


def test_the_binary_form_is_written_where_the_name_asks_for_it(run, shards, description):
    assert run("index", "create", shards, "-o", "made.shardindex", "--name", "mine").returncode == 0
    told = run("index", "convert", description, "converted.shardindex", "--json").stdout
    assert json.loads(told) == {"file": "converted.shardindex", "shards": 2, "samples": 6}
    (totals,) = json.loads(run("index", "info", "--json", "all.json").stdout)
    for name in ("made.shardindex", "converted.shardindex"):
        assert Path(name).read_bytes()[:8] == b"mpwdsix1"
        assert json.loads(run("index", "info", "--json", name).stdout) == [{**totals, "file": name}]
        assert json.loads(run("index", "sample", name, 4, "--json").stdout)["cls"] == {"bytes": 1}
        assert json.loads(run("ls", name, "--json").stdout.splitlines()[0])
    assert run("index", "convert", description, "made.shardindex").returncode == 1


def test_a_binary_form_is_updated_as_a_binary_form(run, shards):
    run("index", "create", shards, "-o", "x.shardindex")
    assert run("index", "update", "x.shardindex", "--name", "new").returncode == 0
    assert json.loads(run("index", "info", "--json", "x.shardindex").stdout)[0]["name"] == "new"


def test_info_shows_totals(run, description):
    shown = run("index", "info", description).stdout
    assert [line.split()[1:] for line in shown.splitlines() if "samples" in line.split()] == [["6"]]
    nbytes = sum(path.stat().st_size for path in description.parent.glob("x-*.tar"))
    assert f"size of a sample  {size(nbytes / 6)}\n" in shown
    assert "mine" in run("index", "info", "--table", description).stdout
    (figures,) = json.loads(run("index", "info", "--json", description).stdout)
    assert (figures["shards"], figures["samples"]) == (2, 6)


def test_update_changes_names_and_keeps_the_earlier_file(run, description):
    before = description.read_bytes()
    assert run("index", "update", description, "--name", "new", "--dir", "https://host/data").returncode == 0
    found = json.loads(description.read_text())
    assert (found["name"], found["shardlist"][1]["url"]) == ("new", "https://host/data/x-1.tar")
    assert (description.parent / "all.json.bak").read_bytes() == before


def test_sample_shows_fields_without_control_characters(run, description):
    shown = run("index", "sample", description, 4).stdout
    assert "\x1b" not in shown
    assert ["__key__", "4"] in [line.split() for line in shown.splitlines()]
    assert json.loads(run("index", "sample", description, 4, "--json").stdout)["bin"] == {"bytes": 104}


def test_sample_writes_a_field_as_it_is(command, description):
    written = subprocess.run(
        [*command, "index", "sample", description, "5", "--cat", "bin"], capture_output=True, check=True
    )
    assert written.stdout == b"\x1b[2J" + bytes(100)


@pytest.mark.usefixtures("description")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sample all.json 6", "no sample 6"),
        ("sample all.json 0 --cat jpg", "the sample has __key__"),
        ("create pipe:cat -o y.json", "pipe:cat: no reader runs a command that"),
        ("update all.json -D -d x", "--dir names a folder"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(refused, words, message):
    assert message in refused("index", *words.split(), status=2)


def test_errors_name_the_whole_command(run):
    assert run("index", "info", "no.json").stderr.startswith("mpwds index info: error: ")
    assert "No such command" in run("index", "creat").stderr


def test_a_sample_of_a_shard_elsewhere_is_shown(run, web, description):
    web.files = {f"/{path.name}": path.read_bytes() for path in Path().glob("*.tar")}
    run("index", "update", description, "--base", web.url(""))
    assert json.loads(run("index", "sample", description, 5, "--json").stdout)["__key__"] == "5"


def test_a_folder_stands_for_its_shards(run, shards, description):
    assert run("index", "create", ".", "-o", "x.json", "--name", "mine").returncode == 0
    assert Path("x.json").read_text() == description.read_text()


def test_sample_shows_text_that_is_not_ascii(run, write_shard):
    shard = write_shard("x.tar", {"txt": "— größe" + "ß" * 40})
    shown = run("index", "sample", shard).stdout
    assert "— größe" in shown
    assert "\N{REPLACEMENT CHARACTER}" not in shown


def test_ctrl_c_does_not_wait_for_a_shard(command, write_shard):
    write_shard("x.tar", {"cls": 1})
    Path("slow").write_text("cat x.tar; echo $$ > begun; exec sleep 600")
    words, begun = [*command, "index", "create", "s3://x.tar", "-o", "x.json"], Path("begun")
    rewritten = {**os.environ, "WDS_REWRITE": "s3://=pipe:sh slow "}
    assert signalled(lambda: begun.exists() and begun.read_text(), words, signal.SIGINT, env=rewritten) == 130
    wait_until_gone([int(begun.read_text())])
    assert not Path("x.json").exists()


def test_what_is_said_about_a_dataset_is_in_its_description(run, shards):
    Path("about.txt").write_text("ten cats")
    options = ["--name", "cats", "--info", "about.txt", "--base", "https://host/data", "--json"]
    told = json.loads(run("index", "create", shards, "-o", "new/folder/all.json", *options).stdout)
    assert told == {"file": "new/folder/all.json", "shards": 2, "samples": 6}
    found = json.loads(Path("new/folder/all.json").read_text())
    assert (found["name"], found["info"], found["base"]) == ("cats", "ten cats", "https://host/data")
    assert [shard["url"] for shard in found["shardlist"]] == ["../../x-0.tar", "../../x-1.tar"]


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        (["--info", "ten cats"], {"info": "ten cats"}),
        (["--base", "https://host/"], {"base": "https://host/"}),
        (["--keep"], {"keep": True}),
        (["--nokeep"], {"keep": False}),
    ],
)
def test_update_changes_what_is_said_alone(run, description, options, changed):
    before = json.loads(description.read_text())
    assert run("index", "update", description, *options).returncode == 0
    assert json.loads(description.read_text()) == {**before, **changed}


@pytest.mark.parametrize(
    ("option", "base", "urls"),
    [
        ("--nodir", None, ["x-0.tar", "x-1.tar"]),
        ("--rebase", "https://host/data", ["x-0.tar", "x-1.tar"]),
    ],
)
def test_update_takes_folders_from_the_names_of_shards(run, description, option, base, urls):
    run("index", "update", description, "--dir", "https://host/data")
    assert run("index", "update", description, option).returncode == 0
    found = json.loads(description.read_text())
    assert [shard["url"] for shard in found["shardlist"]] == urls
    assert (found.get("base") or "").rstrip("/") == (base or "")


def test_a_table_has_a_line_for_each_description(run, description, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # no path is folded
    lines = run("index", "info", "--table", description, description).stdout.splitlines()
    assert lines[0].split()[:5] == ["file", "name", "shards", "samples", "size"]
    assert [line.split()[1:4] for line in lines if str(description) in line] == [["mine", "2", "6"]]
