import re
from pathlib import Path

import pytest

from mpwds.cli.main import main

FORMATS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP", "gif": "GIF", "bmp": "BMP"}
MODES = {"jpg": "CMYK", "png": "RGBA", "gif": "P"}


@pytest.fixture
def pictures(picture, saved):
    """Makes samples of three classes, in images of every extension, of many sizes and modes."""

    def pictures(count):
        samples = []
        for index in range(count):
            extension, image_format = list(FORMATS.items())[index // 3 % len(FORMATS)]
            image = picture(index % 3, width=10 + index, height=50 - index % 40)
            image = image.convert(MODES.get(extension, "RGB"))
            label = (5, 7, 1_000_000)[index % 3]
            samples.append({extension: saved(image, image_format), "cls": label, "txt": f"picture {index}"})
        return samples

    return pictures


def two_classes(count):
    """Samples to count; nobody will look at their images."""
    return [{"png": b"", "cls": index % 2} for index in range(count)]


@pytest.mark.slow
def test_learns_images_of_all_kinds_from_one_shard_with_two_workers(run, write_shard, pictures):
    shard = write_shard("own.tar", *pictures(90))
    result = run("demo", "--data", shard, "--size", 16, "--epochs", 4, "--batch-size", 16)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"data       {shard} (1 shard)" in result.stdout
    found = re.search(r"samples    (\d+) to train on, (\d+) held out, 3 classes", result.stdout)
    assert int(found[1]) + int(found[2]) == 90
    assert 3 <= int(found[2]) <= 18
    assert "accuracy   100.0%" in result.stdout


@pytest.mark.slow
def test_the_held_out_samples_may_have_shards_of_their_own(run, write_shard, pictures):
    for number in range(2):
        write_shard(f"own-{number}.tar", *pictures(20))
    test = write_shard("test.tar", *pictures(7))
    result = run("demo", "--data", "own-{0..1}.tar", "--test", test, "--size", 8, "--epochs", 1)
    assert (result.returncode, result.stderr) == (0, "")
    assert "(3 shards)" in result.stdout
    assert "samples    40 to train on, 7 held out, 3 classes" in result.stdout


def test_an_image_that_cannot_be_decoded_is_named(refused, write_shard, pictures):
    shard = write_shard("own.tar", *pictures(40), {"png": b"no image", "cls": 0})
    assert refused("demo", "--data", shard, "--size", 8) == (
        f'mpwds demo: error: field "png" of sample "0040" in {shard} cannot be decoded: '
        "UnidentifiedImageError: cannot identify image file (8 bytes)\n"
    )


BAD_SHARDS = {
    "no image": (
        [{"txt": "a", "cls": 1}],
        "no image (jpg, jpeg, png,",
        "holds cls, txt; in map(_label), on sample",
    ),
    "no label": ([{"png": b"", "txt": "a"}], "no label (cls): the sample holds", 'on sample "0000" of '),
    "label is a word": ([{"png": b"", "cls": b"cat"}], "the label in cls is b'cat'", "a whole number from 0"),
    "label below 0": ([{"png": b"", "cls": -1}], "the label in cls is b'-1'", "a whole number from 0"),
    "label too large": ([{"png": b"", "cls": 1 << 63}], "the label in cls is", "a whole number from 0"),
    "no samples": ([], "--data", "there are no samples in it"),
    "too few samples": (two_classes(2), "of its 2 samples", "or name the held-out shards with --test"),
    "one class": ([{"png": b"", "cls": 3}] * 50, "to train on have the label 3", "nothing to learn"),
}


@pytest.mark.parametrize("case", BAD_SHARDS)
def test_shards_that_nothing_can_be_learned_from_are_refused(case, write_shard, capsys):
    samples, what, more = BAD_SHARDS[case]
    assert main(["demo", "--workers", "0", "--data", str(write_shard("own.tar", *samples))]) == 1
    output = capsys.readouterr()
    assert what in output.err
    assert more in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "there are no samples in it"),
        ([{"png": b"", "cls": 7}], "none of its 1 held-out samples has a label"),
    ],
)
def test_a_test_set_without_samples_of_the_classes_is_refused(refused, write_shard, samples, message):
    train, test = write_shard("own.tar", *two_classes(4)), write_shard("test.tar", *samples)
    assert f"--test {test}: {message}" in refused("demo", "--workers", 0, "--data", train, "--test", test)


def test_a_missing_shard_is_named(refused, write_shard):
    write_shard("own-0.tar", *two_classes(2))
    errors = refused("demo", "--data", "own-{0..1}.tar")
    assert errors == "mpwds demo: error: own-1.tar: there is no such shard\n"


def test_a_file_that_is_no_tar_is_named(refused):
    Path("own.tar").write_text("all work and no play makes jack a dull boy\n" * 100)
    errors = refused("demo", "--workers", 0, "--data", "own.tar")
    assert "own.tar has checksum" in errors
    assert "not a tar file" in errors
