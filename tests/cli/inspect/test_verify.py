import gzip
import hashlib
import json
import subprocess
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import soundfile

from mpwds.cli.inspect.checking import check_checksums
from tests.cli.inspect.test_describing import file


@pytest.fixture
def problems(run, objects):
    """Runs ``mpwds verify``; returns its problems as (key, field, what)."""

    def problems(*arguments):
        result = run("verify", *arguments, "--json")
        *listed, totals = objects(result.stdout)
        found = [(each["key"], each["field"], each["problem"]) for each in listed]
        assert (result.returncode, totals["problems"]) == (bool(found), len(found))
        return found

    return problems


def test_sound_shards_have_no_problems(run, shards):
    result = run("verify", shards, "--decode")
    assert (result.returncode, result.stdout) == (0, "3 shards, 24 samples: no problems\n")


def test_a_damaged_header_is_a_problem_of_the_sample_it_is_in(problems, shard, flipped, entries):
    flipped(shard, entries(shard)[9].offset)
    ((key, field, what),) = problems(shard)
    assert (key, field) == ("n2/0002", "")
    assert "checksum" in what


def test_a_key_that_occurs_twice_is_a_problem(problems, shard, rewritten, entries):
    rewritten(shard, lambda entries: entries + entries[4:8])
    first = entries(shard)[4].offset
    assert problems(shard) == [("n1/0001", "", f"the sample at offset {first} has the same key")]


def test_a_field_that_occurs_twice_is_a_problem(problems, shard, rewritten):
    rewritten(shard, lambda entries: [*entries[:3], entries[2], *entries[3:]])
    ((key, field, what),) = problems(shard)
    assert (key, field) == ("n0/0000", "json")
    assert "already" in what


def test_a_sample_that_lacks_what_others_have_is_a_problem(problems, shards, shard, rewritten):
    rewritten(shard, lambda entries: entries[:7] + entries[8:])
    assert problems(shards) == [("n1/0001", "", "it lacks txt, which nearly all other samples have")]


def test_a_field_that_only_some_samples_have_is_none(problems, write_shard):
    shard = write_shard(
        "x.tar", *({"cls": 1, **({"txt": "x"} if number % 3 else {})} for number in range(30))
    )
    assert problems(shard) == []


NOISE = np.random.default_rng(0)


def saved(image_format):
    image = PIL.Image.fromarray(NOISE.integers(0, 255, (20, 20, 3), np.uint8))
    return file(lambda stream: image.save(stream, image_format))


def sound(audio_format):
    waveform = NOISE.uniform(-1, 1, 4000)
    return file(lambda stream: soundfile.write(stream, waveform, 8000, format=audio_format))


FILES = {
    "png": saved("PNG"),
    "json.gz": gzip.compress(b'{"a": [1, 2, 3]}' * 50),
    "npz": file(lambda stream: np.savez_compressed(stream, a=np.arange(1000))),
    "ogg": sound("OGG"),
}


@pytest.mark.parametrize("extension", FILES)
def test_checksums_of_formats_show_damage_without_decoding(problems, tar, extension):
    data = bytearray(FILES[extension])
    assert problems(tar("x.tar", {f"a.{extension}": bytes(data)})) == []
    data[len(data) // 2] ^= 1
    ((key, field, _),) = problems(tar("x.tar", {f"a.{extension}": bytes(data)}))
    assert (key, field) == ("a", extension)


@pytest.mark.parametrize("extension", [*FILES, "wav"])
def test_files_that_are_cut_off_show_without_decoding(problems, tar, extension):
    data = FILES.get(extension) or sound("WAV")
    assert problems(tar("x.tar", {f"a.{extension}": data[: len(data) * 2 // 3]}))[0][:2] == ("a", extension)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("json", b'{"a": '),
        ("cls", b"seven"),
        ("txt", b"\xff\xfe\xff"),
        ("npy", b"\x93NUMPY"),
        ("jpg", saved("JPEG")[:300]),
        ("flac", sound("FLAC")[:500]),
    ],
)
def test_decoding_finds_more(problems, tar, name, data):
    shard = tar("x.tar", {f"a.{name}": data})
    assert problems(shard) == []
    assert problems(shard, "--decode")[0][:2] == ("a", name)


def test_pickles_are_not_loaded_and_no_problem(problems, tar):
    assert problems(tar("x.tar", {"a.pkl": b"cos\nsystem\n(S'false'\ntR."}), "--decode") == []


def test_zeros_that_inflate_without_end_take_no_memory():
    check_checksums(gzip.compress(bytes(1 << 26)))


def test_a_missing_shard_is_a_problem_and_the_others_are_verified(problems, run, shards):
    ((_, _, what),) = problems(shards, Path("no.tar"))
    assert what == "it cannot be read: No such file or directory"


def test_keys_in_several_shards_are_a_note_alone(run, write_shard):
    first, second = (write_shard(name, {"cls": 1}, {"cls": 2}) for name in ("a.tar", "b.tar"))
    result = run("verify", first, second)
    assert result.returncode == 0
    assert "keys that occur in more than one shard: 2" in result.stdout


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/0"])
def test_standard_input_is_read_here_whatever_the_number_of_jobs(command, shard, name):
    with open(shard, "rb") as given:
        done = subprocess.run([*command, "verify", name, "-j", "2"], stdin=given, capture_output=True)
    assert (done.returncode, b"no problems" in done.stdout) == (0, True)


def test_json_ends_with_totals(run, shards, shard, flipped, entries, write_shard, objects):
    flipped(shard, entries(shard)[9].offset)
    twice = write_shard("x.tar", {"cls": 1}), write_shard("y.tar", {"cls": 1})
    assert objects(run("verify", shards, *twice, "--json").stdout)[-1] == {
        "shards": 5,
        "samples": 26,
        "problems": 1,
        "damaged_shards": 1,
        "keys_in_several_shards": 1,
    }


def test_problems_of_a_shard_are_in_the_order_of_their_places(
    problems, shards, shard, rewritten, flipped, entries
):
    rewritten(shard, lambda entries: entries[:7] + entries[8:])
    flipped(shard, entries(shard)[20].offset)
    assert [(key, what[:15]) for key, _, what in problems(shards)] == [
        ("n1/0001", "it lacks txt, w"),
        ("n2/0005", "tar header at o"),
    ]


def test_of_many_problems_the_first_are_listed_and_all_are_counted(run, write_shard, objects, monkeypatch):
    monkeypatch.setattr("mpwds.cli.inspect.checking._MOST_KEPT", 3)
    few = write_shard("x.tar", *({"cls": 1} if index < 5 else {"cls": 1, "txt": ""} for index in range(100)))
    bad = write_shard("y.tar", *({"cls": b"one", "txt": ""} for _ in range(4)))
    *listed, totals = objects(run("verify", few, bad, "--decode", "--json").stdout)
    assert [each["shard"] for each in listed] == [str(few)] * 3 + [str(bad)] * 3
    assert totals["problems"] == 9
    (copy,) = objects(run("repair", few, "-o", few.parent / "z.tar", "--json").stdout)
    assert (copy["left_out"], copy["left_out_keys"]) == (5, ["0000", "0001", "0002"])


def test_of_many_sets_of_fields_the_first_are_compared(problems, write_shard, monkeypatch):
    samples = [{"cls": 1, "txt": ""}, *([{"cls": 1}] + [{"cls": 1, "txt": ""}] * 30)]
    shard = write_shard("x.tar", *samples)
    assert [key for key, *_ in problems(shard)] == ["0001"]
    monkeypatch.setattr("mpwds.cli.inspect.checking._MOST_SETS", 1)
    assert problems(shard) == []
    shard = write_shard("y.tar", *samples, *({"cls": 1, "txt": "", "json": 1} for _ in range(9)))
    assert problems(shard) == []


def test_what_a_description_says_is_compared(problems, shard):
    data = shard.read_bytes()
    entry = {
        "url": shard.name,
        "nsamples": 8,
        "filesize": len(data),
        "md5sum": hashlib.md5(data).hexdigest(),
    }
    description = Path("dataset.json")

    def describe(**changes):
        description.write_text(json.dumps({"wids_version": 1, "shardlist": [{**entry, **changes}]}))
        return problems(description)

    assert describe() == []
    assert describe(nsamples=9) == [("", "", "it has 8 samples, its description says 9")]
    assert describe(filesize=1) == [("", "", f"it has {len(data)} bytes, its description says 1")]
    assert "MD5" in describe(md5sum="0" * 32)[0][2]
    assert describe(filesize=1, md5sum=None) == describe(filesize=1)
    assert describe(filesize=None, md5sum="0" * 32) == describe(md5sum="0" * 32)


def test_the_table_shows_the_place(run, shard, flipped, entries, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    flipped(shard, entries(shard)[4].offset)
    output = run("verify", shard).stdout
    assert f"{entries(shard)[3].offset + 1024:,}" in output
    assert "more; --json lists" not in output
    assert "1 problem in 1 shard" in output


def test_the_table_has_the_first_problems(run, tar, monkeypatch):
    monkeypatch.setattr("mpwds.cli.inspect.shards._MOST_ROWS", 2)
    shard = tar("x.tar", {f"{key}.json": b"{" for key in "abcde"})
    output = run("verify", shard, "--decode").stdout
    assert [key for key in "abcde" if f" {key}: json " in output] == ["a", "b"]
    assert "and 3 more; --json lists up to 1,000 of each shard" in output


@pytest.mark.parametrize(("cut", "chunk"), [(20, 8), (40, 33), (50, 33)])
def test_a_cut_image_says_in_which_chunk(cut, chunk):
    with pytest.raises(ValueError, match=f"^the PNG image is cut off in its chunk at byte {chunk}$"):
        check_checksums(FILES["png"][:cut])


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_decoding_finds_images_whose_decoder_warns_of_damage(problems, tar, mode):
    pytest.importorskip("simplejpeg")
    image = PIL.Image.fromarray(NOISE.integers(0, 255, (200, 200, 3), np.uint8)).convert(mode)
    data = bytearray(file(lambda stream: image.save(stream, "JPEG")))
    data[-400:-398] = b"\xff\xd0"  # begins an interval where there is none
    ((key, field, _),) = problems(tar("x.tar", {"a.jpg": bytes(data)}), "--decode")
    assert (key, field) == ("a", "jpg")
