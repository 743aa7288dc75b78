"""Whether objects of cloud storage exist."""

import threading

import pytest

from mpwds.cli.outputs import which_exist
from mpwds.storage.streams.gopen import exists

URLS = [f"s3://bucket/{number}.tar" for number in range(5)]


@pytest.fixture(autouse=True)
def storage(web, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url("/").rstrip("/"))
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    for url in URLS:
        web.files[url.removeprefix("s3:/")] = b"content"


def test_whether_an_object_exists_is_a_head(web):
    assert exists(URLS[0])
    assert not exists("s3://bucket/no.tar")
    assert [method for method, *_ in web.requests] == ["HEAD", "HEAD"]


def test_a_busy_store_is_asked_again_whether_an_object_exists(web, pauses):
    web.plan = [{"status": 503}]
    assert exists(URLS[0])
    methods = [method for method, *_ in web.requests]
    assert set(methods) == {"HEAD"}
    assert len(methods) >= 2  # the client may send one again whose connection was closed


def test_many_objects_are_looked_for_at_a_time(web):
    names = [*URLS, *(f"s3://bucket/no-{number}.tar" for number in range(20))]
    web.plan = [{"meets": threading.Barrier(len(names), timeout=600)}] * len(names)
    assert list(which_exist(names)) == URLS
