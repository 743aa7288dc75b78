"""Shard patterns and URLs: which names they stand for, which are local."""

import pathlib

import pytest
from webdataset.shardlists import expand_urls as webdataset_expand_urls

from mpwds.storage.streams.patterns import expand_urls
from mpwds.storage.streams.urls import is_local, local_path, without_credentials


@pytest.mark.parametrize(
    "pattern",
    [
        "a.tar",
        "a-{000..012}.tar",
        "a-{x,y}-{0..2}.tar",
        "a.tar::b-{0..1}.tar::c.tar",
        "${ROOT}/${NESTED}-{0..1}.tar",
    ],
)
def test_a_pattern_expands_as_in_webdataset(pattern, monkeypatch):
    monkeypatch.setenv("WDS_ROOT", "/data")
    monkeypatch.setenv("WDS_NESTED", "${ROOT}-{a,b}")
    assert expand_urls(pattern) == webdataset_expand_urls(pattern)


@pytest.mark.parametrize(
    ("given", "urls"),
    [
        (iter(["a-{0..1}.tar", "b::c.tar", "*.tar"]), ["a-{0..1}.tar", "b::c.tar", "*.tar"]),
        ([pathlib.Path("data/a.tar")], ["data/a.tar"]),
        (pathlib.Path("data") / "a-{0..1}.tar", ["data/a-0.tar", "data/a-1.tar"]),
    ],
)
def test_paths_may_hold_braces_and_an_iterable_is_listed_without_expansion(given, urls):
    assert expand_urls(given) == urls


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("a.tar", "a.tar"),
        ("/data/a:b.tar", "/data/a:b.tar"),
        ("data/s3:x.tar", "data/s3:x.tar"),
        ("C:/data/a.tar", "C:/data/a.tar"),
        ("2024-01:a.tar", "2024-01:a.tar"),
        ("file:a.tar", "a.tar"),
        ("file:/data/a.tar", "/data/a.tar"),
        ("file:///data/a.tar", "/data/a.tar"),
        ("file://localhost/data/a.tar", "/data/a.tar"),
        ("file:///data/my%20x.tar", "/data/my x.tar"),
        ("/data/my%20x.tar", "/data/my%20x.tar"),
        (pathlib.Path("a.tar"), "a.tar"),
    ],
)
def test_paths_and_file_urls_are_local(url, path):
    assert local_path(url) == path


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:secret@host/x.tar", "https://***@host/x.tar"),
        ("https://secret@host/x@1.tar", "https://***@host/x@1.tar"),
        (
            "https://host/x?part=1&X-Amz-Credential=secret&sig=secret",
            "https://host/x?part=1&X-Amz-Credential=***&sig=***",
        ),
        ("pipe:curl -H 'Authorization: Bearer secret' -s x", "pipe:curl -H 'Authorization: Bearer ***' -s x"),
        ("pipe:curl -H PRIVATE-TOKEN:secret x", "pipe:curl -H PRIVATE-TOKEN:*** x"),
        ("pipe:curl ftp://me:secret@host/x | cat", "pipe:curl ftp://***@host/x | cat"),
        (
            "abfss://container@account.dfs.core.windows.net/x",
            "abfss://container@account.dfs.core.windows.net/x",
        ),
        ("/data/basic training?key=a/x@2.tar", "/data/basic training?key=a/x@2.tar"),
    ],
)
def test_urls_are_shown_without_credentials_and_otherwise_as_they_are(url, shown):
    assert without_credentials(url) == shown


def test_is_local_says_what_local_path_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ab:c.tar").touch()
    urls = ["x.tar", "C:/x", "file:x", "FILE:x", "ab:c.tar", "ab:d.tar", "pipe:x", "s3://b/x"]
    assert [is_local(url) for url in urls] == [True, True, True, True, True, False, False, False]
