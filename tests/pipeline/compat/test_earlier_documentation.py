"""Names and calls that webdataset documented in its first generations, 0.0 and 0.1."""

import io
import wave

import numpy as np
import pytest
import torch

import mpwds as wds
from mpwds.pipeline.decoding.images import imagespecs
from tests.pipeline.compat.test_dataset import png
from tests.pipeline.decoding.files import still


@pytest.fixture
def images(tmp_path):
    """A shard of three samples: ``png``, ``cls`` and ``sig``."""
    with wds.TarWriter(str(tmp_path / "x.tar"), encoder=False) as shard:
        for n in range(3):
            shard.write({"__key__": f"{n}", "png": png(51), "cls": b"%d" % n, "sig": b"s"})
    return str(tmp_path / "x.tar")


def test_the_module_of_multidataset_has_its_names():
    from mpwds import multi

    assert (multi.MultiDataset, multi.MultiDatasetIterator) == (wds.MultiDataset, wds.MultiDatasetIterator)
    assert (multi.timeout, multi.verbose, multi.D("nothing"), multi.omp_warning()) == (0.1, 0, None, None)
    tensor = torch.ones(3)
    label, copy = multi.copy_and_delete_tensors(["label", tensor])
    assert label == "label"
    assert torch.equal(copy, tensor)
    assert copy.data_ptr() != tensor.data_ptr() != multi.maybe_copy(tensor, False).data_ptr()
    assert multi.copy_and_delete_tensors({"cls": 7}, pin_memory=False) == {"cls": 7}


def test_the_iterator_of_multidataset_takes_a_dataset(images):
    from mpwds.multi import MultiDatasetIterator

    dataset = wds.Dataset(images).decode().to_tuple("cls")
    elements = MultiDatasetIterator(dataset, workers=1, output_size=10, pin_memory=False)
    assert isinstance(elements, torch.utils.data.IterableDataset)
    assert [int(n) for (n,) in iter(elements)] == [0, 1, 2]
    elements.terminate()


def test_checks_pass_what_they_describe_and_raise_valueerror_with_the_message():
    from mpwds import checks

    calls = {
        checks.check: [(1,), (0,)],
        checks.checkcallable: [(len,), ("len",)],
        checks.checkmember: [("a", "abc"), ("d", "abc")],
        checks.checknotnone: [(0,), (None,)],
        checks.checkrange: [(3, 0, 3), (4, 0, 3)],
        checks.checktype: [("a", (int, str)), (1.5, (int, str))],
    }
    for check, (good, bad) in calls.items():
        check(*good, "number of shards")
        with pytest.raises(ValueError, match="^number of shards: expected .*, got "):
            check(*bad, "number of shards")


def test_default_handlers_decode_by_image_specification_and_extension(images):
    from mpwds.autodecode import default_handlers

    sample = next(iter(wds.Dataset(images)))
    assert default_handlers["rgb"]["png"](sample["png"]).shape == (4, 6, 3)
    assert default_handlers["torchrgb8"]["png"](sample["png"]).dtype == torch.uint8
    assert default_handlers["l"]["cls"](b"7") == 7
    table = wds.Dataset(images, extensions="png cls", decoder=default_handlers["rgb8"])
    assert [(image.dtype, label) for image, label in table] == [(np.uint8, n) for n in range(3)]


def test_a_handler_that_a_program_adds_to_default_handlers_is_used(images, monkeypatch):
    from mpwds.autodecode import default_handlers

    monkeypatch.setitem(default_handlers["rgb8"], "sig", len)
    assert list(wds.Dataset(images, extensions="sig cls", decoder="rgb8")) == [(1, n) for n in range(3)]
    assert list(wds.Dataset(images, extensions="sig", decoder="rgb")) == [(b"s",)] * 3


@pytest.mark.parametrize(
    ("arguments", "options", "png", "label"),
    [
        ((), {}, np.float32, 0),
        (("rgb8",), {}, np.uint8, 0),
        ((), {"decoder": "rgb8"}, np.uint8, 0),
        ((), {"decoder": True}, np.float32, 0),
        (({"cls": int},), {}, bytes, 0),
        ((), {"decoder": {"cls": int}}, bytes, 0),
        ((lambda sample: {**sample, "cls": int(sample["cls"]) - 1},), {}, bytes, -1),
        ((lambda extension, data: 7 if extension == ".cls" else None,), {}, bytes, 7),
        ((("cls", lambda data: 8), "rgb8"), {}, np.uint8, 8),
        ((None,), {}, bytes, b"0"),
    ],
    ids=range(10),
)
def test_decode_takes_what_each_release_documented(images, arguments, options, png, label):
    image, number = next(iter(wds.Dataset(images).decode(*arguments, **options).to_tuple("png", "cls")))
    assert getattr(image, "dtype", type(image)) == png
    assert number == label


def test_decode_passes_its_options_and_its_handler_on(images):
    dataset = wds.Dataset(images)
    assert next(iter(dataset.decode("rgb8", only="cls")))["sig"] == b"s"
    failing = dataset.decode(lambda sample: {"cls": 1 // int(sample["cls"])}, handler=wds.ignore_and_continue)
    assert [sample["cls"] for sample in failing] == [1, 0]
    with pytest.raises(TypeError, match="has no argument 'colour'"):
        dataset.decode("rgb", colour="red")


def test_default_handlers_decode_sound_film_and_integers_by_their_old_names(tmp_path):
    stream = io.BytesIO()
    with wave.open(stream, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(1600))
    with wds.TarWriter(str(tmp_path / "x.tar"), encoder=False) as shard:
        fields = {"count": b"7", "class": b"cat", "img": png(0), "wav": stream.getvalue()}
        shard.write({"__key__": "0", **fields})
    path = str(tmp_path / "x.tar")
    for dataset in (wds.Dataset(path).decode("rgb8"), wds.Dataset(path, decoder="rgb8")):
        (sample,) = dataset
        assert (sample["count"], sample["class"], sample["img"].shape) == (7, b"cat", (4, 6, 3))
        samples, rate = sample["wav"]
        assert (samples.shape, rate) == ((1, 800), 8000)


def test_an_mpg_is_decoded_as_a_film_and_not_as_an_image(tmp_path):
    with wds.TarWriter(str(tmp_path / "x.tar"), encoder=False) as shard:
        shard.write({"__key__": "0", "mpg": still(32, 16, "mpeg", "mpeg2video")})
    ((frames, _, _),) = wds.Dataset(str(tmp_path / "x.tar"), extensions="mpg").map(lambda fields: fields[0])
    assert frames.shape == (1, 16, 32, 3)


@pytest.mark.parametrize("spec", imagespecs)
def test_imagehandler_decodes_data_by_a_specification(spec):
    image = np.asarray(wds.imagehandler(png(51), spec))
    expected = np.asarray(wds.imagehandler(spec)(".png", png(51)))
    assert image.dtype == expected.dtype
    assert np.array_equal(image, expected)


def test_the_message_about_an_unknown_specification_is_short():
    with pytest.raises(ValueError, match="unknown image format") as error:
        wds.imagehandler("x" * 40_000)
    assert len(str(error.value)) < 500


def test_shard_fn_tells_the_shards_that_the_hooks_choose(tmp_path):
    dataset = wds.Dataset(str(tmp_path / "{0..3}.tar"))
    before = dataset.shard_selection
    dataset.shard_selection = lambda urls: before(urls)[1:]
    dataset.shard_shuffle = lambda urls: urls[::-1]
    assert dataset.urls == [str(tmp_path / f"{n}.tar") for n in range(4)]
    assert dataset.shard_fn() == dataset.urls[:0:-1]
    assert dataset.node_selection(["a"]) == ["a"]
    assert dataset.reseed_hook() is None


def test_a_dataset_reads_the_samples_of_other_shards_too(images):
    dataset = wds.Dataset("missing.tar").decode("rgb8").to_tuple("cls")
    assert list(dataset.samples(images)) == list(dataset.samples([images])) == [(0,), (1,), (2,)]
    assert ("0.cls", b"0") in dataset.raw_samples([images])


def test_every_rank_reads_all_samples_of_other_shards(images, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = wds.Dataset("missing.tar").to_tuple("__key__")
    assert list(dataset.samples(images)) == [("0",), ("1",), ("2",)]


def test_reseed_rng_chooses_another_order():
    dataset = wds.Dataset([f"{n}.tar" for n in range(40)]).shuffle(1)
    first = dataset.shard_fn()
    assert first == dataset.shard_fn()
    dataset.reseed_rng()
    assert sorted(first) == sorted(dataset.shard_fn())
    assert first != dataset.shard_fn()


class OneTwoThree(torch.utils.data.IterableDataset):
    def __len__(self):
        return 3

    def __iter__(self):
        self.left = iter([1, 2, 3])
        return self

    def __next__(self):
        return next(self.left)


def test_a_pipeline_begins_at_an_iterator_that_is_an_iterable_dataset():
    dataset = wds.DataPipeline(OneTwoThree()).map(lambda number: -number)
    assert list(dataset) == list(dataset) == [-1, -2, -3]


def test_webdataset_takes_a_length(images):
    dataset = wds.WebDataset(images, length=1000)
    assert len(dataset) == len(dataset.decode().to_tuple("cls")) == 1000


def test_a_decoder_is_called_with_a_dataset_or_with_a_sample(images):
    def my_decoder(key, data):
        return len(data) if key == ".sig" else None

    dataset = wds.WebDataset(images)
    decoded = wds.Decoder(my_decoder, wds.torch_video, wds.torch_audio, "rgb8")(dataset)
    found = [(sample["sig"], sample["cls"], sample["png"].shape) for sample in decoded]
    assert found == [(1, n, (4, 6, 3)) for n in range(3)]
    decoder = wds.Decoder(wds.handle_extension(".png", len))
    assert [type(sample["png"]) for sample in decoder(dataset)] == [int] * 3
    assert decoder({"__key__": "a", "png": b"abc"}) == {"__key__": "a", "png": 3}


def test_a_decoded_dataset_has_addresses_and_methods(images, continues):
    decoded = wds.Decoder(wds.handle_extension(".png", len))(wds.WebDataset(images))
    continues(decoded.to_tuple("cls").stream, 1)
    with pytest.raises(TypeError, match="must be a dict, got tuple"):
        wds.Decoder()((1, 2))
