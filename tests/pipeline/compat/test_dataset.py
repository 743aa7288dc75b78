"""Dataset: the options, hooks and methods of webdataset's first releases."""

import contextlib
import io
import json
import random
from itertools import pairwise

import msgpack
import numpy as np
import PIL.Image
import pytest
import torch.utils.data

import mpwds
from mpwds import MultiLoader
from mpwds.compat.dataset import Dataset, all_urls, worker_urls
from mpwds.errors import DecodeError
from mpwds.pipeline.context import Context
from mpwds.pipeline.handlers import ignore_and_continue, warn_and_continue
from mpwds.tenbin import encode_buffer
from tests.pipeline.places import read_everywhere


def numbers(dataset):
    return [int(sample["cls"]) for sample in dataset]


def png(level):
    stream = io.BytesIO()
    PIL.Image.fromarray(np.full((4, 6, 3), level, np.uint8)).save(stream, "png")
    return stream.getvalue()


@pytest.fixture
def images(tar):
    return tar([member for n in range(3) for member in ((f"{n}.cls", b"%d" % n), (f"{n}.png", png(n)))])


def test_samples_are_not_decoded_by_default(shards):
    assert [sample["txt"] for sample in Dataset(shards)] == [str(n).encode() for n in range(20)]


def test_length_or_size_is_what_len_returns(shards):
    assert len(Dataset(shards, length=100).batched(3)) == 100
    assert len(Dataset(shards, 47)) == 47
    assert len(Dataset(shards, size=lambda url: int(url[-5]))) == 0 + 1 + 2 + 3 + 4 + 5
    with pytest.raises(TypeError, match="has no len"):
        len(Dataset(shards))


def test_extensions_make_tuples_of_decoded_fields(images):
    samples = list(Dataset(images, extensions="jpg;png cls"))
    assert [(image.shape, image.dtype, label) for image, label in samples] == [
        ((4, 6, 3), np.float32, n) for n in range(3)
    ]
    assert [label for (label,) in Dataset(images, extensions=[["class", "cls"]])] == [0, 1, 2]


def test_extensions_are_all_that_is_read(tar):
    path = tar([("a.cls", b"1"), ("a.pyd", b"no pickle"), ("a.png", b"no image")])
    assert list(Dataset(path, extensions="cls")) == [(1,)]


@pytest.mark.parametrize(
    ("decoder", "kind"),
    [("rgb8", np.ndarray), (True, np.ndarray), ("pil", PIL.Image.Image), (None, bytes), (False, bytes)],
)
def test_decoder_is_an_image_specification_or_nothing(images, decoder, kind):
    sample = next(iter(Dataset(images, decoder=decoder)))
    assert isinstance(sample["png"], kind)


def test_decoder_may_be_a_table_of_functions_by_extension(images):
    samples = list(Dataset(images, extensions="png cls", decoder={"png": len}))
    assert samples == [(len(png(n)), str(n).encode()) for n in range(3)]


def test_decoder_may_be_a_function_of_a_sample(images):
    sizes = Dataset(images, extensions="png cls", decoder=lambda s: {k: len(v) for k, v in s.items()})
    assert list(sizes) == [(len(png(n)), 1) for n in range(3)]


def test_transforms_are_applied_to_the_fields_in_turn(images):
    functions = [np.max, lambda label: label - 1, str]
    dataset = Dataset(images, decoder="rgb8", extensions="png cls", transforms=functions)
    assert list(dataset) == [(n, n - 1) for n in range(3)]
    assert list(Dataset(images, extensions="cls cls", transforms=str)) == [(str(n),) * 2 for n in range(3)]


def test_associate_adds_fields_by_key(images):
    dataset = Dataset(images, associate=lambda key: {"class": 10 * int(key)}, extensions="cls class")
    assert list(dataset) == [(n, 10 * n) for n in range(3)]
    samples = list(Dataset(images, associate={"1": {"name": "one"}}))
    assert [sample.get("name") for sample in samples] == [None, "one", None]


def test_pipeline_is_a_function_of_the_iterator(images):
    def twice(source):
        for sample in source:
            yield from (sample, sample)

    assert [n for (n,) in Dataset(images, extensions="cls", pipeline=twice)] == [0, 0, 1, 1, 2, 2]


def test_shuffle_shuffles_shards_and_above_one_samples_too(shards):
    by_shard = numbers(Dataset(shards, shuffle=1, seed=2))
    assert sorted(by_shard) == list(range(20)) != by_shard
    assert sum(b == a + 1 for a, b in pairwise(by_shard)) >= 14
    assert ".shuffle(" not in str(Dataset(shards, shuffle=1))
    assert "shuffle(100)" in str(Dataset(shards, shuffle=100))
    assert sorted(numbers(Dataset(shards, shuffle=100))) == list(range(20))


def test_the_method_shuffles_shards_too(shards):
    dataset = Dataset(shards, seed=2)
    shuffled = dataset.shuffle(1)
    assert sorted(numbers(shuffled)) == list(range(20)) != numbers(shuffled)
    assert numbers(dataset) == numbers(dataset.shuffle(0)) == list(range(20))


def test_epochs_go_through_the_shards_several_times(shards):
    dataset = Dataset(shards, epochs=3)
    assert sorted(numbers(dataset)) == sorted([*range(20)] * 3)


def test_suffixes_are_the_fields_that_are_read(shards):
    fields = [{"__key__", "__url__", "cls"}] * 20
    assert [set(sample) for sample in Dataset(shards, suffixes={"cls"})] == fields


def test_keys_splits_the_names_of_members(tar, continues):
    path = tar([("d/a.1.cls", b"1"), ("d/a.1.txt", b"x"), ("d/skip.me", b""), ("d/a.2.cls", b"2")])

    def at_the_last_dot(name):
        key, _, field = name.rpartition(".")
        return (None, None) if field == "me" else (key, field)

    dataset = Dataset(path, keys=at_the_last_dot)
    assert [(sample["__key__"], numbers([sample])) for sample in dataset] == [("d/a.1", [1]), ("d/a.2", [2])]
    assert set(next(iter(dataset))) == {"__key__", "__url__", "cls", "txt"}
    continues(dataset.stream, 1)


def test_opener_is_a_command_for_each_url(shards):
    command = f"cat '{shards.rpartition('/')[0]}/x-{{}}.tar'"
    for option in ("opener", "open_fn"):
        assert numbers(Dataset("{000..005}", **{option: command})) == list(range(20))


def open_local(url):
    return open(url.removeprefix("local:"), "rb")


@pytest.mark.parametrize("option", ["opener", "open_fn"])
def test_opener_is_a_function_that_gives_a_stream(shards, continues, option):
    opened = []
    dataset = Dataset(f"local:{shards}", **{option: lambda url: opened.append(url) or open_local(url)})
    assert numbers(dataset) == list(range(20))
    assert len(opened) == 6
    continues(dataset.stream, 8)


def test_a_dataset_continues_in_a_stream_that_gives_a_little_at_a_time(shards, continues):
    class Little(io.FileIO):
        def read(self, size=-1):
            return super().read(min(size, 100) if size >= 0 else 100)

    continues(Dataset(shards, opener=Little).stream, 8)


def test_opener_may_give_a_context_as_its_stream(shards, open_shards):
    left = []

    @contextlib.contextmanager
    def opener(url):
        with open(url, "rb") as stream:
            yield stream
        left.append(url)

    assert numbers(Dataset(shards, open_fn=opener)) == list(range(20))
    assert len(left) == 6
    assert open_shards() == []


def test_an_initial_pipeline_gets_pairs_of_name_and_bytes(tar):
    path = tar([("a.cls", b"1"), ("a.txt", b"one")])
    assert list(Dataset(path, initial_pipeline=[iter])) == [("a.cls", b"1"), ("a.txt", b"one")]


def test_an_initial_pipeline_may_group_by_keys_of_its_own(shards, tar):
    def without_seven(samples):
        return (sample for sample in samples if sample["cls"] != b"7")

    initial = [mpwds.group_by_keys(suffixes={"cls"}), without_seven]
    dataset = Dataset(shards, initial_pipeline=initial).decode().to_tuple("cls")
    assert list(dataset) == [(n,) for n in range(20) if n != 7]
    path = tar([("a.1.cls", b"1"), ("a.2.cls", b"2")])
    grouped = mpwds.group_by_keys(lambda name: tuple(name.rsplit(".", 1)))
    assert [sample["__key__"] for sample in Dataset(path, initial_pipeline=[grouped])] == ["a.1", "a.2"]


def test_an_initial_pipeline_opens_and_skips_shards_as_the_options_say(shards):
    folder = shards.rpartition("/")[0]
    names = [f"local:{folder}/x-{n}.tar" for n in ("000", "no", "001")]
    initial = {"open_fn": open_local, "initial_pipeline": [mpwds.group_by_keys()]}
    with pytest.warns(UserWarning, match="x-no.tar"):
        assert numbers(Dataset(names, tarhandler=warn_and_continue, **initial)) == list(range(5))
    with pytest.raises(FileNotFoundError, match="x-no"):
        list(Dataset(names, **initial))


def test_errors_names_a_handler(tar):
    path = tar([("a.cls", b"1"), ("b.cls", b"one"), ("c.cls", b"3")])
    with pytest.raises(DecodeError, match="one"):
        list(Dataset(path, extensions="cls"))
    assert list(Dataset(path, extensions="cls", errors=False)) == [(1,), (3,)]
    assert list(Dataset(path, extensions="cls", handler=ignore_and_continue)) == [(1,), (3,)]
    with pytest.warns(UserWarning, match="one"):
        assert list(Dataset(path, extensions="cls", errors="warn")) == [(1,), (3,)]


def test_tarhandler_is_for_shards_that_cannot_be_read(tar, tmp_path):
    paths = [tar([("a.cls", b"1")], "a.tar"), str(tmp_path / "missing.tar"), tar([("c.cls", b"3")], "c.tar")]
    with pytest.warns(UserWarning, match="No such file"):
        assert numbers(Dataset(paths, tarhandler=warn_and_continue)) == [1, 3]
    with pytest.raises(FileNotFoundError):
        list(Dataset(paths))


PACKS = [("mp", msgpack.packb), ("json", lambda value: json.dumps(value).encode())]


@pytest.mark.parametrize(("extension", "pack"), PACKS)
def test_a_container_is_a_member_that_is_a_sample(tar, extension, pack):
    path = tar([(f"{n}.{extension}", pack({"x": n, "y": [n]})) for n in range(3)])
    samples = list(Dataset(path, container=extension))
    assert samples == [{"__key__": f"{n}.{extension}", "x": n, "y": [n]} for n in range(3)]
    fields = Dataset(path, container=extension, extensions="x y", decoder=None)
    assert list(fields) == [(n, [n]) for n in range(3)]


def test_a_tenbin_container_is_a_tuple_of_arrays(tar):
    path = tar([("0.ten", bytes(encode_buffer([np.ones((2, 3)), np.zeros(4)])))])
    ((xs, ys),) = Dataset(path, container="ten")
    assert (xs.tolist(), ys.tolist()) == ([[1] * 3] * 2, [0] * 4)


def test_a_pickle_container_is_read_where_that_is_allowed(tar):
    path = tar([("0.pyd", b"\x80\x04}\x94\x8c\x01x\x94K\x07s.")])
    with pytest.raises(DecodeError, match="allow_pickle=True"):
        list(Dataset(path, container="pyd"))
    assert list(Dataset(path, container="pyd", allow_pickle=True)) == [{"__key__": "0.pyd", "x": 7}]


def test_two_containers_under_one_key_are_an_error(tar):
    path = tar([("0.a.json", b"{}"), ("0.b.json", b"{}")])
    with pytest.raises(ValueError, match=r"expected one such member in a sample, got a\.json, b\.json"):
        list(Dataset(path, container="json"))


def read(dataset, **place):
    return [int(sample["cls"]) for _, sample in dataset.stream(Context(**place))]


def test_shards_are_divided_among_nodes_and_workers(shards):
    dataset = Dataset(shards).shuffle(1)
    assert sorted(numbers(read_everywhere(dataset.stream, 2, 2))) == list(range(20))


def test_hooks_are_options_and_attributes(shards):
    half = Dataset(shards, node_selection=lambda urls: urls[:4])
    assert read(half) == list(range(13))
    half.shard_selection = lambda urls: urls[1:]
    assert read(half, worker=1, workers=2) == read(half) == list(range(5, 13))
    half.shard_shuffle = sorted_backwards
    assert read(half) == [*range(6, 13), 5]
    assert (half.shard_shuffle, half.batched(2).shard_shuffle) == (sorted_backwards, sorted_backwards)
    half.shard_shuffle = None
    assert read(half) == list(range(5, 13))


def sorted_backwards(urls):
    return sorted(urls, reverse=True)


def test_a_hook_set_on_a_copy_leaves_the_original_as_it_is(shards):
    dataset = Dataset(shards).decode()
    copy = dataset.to_tuple("cls")
    copy.shard_shuffle = sorted_backwards
    assert [n for (n,) in copy] == [*range(16, 20), *range(13, 16), *range(6, 13), 5, *range(5)]
    assert numbers(dataset) == list(range(20))


def test_hooks_draw_the_same_random_numbers_for_the_same_epoch(shards, continues):
    def shuffled(urls):
        return random.sample(urls, len(urls))

    dataset = Dataset(shards, shard_shuffle=shuffled)
    assert read(dataset, epoch=1) == read(dataset, epoch=1) != read(dataset, epoch=2)
    continues(dataset.shuffle(5).stream, 8)


def test_all_urls_and_no_preparation_let_every_worker_read_all(shards):
    for dataset in (Dataset(shards, shard_selection=all_urls), Dataset(shards, prepare_for_worker=False)):
        assert read(dataset, worker=1, workers=2) == list(range(20))


def test_worker_urls_is_the_default(shards, monkeypatch):
    dataset = Dataset(shards, shard_selection=worker_urls)
    assert read(dataset, worker=1, workers=2) == read(Dataset(shards), worker=1, workers=2)
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "3")
    assert worker_urls(["a", "b", "c", "d", "e"]) == ["b", "e"]


def test_a_function_is_called_before_an_epochs_first_shard_is_chosen(shards):
    calls = []
    dataset = Dataset(shards, prepare_for_worker=lambda: calls.append("prepared"))
    dataset.node_selection = lambda urls: calls.append("chosen") or urls
    assert numbers(dataset) == list(range(20))
    assert calls == ["prepared", "chosen"]
    dataset.reseed_hook = lambda: calls.append("reseeded")
    list(dataset)
    assert calls[2:] == ["reseeded", "chosen"]


def test_it_prints_as_it_was_written(shards):
    dataset = Dataset("x-{0..9}.tar", extensions="png;jpg cls").shuffle(10)
    dataset.shard_shuffle = sorted_backwards
    parts = "Dataset('x-{0..9}.tar')", "decode('rgb')", "to_tuple('png;jpg', 'cls')", "shuffle(10)"
    assert str(dataset) == "\n    .".join(parts)


def test_it_continues_from_its_state(shards, continues):
    continues(Dataset(shards, extensions="txt cls", shuffle=7).batched(3).stream, 4)


def test_it_works_in_loaders(shards):
    dataset = Dataset(shards, shuffle=10, shard_shuffle=lambda urls: urls[::-1], extensions="cls")
    assert isinstance(dataset, torch.utils.data.IterableDataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    assert sorted(int(n) for (n,) in loader) == list(range(20))
    with MultiLoader(dataset, workers=2) as loader:
        assert sorted(int(n) for (n,) in loader) == list(range(20))
