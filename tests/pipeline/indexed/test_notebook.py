"""What a notebook shows of an indexed dataset."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

import mpwds


def images(html):
    found = re.findall(r'src="data:image/png;base64,([^"]*)"', html)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")) for data in found]


class Reader(HTMLParser):
    """The tags and texts of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture
def shards(tmp_path):
    """A function that writes samples into a shard, and opens it."""

    def write(*samples):
        with mpwds.TarWriter(str(tmp_path / "x.tar")) as sink:
            for number, sample in enumerate(samples):
                sink.write({"__key__": f"k{number}", **sample})
        return mpwds.IndexedDataset(tmp_path / "x.tar")

    return write


def red(value):
    return np.full((10, 10, 3), (value, 0, 0), np.uint8)


def test_images_are_pictures_with_their_labels_before_and_after_decoding(shards):
    dataset = shards(*({"png": red(100 + n), "cls": n} for n in range(20)))
    pairs = dataset.decode("rgb8").to_tuple("png", "cls")
    decoded = [dataset.decode(kind) for kind in ("rgb8", "pil", "torchrgb")]
    for each in (dataset, *decoded, pairs, pairs.map(lambda sample: sample[0])):
        html = each._repr_html_()
        pictures = images(html)
        assert [picture[44, 44].tolist() for picture in pictures] == [[100 + n, 0, 0] for n in range(12)]
        assert len(html) < 100_000
    assert "<figcaption>11 · k11</figcaption>" in dataset._repr_html_()
    assert "20 samples in 1 shard" in Reader(dataset._repr_html_()).texts[0]


def test_sounds_are_waveforms_and_texts_are_texts(shards):
    assert len(images(shards({"npy": np.sin(np.arange(1000)).astype("float32")})._repr_html_())) == 1
    texts = Reader(shards({"bin": b"\xff\x00", "txt": "a caption"})._repr_html_()).texts
    assert texts[1:] == ["a caption", "k0 · 2 bytes"]


def test_what_cannot_be_decoded_is_shown_by_its_size(shards):
    dataset = shards({"png": b"no image", "bin": b"12345"})
    assert Reader(dataset._repr_html_()).texts[1:] == ["k0", "5 bytes · 8 bytes"]


def test_no_text_of_the_data_is_taken_as_html_or_moves_a_cursor(shards):
    dataset = shards({"txt": "<script>alert(1)</script>\x1b[2J", "cls": 1}).decode().rename(**{"a<b>": "txt"})
    page = Reader(dataset._repr_html_())
    assert set(page.tags) <= {"pre", "div", "figure", "figcaption", "img"}
    assert "<script>alert(1)</script>�[2J" in page.texts


def test_a_sample_that_cannot_be_read_is_named(shards):
    def check(sample):
        if sample["__key__"] == "k1":
            raise ValueError("<i>unlabelled</i>")
        return sample

    html = shards({"png": red(9)}, {"png": red(9)}).map(check)._repr_html_()
    assert len(images(html)) == 1
    assert Reader(html).texts[-1] == "sample 1 cannot be read: ValueError: <i>unlabelled</i>"


def test_an_empty_dataset_shows_its_size():
    texts = Reader(mpwds.IndexedDataset([])._repr_html_()).texts
    assert texts == ["IndexedDataset(list)\n0 samples in 1 shard"]
