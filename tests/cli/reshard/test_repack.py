"""``mpwds repack``: JPEG images of a smaller size and quality."""

import io
import json

import numpy as np
import PIL.Image
import PIL.ImageCms
import pytest

from mpwds import TarWriter, WebDataset

SIZES = {"wide": (300, 200), "tall": (200, 310), "grey": (200, 200), "cmyk": (200, 200), "small": (90, 64)}


def jpeg(width, height, mode="RGB", **options):
    noise = PIL.Image.effect_noise((20, 20), 120).resize((width, height), PIL.Image.Resampling.BICUBIC)
    with io.BytesIO() as stream:
        noise.convert(mode).save(stream, "JPEG", quality=95, **options)
        return stream.getvalue()


def opened(data):
    image = PIL.Image.open(io.BytesIO(data))
    image.load()
    return image


def shrunk(data, size):
    return opened(data).resize(size, PIL.Image.Resampling.LANCZOS)


@pytest.fixture(name="samples")
def _samples():
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    modes = {"grey": "L", "cmyk": "CMYK"}
    samples = [
        {"__key__": name, "jpg": jpeg(*size, modes.get(name, "RGB"), exif=exif), "txt": b"not one"}
        for name, size in SIZES.items()
    ]
    with TarWriter("in.tar", encoder=False) as sink:
        for sample in samples:
            sink.write(sample)
    return samples


def read(path):
    return {sample["__key__"]: sample for sample in WebDataset(path, shardshuffle=False)}


def test_images_become_smaller_and_all_else_stays(run, samples):
    run("repack", "in.tar", "out.tar", "--short-side", "100", "--quality", "80", "-j", "1")
    made = read("out.tar")
    images = {name: opened(sample["jpg"]) for name, sample in made.items()}
    assert {name: image.size for name, image in images.items()} == {
        "wide": (150, 100),
        "tall": (100, 155),
        "grey": (100, 100),
        "cmyk": (100, 100),
        "small": (90, 64),
    }
    assert [images[name].mode for name in ("wide", "grey", "cmyk")] == ["RGB", "L", "CMYK"]
    assert {image.getexif()[0x0112] for image in images.values()} == {6}
    assert made["small"]["jpg"] == samples[-1]["jpg"]
    assert all(sample["txt"] == b"not one" for sample in made.values())
    small = shrunk(samples[0]["jpg"], (150, 100))
    assert np.abs(np.asarray(images["wide"], int) - np.asarray(small)).mean() < 4


def test_a_table_compares_bytes_and_tells_the_loss(run, samples):
    shown = run("repack", "in.tar", "out.tar", "--short-side", "100", "-j", "1").stdout
    assert "4 of 5 images became smaller" in shown
    assert all(word in shown for word in ("before", "after", " dB", "5 samples"))
    again = run("repack", "in.tar", "out.tar", "--short-side", "100", "-j", "1").stdout
    assert "before " not in again.partition("complete")[0]
    report = run("repack", "in.tar", "b.tar", "--short-side", "100", "-j", "2", "--json").stdout
    figures = json.loads(report)
    assert figures["before"] == sum(len(sample["jpg"]) for sample in samples)
    assert figures["after"] == sum(len(sample["jpg"]) for sample in read("b.tar").values())
    assert (figures["images"], figures["smaller"]) == (5, 4)
    images = {name: opened(sample["jpg"]) for name, sample in read("b.tar").items() if name != "small"}
    before = {sample["__key__"]: sample["jpg"] for sample in samples}
    smaller = {name: shrunk(before[name], image.size) for name, image in images.items()}
    errors = [np.asarray(images[name], int) - np.asarray(smaller[name]) for name in images]
    squared = np.mean(np.concatenate([error.ravel() for error in errors]) ** 2)
    assert figures["psnr"] == pytest.approx(10 * np.log10(255**2 / squared), abs=0.01)


def test_restart_markers_change_no_pixel(run, samples):
    run("repack", "in.tar", "plain.tar", "--short-side", "100", "-j", "1")
    run("repack", "in.tar", "marked.tar", "--short-side", "100", "-j", "1", "--restart-markers")
    plain, marked = read("plain.tar")["wide"]["jpg"], read("marked.tar")["wide"]["jpg"]
    assert (plain.count(b"\xff\xd0"), marked.count(b"\xff\xd0") > 0) == (0, True)
    assert np.array_equal(opened(plain), opened(marked))


@pytest.mark.usefixtures("samples")
def test_other_fields_and_options_are_other_work(run, refused):
    run("repack", "in.tar", "out.tar", "--fields", "png", "-j", "1")
    assert {opened(sample["jpg"]).size for sample in read("out.tar").values()} == set(SIZES.values())
    assert "--force" in refused("repack", "in.tar", "out.tar", "--short-side", "100", "-j", "1")


def test_images_that_are_no_jpeg_stay_whatever_their_field_is_called(run, samples):
    with io.BytesIO() as stream:
        opened(samples[0]["jpg"]).save(stream, "PNG")
        png = stream.getvalue()
    with TarWriter("mixed.tar", encoder=False) as sink:
        sink.write(samples[0])
        sink.write({"__key__": "png", "jpg": png})
    run("repack", "mixed.tar", "out.tar", "--short-side", "100", "-j", "1")
    made = read("out.tar")
    assert made["png"]["jpg"] == png
    assert opened(made["wide"]["jpg"]).size == (150, 100)


def test_profiles_stay_and_so_do_images_that_would_grow(run):
    profile = PIL.ImageCms.ImageCmsProfile(PIL.ImageCms.createProfile("sRGB")).tobytes()
    with io.BytesIO() as stream:
        opened(jpeg(300, 300)).save(stream, "JPEG", quality=5)
        tiny = stream.getvalue()
    with TarWriter("in.tar", encoder=False) as sink:
        sink.write({"__key__": "profile", "jpg": jpeg(300, 200, icc_profile=profile)})
        sink.write({"__key__": "tiny", "jpg": tiny})
    run("repack", "in.tar", "out.tar", "--short-side", "250", "--quality", "100", "-j", "1")
    made = read("out.tar")
    run("repack", "in.tar", "small.tar", "--short-side", "100", "-j", "1")
    assert opened(read("small.tar")["profile"]["jpg"]).info["icc_profile"] == profile
    assert made["tiny"]["jpg"] == tiny


def test_an_image_stays_if_its_exif_data_take_several_segments(run):
    data = jpeg(200, 150)
    segment = b"\xff\xe1" + (40_008).to_bytes(2, "big") + b"Exif\0\0" + bytes(40_000)
    data = data[:2] + segment * 2 + data[2:]
    with TarWriter("in.tar", encoder=False) as sink:
        sink.write({"__key__": "a", "jpg": data})
    run("repack", "in.tar", "out.tar", "--short-side", "100", "-j", "1")
    assert read("out.tar")["a"]["jpg"] == data


@pytest.mark.usefixtures("samples")
def test_fields_may_have_spaces_and_dots_and_must_be_there(run, refused):
    made = run("repack", "in.tar", "out.tar", "--fields", " png, .jpg", "--short-side", "100", "-j", "1")
    assert "4 of 5 images became smaller" in made.stdout
    nothing = run("repack", "in.tar", "other.tar", "--fields", "png", "-j", "1").stdout
    assert "no sample has a JPEG image in these fields: name others by --fields" in nothing
    assert "names no field" in refused("repack", "in.tar", "b.tar", "--fields", "", "-j", "1")


def test_a_damaged_image_stops_the_command_or_is_left_out(run, refused, samples):
    with TarWriter("bad.tar", encoder=False) as sink:
        sink.write(samples[0])
        sink.write({"__key__": "bad", "jpg": samples[1]["jpg"][:600]})
    stopped = refused("repack", "bad.tar", "out.tar", "-j", "1")
    assert 'field "jpg" of sample "bad" in bad.tar cannot be decoded' in " ".join(stopped.split())
    run("repack", "bad.tar", "out.tar", "-j", "1", "--on-error", "skip")
    assert list(read("out.tar")) == ["wide"]
