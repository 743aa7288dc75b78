"""Names of cached shards agree with webdataset's, stay inside the directory and tell URLs apart."""

import pytest
import webdataset.cache
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.storage.caches.names import (
    cache_name,
    distinct_name,
    pipe_cleaner,
    source_digest,
    url_to_cache_name,
)

SCHEMES = ["", "file", "http", "https", "ftp", "gs", "s3", "ais", "hf", "pipe"]
paths = st.text("abc0/._- %:?&=+", min_size=1, max_size=150)


@settings(max_examples=100, deadline=None)
@given(scheme=st.sampled_from(SCHEMES), path=paths, directories=st.integers(0, 3))
def test_names_are_those_of_webdataset(scheme, path, directories):
    url = f"{scheme}:{path}" if scheme == "pipe" else f"{scheme}://host/{path}"
    assert url_to_cache_name(url, directories) == webdataset.cache.url_to_cache_name(url, directories)


@pytest.mark.parametrize(
    ("spec", "url"),
    [
        ("pipe:curl -s -L https://host/a.tar", "https://host/a.tar"),
        ("pipe:aws s3 cp s3://bucket/a.tar - || true", "s3://bucket/a.tar"),
        ("pipe:curl -s 'http://host/a.tar?x=1'", "http://host/a.tar?x=1"),
        ("pipe:cat /data/a.tar", "cat /data/a.tar"),
        ("https://host/a.tar", "https://host/a.tar"),
    ],
)
def test_a_command_is_known_by_the_url_it_reads(spec, url):
    assert pipe_cleaner(spec) == url


def test_what_is_no_string_is_no_url():
    with pytest.raises(TypeError, match="a URL is a string, got int: 123"):
        url_to_cache_name(123)
    with pytest.raises(TypeError, match="url_to_name must return a file name, got 7"):
        cache_name("https://host/a.tar", lambda url: 7)


def test_a_url_without_a_path_has_a_name_all_the_same():
    assert cache_name("https://host/") == "https%3A%2F%2Fhost%2F"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://host/a.tar", "https://me:pass@host/a.tar"),
        ("https://host/a.tar?X-Amz-Date=1&X-Amz-Signature=a", "https://host/a.tar?X-Amz-Signature=b"),
        ("https://host/a.tar?sv=1&sig=a", "https://host/a.tar"),
    ],
)
def test_credentials_do_not_tell_urls_apart(one, other):
    assert source_digest(one) == source_digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://host/train/a.tar", "https://host/val/a.tar"),
        ("https://host/get?shard=1", "https://host/get?shard=2"),
        ("pipe:cat a.tar", "pipe:cat b.tar"),
    ],
)
def test_everything_else_does(one, other):
    assert source_digest(one) != source_digest(other)


@pytest.mark.parametrize("name", ["a", "a.tar", "a.tar.gz", "x.y/a.tar", ".a"])
def test_a_distinct_name_is_in_the_same_directory_and_has_the_same_extensions(name):
    other = distinct_name(name, "0123456789abcdef")
    assert other != name
    assert other.rpartition("/")[0] == name.rpartition("/")[0]
    assert other.partition("-01234567")[2] == name.rpartition("/")[2].removeprefix(
        name.rpartition("/")[2].partition(".")[0]
    )


def test_an_error_shows_no_credentials():
    with pytest.raises(ValueError, match="no name of a file") as caught:
        cache_name("https://me:pass@host/a.tar", lambda url: "../a.tar")
    assert "pass" not in str(caught.value)
