"""The examples of webdataset's READMEs, of all three generations, with nothing changed but the import.

Shards are small local copies with the same fields; short functions stand for torchvision's transforms.
"""

import io
import itertools
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import time
from itertools import islice
from random import randrange

import cbor2
import numpy as np
import PIL.Image
import pytest
import torch
import torch.utils.data

import mpwds as wds

PER_SHARD = 8


def identity(x):
    return x


def preproc(image):
    """What torchvision's Resize and ToTensor do, to a size of its own."""
    pixels = np.asarray(image.resize((24, 24)), np.float32) / 255
    return torch.from_numpy(pixels).permute(2, 0, 1)


def preprocess(sample):
    image, annotation = sample
    try:
        label = annotation["annotations"][0]["category_id"]
    except Exception:
        label = 0
    return 1 - image, label


def get_patches(src):
    for sample in src:
        image, label = sample
        h, w = image.shape[:2]
        for _ in range(4):
            y, x = randrange(h - 16), randrange(w - 16)
            patch = image[y : y + 16, x : x + 16]
            yield (patch, label)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Shards like OpenImages' (jpg, json) and PubLayNet's (png, json): four of eight samples each."""
    path = tmp_path_factory.mktemp("shards")
    write_shards(path, "openimages", "jpg", lambda n: [{"ImageID": f"{n:016x}", "Confidence": n}])
    write_shards(path, "publaynet", "png", lambda n: {"annotations": [{"category_id": n % 5}]})
    return path


def write_shards(path, name, extension, metadata):
    rng = np.random.default_rng(0)
    for shard in range(4):
        with tarfile.open(path / f"{name}-train-{shard:06d}.tar", "w") as archive:
            for number in range(PER_SHARD * shard, PER_SHARD * (shard + 1)):
                image = PIL.Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8))
                stream = io.BytesIO()
                image.save(stream, {"jpg": "jpeg"}.get(extension, extension))
                for field, data in (
                    (extension, stream.getvalue()),
                    ("json", json.dumps(metadata(number)).encode()),
                ):
                    member = tarfile.TarInfo(f"{number:016x}.{field}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))


@pytest.fixture
def openimages(folder):
    return f"{folder}/openimages-train-{{000000..000003}}.tar"


@pytest.fixture
def publaynet(folder):
    return f"{folder}/publaynet-train-{{000000..000003}}.tar"


def members(path):
    return subprocess.run(["tar", "tf", path], check=True, capture_output=True, text=True).stdout.split()


# The first generation: Dataset, MultiDataset, ResizedDataset


def test_dataset_iterates_through_the_files_without_decoding_anything(openimages):
    dataset = wds.Dataset(openimages)
    samples = list(islice(dataset, 0, 3))
    assert [sample["__key__"] for sample in samples] == [f"{n:016x}" for n in range(3)]
    assert all(sample["jpg"][:2] == b"\xff\xd8" and sample["json"][:2] == b"[{" for sample in samples)


def test_dataset_shuffles_decodes_and_makes_tuples(openimages):
    dataset = wds.Dataset(openimages).shuffle(100).decode("rgb").to_tuple("jpg;png", "json")
    for image, data in islice(dataset, 0, 3):
        assert (image.shape, image.dtype, type(data)) == ((40, 48, 3), np.float32, list)
    assert len(list(dataset)) == 4 * PER_SHARD


def test_dataset_reads_a_pipe_and_applies_functions_to_tuples(openimages):
    url = f"pipe:cat {openimages} || true"
    dataset = (
        wds.Dataset(url).shuffle(100).decode("pil").to_tuple("jpg;png", "json").map_tuple(preproc, identity)
    )
    for image, data in islice(dataset, 0, 3):
        assert (image.shape, image.dtype, type(data)) == ((3, 24, 24), torch.float32, list)


def test_dataset_in_a_dataloader_that_batches_or_does_so_itself_with_a_length(openimages):
    def pipeline(dataset):
        decoded = dataset.shuffle(100).decode("pil").to_tuple("jpg;png", "json")
        return decoded.map_tuple(preproc, identity)

    dataloader = torch.utils.data.DataLoader(pipeline(wds.Dataset(openimages)), num_workers=2, batch_size=4)
    images, targets = next(iter(dataloader))
    assert images.shape == (4, 3, 24, 24)
    assert len(targets[0]["ImageID"]) == 4
    bs = 4
    dataset = pipeline(wds.Dataset(openimages, length=int(1e9) // bs)).batched(bs)
    dataloader = torch.utils.data.DataLoader(dataset, num_workers=2, batch_size=None)
    images, _ = next(iter(dataloader))
    assert images.shape == (4, 3, 24, 24)
    assert len(dataset) == len(dataloader) == 250_000_000


def test_resized_dataset_sets_the_size_of_an_epoch_and_its_nominal_length(openimages):
    dataset = wds.Dataset(openimages).decode("rgb8").to_tuple("jpg", "json")
    resized = wds.ResizedDataset(dataset, length=50, nominal=10)
    assert len(resized) == 10
    assert sum(1 for _ in resized) == 50


def test_multidataset_shuffles_between_the_batches_of_its_workers(openimages):
    dataset = wds.Dataset(openimages).shuffle(100).decode("rgb8").to_tuple("jpg;png", "json").batched(5)
    dataloader = wds.MultiDataset(dataset, workers=2).unbatched().shuffle(1000).batched(12)
    sizes, seen = [], []
    for images, data in dataloader:
        assert images.shape[1:] == (40, 48, 3)
        sizes.append(len(images))
        seen.extend(entry["Confidence"] for (entry,) in data)
    assert sizes == [12, 12, 8]
    assert sorted(seen) == list(range(32))


def test_pipe_takes_a_function_of_an_iterator(openimages):
    dataset = wds.Dataset(openimages).decode("rgb8").to_tuple("jpg", "__key__").pipe(get_patches)
    patches = list(dataset)
    assert len(patches) == 4 * 4 * PER_SHARD
    assert patches[0][0].shape == (16, 16, 3)


def test_decode_takes_a_pair_of_extension_and_function(openimages):
    sizes = wds.Dataset(openimages).decode(("jpg", len), "rgb").to_tuple("jpg")
    assert all(size > 100 for (size,) in sizes)


def test_rename_and_map_dict(openimages):
    dataset = (
        wds.Dataset(openimages).rename(image="png;jpg", info="json").map_dict(image=len, info=json.loads)
    )
    sample = next(iter(dataset))
    assert isinstance(sample["image"], int)
    assert sample["info"][0]["ImageID"] == "0" * 16


def test_handlers_skip_what_cannot_be_decoded(tmp_path):
    with wds.TarWriter(str(tmp_path / "x.tar"), encoder=False) as sink:
        for number, text in enumerate([b"1", b"one", b"2"]):
            sink.write({"__key__": f"{number}", "cls": text})
    dataset = wds.Dataset(str(tmp_path / "x.tar"), handler=wds.warn_and_continue)
    with pytest.warns(UserWarning, match="one"):
        labels = list(dataset.decode(handler=wds.warn_and_continue).to_tuple("cls"))
    assert labels == [(1,), (2,)]


def test_hooks_choose_and_order_the_shards(openimages):
    dataset = wds.Dataset(openimages)
    dataset.shard_selection = lambda urls: urls[1::2]
    dataset.shard_shuffle = lambda urls: urls[::-1]
    keys = [int(sample["__key__"], 16) for sample in dataset]
    assert keys == [*range(24, 32), *range(8, 16)]


# The second generation: WebDataset, Processor, ShardList


def test_webdataset_in_a_dataloader(openimages):
    dataset = wds.WebDataset(openimages).shuffle(1000).decode("torchrgb").to_tuple("jpg;png", "json")
    dataloader = torch.utils.data.DataLoader(dataset, num_workers=2, batch_size=16)
    inputs, outputs = next(iter(dataloader))
    assert inputs.shape == (16, 3, 40, 48)
    assert len(outputs[0]["ImageID"]) == 16


def add_noise(source, noise=0.01):
    for inputs, targets in source:
        inputs = inputs + noise * torch.randn_like(inputs)
        yield inputs, targets


def test_processors_behind_processors_and_behind_methods(openimages):
    dataset = wds.ShardList(
        openimages, splitter=wds.split_by_worker, nodesplitter=wds.split_by_node, shuffle=False
    )
    dataset = wds.Processor(dataset, wds.url_opener)
    dataset = wds.Processor(dataset, wds.tar_file_expander)
    dataset = wds.Processor(dataset, wds.group_by_keys)
    dataset = wds.Processor(dataset, wds.shuffle, 100)
    dataset = wds.Processor(dataset, wds.decode, wds.imagehandler("torchrgb"))
    dataset = wds.Processor(dataset, wds.to_tuple, "png;jpg;jpeg", "json")
    behind_methods = wds.WebDataset(openimages).shuffle(100).decode("torchrgb")
    for each in (dataset, behind_methods.to_tuple("png;jpg;jpeg", "json")):
        noisy_dataset = wds.Processor(each, add_noise, noise=0.02)
        assert next(iter(noisy_dataset))[0].shape == (3, 40, 48)
        assert len(list(noisy_dataset)) == 32


class SqlDataset(torch.utils.data.IterableDataset):
    def __init__(self, dbname):
        self.db = sqlite3.connect(dbname)
        self.db.execute("create table if not exists data (inputs blob, targets blob)")

    def add(self, inputs, targets):
        self.db.execute(
            "insert into data (inputs, targets) values (?, ?)",
            (wds.torch_dumps(inputs), wds.torch_dumps(targets)),
        )

    def __iter__(self):
        for inputs, targets in self.db.execute("select inputs, targets from data"):
            yield wds.torch_loads(inputs), wds.torch_loads(targets)

    def __len__(self):
        return self.db.execute("select count(*) from data").fetchone()[0]


def test_processors_behind_a_users_own_iterable_dataset():
    source = SqlDataset(":memory:")
    for _ in range(40):
        source.add(torch.randn(3, 4, 4), torch.randn(3, 4, 4))
    assert len(source) == 40
    dataset = wds.Processor(source, wds.shuffle, 100)
    dataset = wds.Processor(dataset, wds.batched, 16)
    noisy_dataset = wds.Processor(dataset, add_noise, noise=0.02)
    assert [inputs.shape for inputs, _ in noisy_dataset] == [(16, 3, 4, 4), (16, 3, 4, 4), (8, 3, 4, 4)]
    source.db.close()


# The third generation: WebDataset and DataPipeline


def test_webdataset_is_an_iterable_dataset_with_methods(publaynet):
    dataset = wds.WebDataset(publaynet).shuffle(1000).decode("rgb").to_tuple("png", "json")
    assert isinstance(dataset, torch.utils.data.IterableDataset)
    dataset = dataset.map(preprocess)
    image, label = next(iter(dataset))
    assert (image.shape, label in range(5)) == ((40, 48, 3), True)
    patches = dataset.flatmap(lambda sample: get_patches([sample]))
    assert [patch.shape for patch, _ in patches] == [(16, 16, 3)] * 4 * 32
    dataset = dataset.compose(get_patches).shuffle(10000)
    patch, _ = next(iter(dataset))
    assert patch.shape == (16, 16, 3)
    loader = torch.utils.data.DataLoader(dataset, num_workers=2, batch_size=8)
    batch = next(iter(loader))
    assert (batch[0].shape, batch[1].shape) == ((8, 16, 16, 3), (8,))
    loader = wds.WebLoader(dataset, num_workers=2, batch_size=8).unbatched().shuffle(1000).batched(12)
    batch = next(iter(loader))
    assert (batch[0].shape, batch[1].shape) == ((12, 16, 16, 3), (12,))


def test_batches_from_a_webloader_are_batched_anew(publaynet):
    dataset = wds.WebDataset(publaynet).shuffle(1000).decode("rgb").to_tuple("png", "json").map(preprocess)
    dataset = dataset.compose(get_patches)
    dataset = dataset.batched(16)
    loader = wds.WebLoader(dataset, num_workers=2, batch_size=None)
    loader = loader.unbatched().shuffle(1000).batched(12)
    batch = next(iter(loader))
    assert (batch[0].shape, batch[1].shape) == ((12, 16, 16, 3), (12,))


def test_the_pipeline_written_out(publaynet):
    dataset = wds.DataPipeline(
        wds.SimpleShardList(publaynet),
        wds.shuffle(100),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.shuffle(1000),
        wds.decode("torchrgb"),
        wds.to_tuple("big.png;png", "json"),
        wds.map(preprocess),
        wds.batched(16),
    )
    sizes = [(images.shape, labels.shape) for images, labels in dataset]
    assert sizes == [((16, 3, 40, 48), (16,))] * 2


def test_the_pipeline_written_out_with_patches(publaynet):
    dataset = wds.DataPipeline(
        wds.SimpleShardList(publaynet),
        wds.tarfile_to_samples(),
        wds.decode("rgb8"),
        wds.to_tuple("png", "json"),
        get_patches,
        wds.shuffle(10000),
        wds.batched(16),
    )
    assert len(list(dataset)) == 8


def test_a_resampled_dataset_has_epochs_of_a_given_length(publaynet):
    dataset = (
        wds.WebDataset(publaynet, resampled=True)
        .shuffle(1000)
        .decode("rgb")
        .to_tuple("png", "json")
        .map(preprocess)
        .with_epoch(100)
    )
    assert next(iter(dataset))[0].shape == (40, 48, 3)
    assert sum(1 for _ in dataset) == 100


def test_a_pipeline_of_resampled_shards(publaynet):
    dataset = wds.DataPipeline(
        wds.ResampledShards(publaynet),
        wds.tarfile_to_samples(),
        wds.shuffle(20),
        wds.decode("torchrgb"),
        wds.to_tuple("png", "json"),
        wds.batched(16),
    ).with_epoch(10)
    assert [images.shape[0] for images, _ in dataset] == [16] * 10


def test_with_length_gives_a_length_and_with_epoch_ends_an_epoch(publaynet):
    with pytest.warns(UserWarning, match="with_length"):
        dataset = wds.WebDataset(publaynet).with_epoch(20).with_length(20)
    assert len(dataset) == 20
    assert sum(1 for _ in dataset) == 20


def my_sample_decoder(sample):
    result = {"__key__": sample["__key__"]}
    for key, value in sample.items():
        if key == "png" or key.endswith(".png"):
            result[key] = np.asarray(PIL.Image.open(io.BytesIO(value)))
        elif key == "json":
            result[key] = json.loads(value)
    return result


def test_a_class_of_stages_is_composed_with_its_arguments(publaynet, tmp_path):
    dataset = wds.WebDataset(publaynet).compose(wds.DBCache, str(tmp_path / "cache.db"), 4, shuffle=True)
    first, second = list(dataset), list(dataset)
    assert len(first) == 4
    assert {sample["__key__"] for sample in first} == {sample["__key__"] for sample in second}
    with pytest.raises(TypeError, match="no argument 'shuffle'"):
        dataset.compose(wds.slice(2), shuffle=True)


def test_processor_is_curried(publaynet):
    dataset = wds.WebDataset(publaynet)
    dataset = wds.Processor(wds.map, my_sample_decoder)(dataset)
    sample = next(iter(dataset))
    assert (sample["png"].shape, list(sample["json"])) == ((40, 48, 3), ["annotations"])


def my_png_decoder(key, value):
    if not key.endswith(".png"):
        return None
    assert isinstance(value, bytes)
    return np.asarray(PIL.Image.open(io.BytesIO(value)))


def test_decoders_of_ones_own(publaynet):
    dataset = wds.WebDataset(publaynet).decode(my_png_decoder, wds.torch_video, wds.torch_audio)
    assert next(iter(dataset))["png"].shape == (40, 48, 3)
    dataset = wds.WebDataset(publaynet).decode(wds.handle_extension(".png", len))
    assert isinstance(next(iter(dataset))["png"], int)
    dataset = wds.WebDataset(publaynet).map(wds.Decoder([wds.imagehandler("l8")]))
    assert next(iter(dataset))["png"].shape == (40, 48)


def test_cbor_files(tmp_path):
    with open(tmp_path / "test.cbors", "wb") as stream:
        for i in np.linspace(-5.0, 5.0, 1000):
            cbor2.dump((float(i), str(i)[-5:]), stream)
    dataset = wds.DataPipeline(
        wds.SimpleShardList(str(tmp_path / "test.cbors")),
        wds.cbors_to_samples(),
    )
    data = list(dataset)
    assert (len(data), list(data[0])) == (1000, [-5.0, "-5.0"])


def test_a_single_local_shard(folder):
    dataset = wds.DataPipeline(
        wds.SimpleShardList(f"{folder}/openimages-train-000000.tar"),
        wds.tarfile_to_samples(),
    )
    text = repr(next(iter(dataset)))
    assert text.startswith(
        f"{{'__key__': '{0:016x}', '__url__': '{folder}/openimages-train-000000.tar', 'jpg'"
    )


def test_standard_input_is_a_shard(folder):
    program = "import mpwds as wds; print(sum(1 for _ in wds.WebDataset('-')))"
    with open(folder / "openimages-train-000000.tar", "rb") as shard:
        done = subprocess.run(
            [sys.executable, "-c", program], stdin=shard, capture_output=True, check=True, text=True
        )
    assert done.stdout.split() == ["8"]


def test_a_yaml_file_specifies_a_dataset_of_several_collections(folder, tmp_path):
    (tmp_path / "mix.yaml").write_text(
        f"""
        dataset:
          - shards: {folder}/openimages-train-{{000000..000001}}.tar
            scaleprob: 0.3
          - shards: {folder}/publaynet-train-{{000000..000001}}.tar
            scale: [1.0, 3.0]
        """
    )
    samples = list(wds.WebDataset(str(tmp_path / "mix.yaml")))
    assert sum("jpg" in sample for sample in samples) == sum("png" in sample for sample in samples) == 16


def test_shards_are_cached_in_a_directory(folder, tmp_path):
    url = f"pipe:cat {folder}/openimages-train-000000.tar"
    dataset = wds.WebDataset(url, cache_dir=str(tmp_path / "cache"))
    assert len(list(dataset)) == len(list(dataset)) == 8
    deadline = time.monotonic() + 600
    while [path.is_file() for path in (tmp_path / "cache").rglob("*.tar")] != [True]:
        assert time.monotonic() < deadline


def test_urls_are_rewritten(openimages, folder, monkeypatch):
    monkeypatch.setenv("WDS_REWRITE", f"gs://bucket/={folder}/")
    assert sum(1 for _ in wds.WebDataset("gs://bucket/openimages-train-000000.tar")) == 8


# Writing, in all of them


def some_samples():
    rng = np.random.default_rng(1)
    return [(rng.random((12, 10, 3), np.float32), number) for number in range(5)]


def test_tarwriter_stores_pickles_which_are_read_where_that_is_allowed(tmp_path):
    sink = wds.TarWriter(str(tmp_path / "dest.tar"))
    for index, (inputs, output) in enumerate(some_samples()):
        sink.write({"__key__": f"sample{index:06d}", "input.pyd": inputs, "output.pyd": output})
    sink.close()
    dataset = wds.WebDataset(str(tmp_path / "dest.tar"))
    with pytest.raises(wds.DecodeError, match="allow_pickle=True"):
        next(iter(dataset.decode()))
    read = list(dataset.decode(allow_pickle=True).to_tuple("input.pyd", "output.pyd"))
    assert all(np.array_equal(a, b) and m == n for (a, m), (b, n) in zip(read, some_samples(), strict=True))


def test_tarwriter_encodes_images_and_classes(tmp_path):
    sink = wds.TarWriter(str(tmp_path / "dest.tar"))
    for index, (inputs, output) in enumerate(some_samples()):
        sink.write({"__key__": f"sample{index:06d}", "input.jpg": inputs, "output.cls": output})
    sink.close()
    dataset = wds.WebDataset(str(tmp_path / "dest.tar")).decode("rgb").to_tuple("input.jpg", "output.cls")
    assert [(image.shape, label) for image, label in dataset] == [((12, 10, 3), n) for n in range(5)]


def test_tarwriter_without_an_encoder_takes_bytes(folder, tmp_path):
    sink = wds.TarWriter(str(tmp_path / "dest.tar"), encoder=False)
    for sample in wds.WebDataset(f"{folder}/publaynet-train-000000.tar"):
        sink.write({"__key__": sample["__key__"], "input.png": sample["png"], "target.cls": b"7"})
    sink.close()
    dataset = wds.WebDataset(str(tmp_path / "dest.tar")).decode("rgb8").to_tuple("input.png", "target.cls")
    assert [(image.shape, label) for image, label in dataset] == [((40, 48, 3), 7)] * 8


def extract_class(data):
    return 0


def augmented(src, output, maxcount):
    with wds.TarWriter(output) as dst:
        for key, image, data in islice(src, 0, maxcount):
            image = image.numpy().transpose(1, 2, 0)
            image -= np.amin(image)
            image /= np.amax(image)
            dst.write({"__key__": key, "png": image, "cls": extract_class(data)})


def first_augment_wds(input, output, maxcount=999999999):
    src = (
        wds.Dataset(input)
        .decode("pil")
        .to_tuple("__key__", "jpg;png", "json")
        .map_tuple(identity, preproc, identity)
    )
    augmented(src, output, maxcount)


def augment_wds(input, output, maxcount=999999999):
    src = wds.DataPipeline(
        wds.SimpleShardList(input),
        wds.tarfile_to_samples(),
        wds.decode("pil"),
        wds.to_tuple("__key__", "jpg;png", "json"),
        wds.map_tuple(None, preproc, None),
    )
    augmented(src, output, maxcount)


@pytest.mark.parametrize("augment", [first_augment_wds, augment_wds])
def test_a_shard_is_augmented_offline(augment, folder, tmp_path):
    url = f"pipe:cat {folder}/openimages-train-000000.tar || true"
    augment(url, str(tmp_path / "_temp.tar"), maxcount=5)
    keys = [f"{number:016x}" for number in range(5)]
    assert members(tmp_path / "_temp.tar") == [f"{key}.{field}" for key in keys for field in ("cls", "png")]


def test_a_sample_stored_as_one_messagepack_member(tmp_path):
    with wds.TarWriter(str(tmp_path / "small.tgz")) as writer:
        for number in range(3):
            writer.write({"__key__": f"{number}", "mp": {"text": f"number {number}", "value": number}})
    dataset = wds.WebDataset(str(tmp_path / "small.tgz")).decode().map(lambda sample: sample["mp"])
    assert [sample["value"] for sample in dataset] == [0, 1, 2]


def test_shardwriter_numbers_its_shards(tmp_path):
    with wds.ShardWriter(str(tmp_path / "out-%06d.tar"), maxcount=2) as sink:
        for number in range(5):
            sink.write({"__key__": f"{number:04d}", "cls": number})
    assert sorted(os.listdir(tmp_path)) == [f"out-{number:06d}.tar" for number in range(3)]
    dataset = wds.WebDataset(str(tmp_path / "out-{000000..000002}.tar")).decode().to_tuple("cls")
    assert list(itertools.chain(*dataset)) == list(range(5))
