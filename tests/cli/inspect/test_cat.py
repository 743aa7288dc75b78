import base64
import contextlib
import io
import os
import pty
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mpwds.cli.main import main
from mpwds.pipeline.sources.samples import read_samples


@pytest.fixture
def cat(capfdbinary):
    """Runs ``mpwds cat`` in this process; its output is bytes."""

    def cat(*arguments):
        returncode = main(["cat", *map(str, arguments)])
        return subprocess.CompletedProcess(arguments, returncode, *capfdbinary.readouterr())

    return cat


def test_writes_fields_as_they_are_stored(cat, shard, samples):
    assert cat(shard, "-f", "jpg").stdout == b"".join(sample["jpg"] for sample in samples[:8])


def test_lines_end_fields(cat, shard):
    assert cat(shard, "-f", "cls", "--lines").stdout == b"0\n1\n2\n0\n1\n2\n0\n1\n"


def test_json_decodes_what_json_can_hold(run, shard, samples, objects):
    (found,) = objects(run("cat", shard, "--json", "-n", "4").stdout)
    assert found == {
        "__key__": "n1/0004",
        "cls": 1,
        "jpg": {"base64": base64.b64encode(samples[4]["jpg"]).decode()},
        "json": {"width": 20, "source": "scan"},
        "txt": "sample number 4",
    }


def test_tar_is_a_shard_of_the_chosen_samples(cat, shards, samples):
    archive = cat(shards, "--tar", "-k", "n2/*", "-f", "jpg,cls").stdout
    found = _read(archive)
    assert [sample["__key__"] for sample in found] == [f"n2/{number:04d}" for number in range(2, 24, 3)]
    assert [sample["jpg"] for sample in found] == [sample["jpg"] for sample in samples[2::3]]
    assert set(found[0]) == {"__key__", "__url__", "jpg", "cls"}


def _read(archive):
    return [sample for _, _, sample in read_samples("x.tar", open=lambda url, offset: io.BytesIO(archive))]


def test_tar_refuses_two_samples_of_one_key_side_by_side(cat, shard):
    result = cat(shard, shard, "--tar", "-k", "n2/0002")
    assert result.returncode == 1
    assert b"the sample before it has the same key, so the two would be read as one" in result.stderr


def test_tar_keeps_members_as_they_are(cat, shard):
    assert shard.read_bytes() == cat(shard, "--tar").stdout


def test_damaged_samples_are_left_out_and_named(cat, shard, flipped, entries):
    flipped(shard, entries(shard)[9].offset)
    result = cat(shard, "-f", "txt", "--lines")
    texts = result.stdout.decode().splitlines()
    assert texts == [f"sample number {number}" for number in (0, 1, 3, 4, 5, 6, 7)]
    assert result.returncode == 1
    assert b'sample "n2/0002": left out' in result.stderr


def test_a_reader_that_goes_away_ends_it_quietly(command, shard):
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run([*command, "cat", str(shard)], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")


def on_a_terminal(command, *arguments):
    master, slave = pty.openpty()
    with subprocess.Popen([*command, *map(str, arguments)], stdout=slave, stderr=subprocess.PIPE) as process:
        os.close(slave)
        shown = b""
        with open(master, "rb", buffering=0) as terminal, contextlib.suppress(OSError):  # the end is closed
            while piece := terminal.read(4096):
                shown += piece
        errors = process.stderr.read()
    return shown, errors


def test_a_terminal_gets_no_control_characters(command, tar):
    shown, _ = on_a_terminal(command, "cat", tar("x.tar", {"a.txt": b"red\x1b[31m\nline"}))
    assert b"\x1b" not in shown
    assert b"\nline" in shown


@pytest.mark.parametrize("options", [["-f", "jpg"], ["--tar"]])
def test_a_terminal_gets_no_bytes_that_are_not_text(command, shard, options):
    shown, errors = on_a_terminal(command, "cat", shard, *options)
    assert shown == b""
    assert b"redirect the output" in errors


def test_whole_shards_are_joined(cat, shards, entries):
    Path("joined.tar").write_bytes(cat(shards, "--shards").stdout)
    each = [entry.blocks for number in range(3) for entry in entries(Path(f"train-{number}.tar"))]
    assert [entry.blocks for entry in entries(Path("joined.tar"))] == each


def test_json_has_arrays_as_lists_and_what_json_cannot_hold_in_base64(run, write_shard, objects):
    shard = write_shard("x.tar", {"npy": np.arange(6).reshape(2, 3), "json": b'{"a": NaN}'})
    (found,) = objects(run("cat", shard, "--json").stdout)
    assert found["npy"] == [[0, 1, 2], [3, 4, 5]]
    assert found["json"] == {"base64": base64.b64encode(b'{"a": NaN}').decode()}
