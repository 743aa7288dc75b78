import io
import wave
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import mpwds
from mpwds.cli.inspect.selection import SampleSelection
from mpwds.cli.inspect.sheet import draw
from mpwds.cli.options import Chosen
from tests.cli.inspect.test_describing import video
from tests.cli.inspect.test_verify import sound


@pytest.fixture
def sheet(run):
    """The sections and the histograms of shards, with options as for ``Chosen``."""

    def sheet(pattern, limit=None, **options):
        return draw(SampleSelection([str(pattern)], Chosen(**options), limit))

    return sheet


def test_images_have_labels(sheet, shards):
    ((title, shown), *_), _ = sheet(shards)
    assert title == "jpg of the first 24 samples"
    assert shown.kind == "image"
    assert [sample.label for sample in shown.samples[:4]] == ["0", "1", "2", "0"]
    assert shown.samples[3].pixels.shape == (20, 19, 3)


def test_without_a_label_the_key_is_shown(sheet, tar):
    assert sheet(tar("x.tar", {"a/one.txt": b"text"}))[0][0][1].samples[0].label == "one"


@pytest.mark.parametrize(
    ("name", "content", "label"),
    [
        ("x.classes.json", '["cat", "dog"]', "dog"),
        ("x.cls.classes.json", '["cat", "dog"]', "dog"),
        ("y.classes.json", '["cat", "dog"]', "1"),
        ("classes.json", '["cat", "dog"]', "dog"),
        ("cls.classes.json", '["owl", "fox"]', "fox"),
        ("classes.json", '["only one"]', "1"),
        ("classes.json", "no json", "1"),
        ("classes.json", '{"dog": 0, "cat": 1}', "1"),
        ("id.classes.json", '["cat", "dog"]', "1"),
    ],
)
def test_classes_are_shown_by_the_names_that_lie_beside_the_shards(sheet, tar, name, content, label):
    shard = tar("x-007.tar", {"a.txt": b"text", "a.cls": b"1\n"})
    (shard.parent / name).write_text(content)
    assert sheet(shard)[0][0][1].samples[0].label == label


def test_sound_and_text_are_shown_too(sheet, write_shard):
    shard = write_shard("x.tar", *({"wav": sound("WAV"), "txt": f"text {number}"} for number in range(30)))
    kinds = {title.split()[0]: shown for title, shown in sheet(shard)[0]}
    assert kinds["wav"].kind == "waveform"
    assert kinds["txt"].samples[0].text == "text 0"
    assert len(kinds["txt"].samples) == 8


def test_the_first_frame_of_a_video_is_shown(sheet, tar):
    shown = sheet(tar("x.tar", {"a.mp4": video("mp4", "mpeg4"), "a.txt": b"text"}))[0][0][1]
    assert shown.kind == "image"
    assert shown.samples[0].pixels.shape == (16, 32, 3)
    red, green, blue = np.asarray(shown.samples[0].pixels).reshape(-1, 3).mean(0)
    assert red > 150 > 50 > max(green, blue)


def test_histograms_show_labels_and_sizes_of_all_chosen_samples(sheet, shards, samples):
    figures = {each.path: each for each in sheet(shards, limit=20)[1]}
    assert figures["cls"].elements == 20
    assert figures["cls"].bins[:3] == (7, 7, 6)
    sizes = [len(sample["jpg"]) for sample in samples[:20]]
    assert (figures["bytes of jpg"].low, figures["bytes of jpg"].high) == (min(sizes), max(sizes))


def test_fields_and_samples_can_be_chosen(sheet, shards):
    sections, figures = sheet(shards, fields="txt", where="cls == 2", number="10:")
    assert [title for title, _ in sections] == ["txt of the first 5 samples"]
    assert [each.path for each in figures] == ["bytes of txt"]


def test_an_image_that_cannot_be_decoded_is_named_and_the_others_are_shown(sheet, capsys, tar, samples):
    shard = tar("x.tar", {"a.jpg": samples[0]["jpg"], "b.jpg": b"no image", "c.jpg": samples[1]["jpg"]})
    selection = SampleSelection([str(shard)], Chosen())
    sections, _ = draw(selection)
    assert len(sections[0][1].samples) == 2
    assert selection.problems == 1
    assert 'sample "b", field "jpg"' in capsys.readouterr().err


def test_saves_a_contact_sheet(run, shards):
    result = run("show", shards, "--save", "sheet.png")
    assert (result.returncode, result.stdout) == (0, "wrote sheet.png\n")
    with PIL.Image.open(Path("sheet.png")) as sheet:
        assert sheet.width == 880


def test_prints_pictures_where_there_are_colours(run, shards, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    assert "▀" in run("show", shards).stdout


def test_prints_labels_texts_and_histograms_without_colours(run, shards):
    output = run("show", shards).stdout
    for text in ("labels: 0, 1, 2, 0", "sample number 3", "bytes of jpg"):
        assert text in output


def test_damage_is_a_status(run, shard, flipped, entries):
    flipped(shard, entries(shard)[8].offset)
    assert run("show", shard).returncode == 1


def test_a_shard_without_anything_to_show_still_has_sizes(run, write_shard):
    assert "bytes of bin" in run("show", write_shard("x.tar", {"bin": bytes(100)})).stdout


def test_images_of_all_modes_are_shown(sheet):
    with mpwds.TarWriter(Path("x.tar")) as sink:
        for number, mode in enumerate(("L", "RGB", "P", "RGBA", "LA", "1")):
            PIL.Image.new(mode, (20, 20)).save(stream := io.BytesIO(), "PNG")
            sink.write({"__key__": str(number), "png": stream.getvalue()})
    shown = sheet("x.tar")[0][0][1].samples
    assert [sample.pixels.max() for sample in shown] == [0, 0, 0, 255, 255, 0]  # what is transparent is white


def test_an_image_of_a_pixel_and_one_of_16_bits_are_shown_beside_others(sheet):
    with mpwds.TarWriter(Path("x.tar")) as sink:
        for number, (mode, side) in enumerate((("RGB", 20), ("RGB", 1), ("I;16", 20))):
            PIL.Image.new(mode, (side, side)).save(stream := io.BytesIO(), "PNG")
            sink.write({"__key__": str(number), "png": stream.getvalue()})
    shown = sheet("x.tar")[0][0][1]
    assert (shown.kind, [sample.label for sample in shown.samples]) == ("image", ["0", "1", "2"])
    assert all(sample.pixels.shape[0] == sample.pixels.shape[1] for sample in shown.samples)


def test_a_sound_of_no_length_is_shown_beside_others(sheet, write_shard):
    sounds = []
    for length in (800, 0):
        with wave.open(stream := io.BytesIO(), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes(2 * length))
        sounds.append({"wav": stream.getvalue()})
    shown = sheet(write_shard("x.tar", *sounds))[0][0][1]
    assert (shown.kind, len(shown.samples)) == ("waveform", 2)


@pytest.mark.parametrize("mode", ["RGB", "I;16"])
def test_large_images_are_made_small(sheet, mode):
    PIL.Image.linear_gradient("L").resize((3000, 1000)).convert(mode).save(stream := io.BytesIO(), "PNG")
    with mpwds.TarWriter(Path("x.tar")) as sink:
        sink.write({"__key__": "a", "png": stream.getvalue()})
    ((_, shown),), _ = sheet("x.tar")
    height, width, _ = shown.samples[0].pixels.shape
    assert (height, width) in ((85, 256), (84, 250))
    assert shown.samples[0].pixels.std() > 50


def test_a_choice_of_nothing_is_an_error_and_writes_no_sheet(refused, shards):
    assert "no sample" in refused("show", shards, "--key", "zzz", "--save", "z.png")
    assert not Path("z.png").exists()


def test_at_most_so_many_samples_of_a_kind_are_shown(sheet, write_shard, monkeypatch):
    monkeypatch.setattr("mpwds.cli.inspect.sheet._MOST", {"image": 5, "video": 1, "sound": 2, "text": 3})
    wav = sound("WAV")
    shard = write_shard("x.tar", *({"wav": wav, "txt": "text"} for _ in range(7)))
    assert [title for title, _ in sheet(shard)[0]] == [
        "wav of the first 2 samples",
        "txt of the first 3 samples",
    ]


def test_pictures_come_before_sound_and_texts(sheet, write_shard, samples):
    fields = {"md": "text", "wav": sound("WAV"), "jpg": samples[0]["jpg"], "a.txt": "text"}
    assert [title.split()[0] for title, _ in sheet(write_shard("x.tar", fields))[0]] == [
        "jpg",
        "wav",
        "a.txt",
        "md",
    ]


def test_histograms_of_labels_come_first(sheet, write_shard):
    fields = {"cls": 1, "id": 2, "index": 3, "best.inx": 4, "zz.cls2": 5, "txt": "text"}
    paths = [each.path for each in sheet(write_shard("x.tar", fields))[1]]
    labels = {"cls", "id", "index", "best.inx", "zz.cls2"}
    assert set(paths[:5]) == labels
    assert set(paths[5:]) == {f"bytes of {name}" for name in {*labels, "txt"}}


def test_json_has_the_figures(run, shards, objects):
    (figures,) = objects(run("show", shards, "--json").stdout)
    assert figures[0]["path"] == "cls"
    (saved,) = objects(run("show", shards, "--json", "--save", "z.png").stdout)
    assert saved == {"file": "z.png"}
