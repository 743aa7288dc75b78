"""Names of cached shards agree with webdataset's, stay inside the directory and tell URLs apart."""

import pytest
import webdataset.cache
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.cache import pipe_cleaner
from mpwds.storage.caches.directory import cache_name, distinct_name, source_digest, url_to_cache_name

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


def test_a_url_without_a_path_has_a_name_all_the_same():
    assert cache_name("https://host/") == "https%3A%2F%2Fhost%2F"


def test_credentials_do_not_tell_urls_apart():
    assert source_digest("https://me:pass@host/a.tar") == source_digest("https://host/a.tar")


SIGNATURES = {
    "S3 v4": "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=A%2F{0}&X-Amz-Date={0}&X-Amz-Expires=60"
    "&X-Amz-SignedHeaders=host&X-Amz-Security-Token={0}&X-Amz-Signature={0}",
    "S3 v2": "AWSAccessKeyId=A&Signature={0}%3D&Expires=17{0}",
    "Google v4": "X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Credential={0}&X-Goog-Date={0}&X-Goog-Expires=9"
    "&X-Goog-SignedHeaders=host&X-Goog-Signature={0}",
    "Google v2": "GoogleAccessId=me%40project&Expires=17{0}&Signature={0}",
    "Azure": "sp=r&st=2024-01-0{0}T00:00:00Z&se=2024-02-0{0}T00:00:00Z&spr=https&sv=2022-11-02&sr=b"
    "&sig={0}%3D",
    "CloudFront": "Expires=17{0}&Signature={0}__&Key-Pair-Id=K2",
    "CloudFront, by policy": "Policy=ey{0}_&Signature={0}__&Key-Pair-Id=K2",
}
parameters = st.lists(
    st.tuples(
        st.sampled_from(["file", "versionId", "snapshot", "generation", "part", "key", "token", "signed"]),
        st.text("01ab", min_size=1, max_size=3),
    ),
    max_size=3,
)


def query(pairs):
    return "&".join(f"{name}={value}" for name, value in pairs)


@settings(max_examples=50, deadline=None)
@given(
    kind=st.sampled_from(sorted(SIGNATURES)),
    before=parameters,
    after=parameters,
    digits=st.tuples(*[st.integers(1, 9)] * 2),
)
@pytest.mark.parametrize("form", ["https://host/get?{}", "pipe:curl -sL 'https://host/get?{}' | cat b?"])
def test_two_signatures_of_an_object_share_an_entry(form, kind, before, after, digits):
    one, other = (
        "&".join(filter(None, [query(before), SIGNATURES[kind].format(digit), query(after)]))
        for digit in digits
    )
    assert source_digest(form.format(one)) == source_digest(form.format(other))


@settings(max_examples=100, deadline=None)
@given(kind=st.sampled_from(["", *sorted(SIGNATURES)]), one=parameters, other=parameters)
def test_two_objects_never_share_an_entry(kind, one, other):
    signature = SIGNATURES.get(kind, "sig=a").format(1)
    urls = [f"https://host/get?{query(each)}&{signature}" for each in (one, other)]
    assert (source_digest(urls[0]) == source_digest(urls[1])) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://host/train/a.tar", "https://host/val/a.tar"),
        ("https://host/get?file=000.tar&sig=a", "https://host/get?file=001.tar&sig=a"),
        ("https://host/get?st=1&sig=a", "https://host/get?st=2&sig=a"),
        ("https://host/get?Policy=1&Signature=a", "https://host/get?Policy=2&Signature=a"),
        ("https://host/get?Expires=1", "https://host/get?Expires=2"),
        ("pipe:cat a.tar", "pipe:cat b.tar"),
        (
            "pipe:curl 'https://host/a?X-Amz-Signature=a' | cat a",
            "pipe:curl 'https://host/a?X-Amz-Signature=a' | cat b",
        ),
    ],
)
def test_what_is_not_a_known_signature_tells_urls_apart(one, other):
    assert source_digest(one) != source_digest(other)


@pytest.mark.parametrize("name", ["a", "a.tar", "a.tar.gz", "x.y/a.tar", ".a"])
def test_a_distinct_name_is_in_the_same_directory_and_has_the_same_extensions(name):
    other = distinct_name(name, "0123456789abcdef")
    assert other != name
    assert other.rpartition("/")[0] == name.rpartition("/")[0]
    stem, dot, extensions = name.rpartition("/")[2].partition(".")
    assert other.endswith(f"{stem}-0123456789abcdef{dot}{extensions}")


def test_a_part_of_a_name_may_have_200_bytes():
    assert cache_name("http://host/a", lambda url: "d/" + "é" * 100) == "d/" + "é" * 100
    with pytest.raises(ValueError, match="more than 200 bytes"):
        cache_name("http://host/a", lambda url: "d/" + "é" * 100 + "x")


def test_an_error_shows_no_credentials():
    with pytest.raises(ValueError, match="does not name a file") as caught:
        cache_name("https://me:pass@host/a.tar", lambda url: "../a.tar")
    assert "pass" not in str(caught.value)
