"""The stages that make images of one size."""

import io
import subprocess
import sys
import time

import numpy as np
import PIL.Image
import pytest

import mpwds
from mpwds import DecodeError, Resized, ignore_and_continue
from mpwds.pipeline.context import Context
from mpwds.pipeline.stages.map import map
from mpwds.pipeline.stages.resized import ResizeStage, random_resized_crop, resize_center_crop, resized
from mpwds.pipeline.stream import collect
from tests.pipeline.decoding.files import stored


def image(seed, kind="JPEG"):
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 60, 3), np.uint8)
    return stored(PIL.Image.fromarray(pixels), kind)


def samples(count):
    return [{"__key__": f"{n}", "__url__": "a.tar", "jpg": image(n), "cls": n} for n in range(count)]


def test_the_field_becomes_an_array_and_the_others_stay():
    stages = random_resized_crop("jpg", 16), resize_center_crop("jpg", 20, 16), resized("jpg", (16, 16))
    for stage in stages:
        (sample,) = stage(samples(1))
        assert sample["jpg"].shape == (16, 16, 3)
        assert {name: sample[name] for name in ("__key__", "cls")} == {"__key__": "0", "cls": 0}


def test_each_stage_passes_its_options_on():
    options = {"dtype": "float32", "layout": "CHW", "mean": (0.5, 0.5, 0.5), "std": (0.1, 0.1, 0.1)}
    for stage in (
        random_resized_crop("jpg", (8, 9), (0.5, 0.6), (1, 2), 0.1, **options, antialias=False),
        resize_center_crop("jpg", 20, (8, 9), **options, antialias=False),
        resized("jpg", (8, 9), **options, antialias=False),
    ):
        assert {name: getattr(stage.resizer, name) for name in options} == options
        assert (stage.resizer.size, stage.resizer.antialias) == ((8, 9), False)
    crop = random_resized_crop("jpg", 8, (0.5, 0.6), (1, 2), 0.1).resizer
    assert (crop.scale, crop.ratio, crop.flip) == ((0.5, 0.6), (1, 2), 0.1)
    assert resize_center_crop("jpg", 20, 8).resizer.resize == 20


def test_the_crop_follows_from_seed_epoch_and_place():
    def crops(seed, epoch):
        pipeline = mpwds.DataPipeline(samples(4), random_resized_crop("jpg", 8, box_field="box"), seed=seed)
        pipeline.set_epoch(epoch)
        return [sample["box"].tolist() for sample in pipeline]

    assert crops(1, 0) == crops(1, 0)
    assert len({repr(crops(*place)) for place in ((1, 0), (1, 1), (2, 0))}) == 3
    assert len({repr(box) for box in crops(1, 0)}) == 4


def test_the_box_says_which_pixels_were_taken():
    (sample,) = random_resized_crop("jpg", (10, 12), flip=1, box_field="box")(samples(1))
    top, left, height, width, flipped = sample["box"].tolist()
    pixels = PIL.Image.open(io.BytesIO(image(0))).crop((left, top, left + width, top + height))
    expected = np.asarray(pixels.resize((12, 10), PIL.Image.Resampling.BILINEAR)).astype(int)[:, ::-1]
    assert np.abs(sample["jpg"] - expected).max() <= 1
    assert flipped == 1


def test_several_fields_and_alternatives_of_a_field():
    sample = {"left": image(1), "right": image(1), "png": image(2, "PNG"), "cls": 1}
    (made,) = random_resized_crop("left right jpg;png", 8, box_field="box")([sample])
    assert [made[name].shape for name in ("left", "right", "png")] == [(8, 8, 3)] * 3
    assert not np.array_equal(made["box.left"], made["box.right"])
    assert made["box.png"].shape == (5,)
    assert sample["left"] == image(1)


BAD = {
    "no image": ({"jpg": b"no image"}, "UnidentifiedImageError: cannot identify"),
    "cut off": ({"jpg": image(0, "PNG")[:500]}, "OSError"),
    "missing": ({"png": image(0)}, "no field 'jpg'; the sample has __key__, __url__, png"),
    "decoded": ({"jpg": np.zeros((4, 4, 3))}, "it is ndarray, expected bytes, which "),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_image_is_an_error_that_names_field_sample_and_shard(what):
    fields, message = BAD[what]
    bad = {"__key__": "bad", "__url__": "b.tar", **fields}
    with pytest.raises(
        DecodeError, match=f'field "jpg" of sample "bad" in b.tar cannot be decoded: .*{message}'
    ) as raised:
        collect(random_resized_crop("jpg", 8), [bad])
    assert (raised.value.key, raised.value.url, raised.value.field) == ("bad", "b.tar", "jpg")
    stage = random_resized_crop("jpg", 8, handler=ignore_and_continue)
    assert [sample["__key__"] for sample in stage([*samples(1), bad, *samples(1)])] == ["0", "0"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": "ab"}, "ratio must be two numbers, got 'ab'"),
        ({"flip": "a"}, "flip is a probability, got 'a'"),
        ({"mean": 0.5}, "mean must be three numbers, got 0.5"),
        ({"std": ("a", 1, 1)}, r"std must be three numbers, got \('a', 1, 1\)"),
        ({"mean": "012"}, "mean must be three numbers, got .012."),
        ({"box_field": "jpg"}, "box_field='jpg' would replace that field"),
        ({"box_field": "__key__"}, "box_field='__key__' would replace that field"),
        ({"handler": 3}, "handler must be a function of the exception"),
    ],
)
def test_a_bad_option_is_named(options, message):
    with pytest.raises((TypeError, ValueError), match=f"^random_resized_crop: {message}"):
        random_resized_crop("jpg", 8, **{"dtype": "float32", **options})


def test_a_missing_package_makes_no_image_bad(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError):
        list(resized("png", 8, handler=ignore_and_continue)([{"png": b"\x89PNG"}]))


@pytest.mark.parametrize("field", ["", 7, [], ";", ["a b"]])
def test_what_names_no_field_is_refused(field):
    with pytest.raises((TypeError, ValueError), match="^resize_center_crop: "):
        resize_center_crop(field)


def test_stages_print_as_the_calls_that_make_them():
    stage = random_resized_crop("jpg", 32, flip=0.0, dtype="float32", box_field="box")
    assert str(stage) == "random_resized_crop('jpg', 32, dtype='float32', flip=0.0, box_field='box')"
    stage = resized("jpg", 8, handler=ignore_and_continue)
    assert str(stage) == "resized('jpg', 8, handler=ignore_and_continue)"


FLOATS = {"dtype": "float32", "mean": (0.5, 0.4, 0.3), "std": (0.1, 0.2, 0.3)}


@pytest.mark.parametrize(
    ("options", "shape", "start_method"),
    [({}, (4, 16, 16, 3), None), ({**FLOATS, "layout": "CHW"}, (4, 3, 16, 16), "fork")],
)
def test_images_that_workers_decode_into_the_batch_are_the_same(options, shape, start_method):
    pipeline = mpwds.DataPipeline([*samples(11), {**samples(1)[0], "jpg": image(11, "PNG")}])
    cropped = pipeline.random_resized_crop("jpg", 16, **options).rename(image="jpg")
    dataset = cropped.shuffle(5).to_tuple("image", "cls").batched(4)
    loader = mpwds.MultiLoader(dataset, workers=1, output="numpy", start_method=start_method)
    with loader:
        batches = list(loader)
    assert [images.shape for images, _ in batches] == [shape] * 3
    alone = [images for images, _ in dataset]
    assert all(np.array_equal(images, mine) for (images, _), mine in zip(batches, alone, strict=True))


def test_in_a_worker_the_image_is_decoded_only_when_its_row_is_written():
    context = Context(deferred=True)
    for is_made, *stages in (
        (False, resized("jpg", 8)),
        (True, resized("jpg", 8, handler=ignore_and_continue)),  # which decides before it is in a batch
        (True, resized("jpg", 8), map(dict)),  # the user's function gets arrays
    ):
        ((_, sample),) = mpwds.DataPipeline(samples(1), *stages).stream(context)
        assert isinstance(sample["jpg"], np.ndarray) == is_made


def test_threads_decode_with_memory_of_their_own():
    data = [image(n) for n in range(64)]
    function = Resized((8, 8))
    made = mpwds.DataPipeline(data).map(function, threads=4)
    assert all(np.array_equal(found, function(each)) for found, each in zip(made, data, strict=True))


def test_a_bad_image_ends_the_epoch_with_an_error_and_comes_again_on_resume():
    bad = {"__key__": "bad", "__url__": "b.tar", "jpg": image(0)[:700], "cls": 4}
    dataset = mpwds.DataPipeline([*samples(4), bad, *samples(3)]).resized("jpg", (8, 8)).batched(2)
    with mpwds.MultiLoader(dataset, workers=1, start_method="fork") as loader:
        batches = iter(loader)
        assert [len(next(batches)["jpg"]) for _ in range(2)] == [2, 2]
        with pytest.raises(DecodeError, match='field "jpg" of sample "bad" in b.tar') as raised:
            next(batches)
        assert (raised.value.key, raised.value.url) == ("bad", "b.tar")
        assert "in resized('jpg', (8, 8))" in str(raised.value.__cause__)
        state = loader.state_dict()
    with mpwds.MultiLoader(dataset, workers=1, start_method="fork") as loader:
        loader.load_state_dict(state)
        with pytest.raises(DecodeError, match='sample "bad"'):
            list(loader)


class SleepyResized(Resized):
    def arithmetic(self, pixels):
        time.sleep(0.02)
        return super().arithmetic(pixels)


def test_the_time_that_decoding_into_the_batch_takes_counts_as_the_stages():
    stage = ResizeStage("jpg", SleepyResized((8, 8), "float32"))
    dataset = mpwds.DataPipeline(samples(8), stage).batched(8)
    with mpwds.MultiLoader(dataset, workers=1, start_method="fork") as loader:
        assert len(list(loader)) == 1
        (spent,) = [stage for stage in loader.stats().stages if stage.name.startswith("resized(")]
    assert spent.seconds >= 8 * 0.02


def test_without_simplejpeg_a_warning_says_what_that_costs(tmp_path):
    program = """if True:
        import sys
        sys.modules["simplejpeg"] = None
        from mpwds.pipeline.stages.resized import resized
        resized("png", 8)
        print("png", file=sys.stderr)
        resized("image", 8)
        resized("jpg", 9)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr.startswith(
        "png\n<string>:7: RuntimeWarning: JPEG is decoded with Pillow, at full size"
    )
    assert done.stderr.count("pip install 'mpwds[turbojpeg]'") == 1


def test_sizes_may_be_lists_and_figures_arrays_as_of_configurations():
    figures = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2), "scale": (0.5, 1.0)}
    arrays = {name: np.array(values) for name, values in figures.items()}
    given = random_resized_crop("jpg", [16, 16], dtype="float32", **arrays)
    plain = random_resized_crop("jpg", (16, 16), dtype="float32", **figures)
    assert given == plain
    assert str(given) == str(plain)
    assert resize_center_crop("png", [40, 50], 32) == resize_center_crop("png", (40, 50), 32)
    assert resized("png", np.int64(32)) == resized("png", [32]) == resized("png", 32)
