"""AIStore, and the clouds behind it, over its HTTP interface."""

import pytest

from mpwds.errors import StreamNotFound
from mpwds.storage.streams.gopen import gopen, gopen_schemes, open_at

CONTENT = bytes(range(256)) * 100


@pytest.fixture
def cluster(web, make_web, monkeypatch):
    """A proxy, which redirects to a target, as a cluster's does."""
    target = make_web()
    target.files["/v1/objects/bucket/train/x%200.tar"] = CONTENT
    monkeypatch.setenv("AIS_ENDPOINT", web.url("/").rstrip("/"))

    def redirect(path):
        web.plan.append({"status": 307, "headers": {"Location": target.url(path)}})

    return web, target, redirect


@pytest.mark.parametrize(
    ("url", "provider"), [("ais", "ais"), ("gs", "gcp"), ("s3", "aws"), ("az", "azure"), ("oc", "oci")]
)
def test_objects_are_read_through_the_cluster(cluster, monkeypatch, url, provider):
    proxy, _, redirect = cluster
    monkeypatch.setenv("USE_AIS_FOR", "gs:s3:az:oc")
    redirect("/v1/objects/bucket/train/x%200.tar?provider=x")
    with gopen(f"{url}://bucket/train/x 0.tar") as stream:
        assert stream.read() == CONTENT
    assert proxy.requests[0][1] == f"/v1/objects/bucket/train/x%200.tar?provider={provider}"


def test_an_object_is_read_from_an_offset_and_on_after_a_break(cluster):
    _, target, redirect = cluster
    for _ in range(2):
        redirect("/v1/objects/bucket/train/x%200.tar")
    target.plan = [{"cut": 1000}]
    with open_at("ais://bucket/train/x 0.tar", 500) as stream:
        assert stream.read() == CONTENT[500:]
    assert target.asked("Range") == ["bytes=500-", "bytes=1500-"]


def test_objects_are_written_to_the_target_that_the_proxy_names(cluster):
    _, target, redirect = cluster
    redirect("/v1/objects/bucket/y.tar?provider=ais")
    with gopen("ais://bucket/y.tar", "wb") as stream:
        stream.write(CONTENT)
    assert target.files["/v1/objects/bucket/y.tar"] == CONTENT


def test_a_token_from_the_environment_goes_to_the_cluster(web, monkeypatch):
    monkeypatch.setenv("AIS_ENDPOINT", web.url("/"))
    monkeypatch.setenv("AIS_AUTHN_TOKEN", "abc")
    with pytest.raises(StreamNotFound, match=r"ais://bucket/x.tar \(by AIStore\)"):
        gopen("ais://bucket/x.tar")
    assert web.asked("Authorization") == ["Bearer abc"]


def test_schemes_that_are_not_listed_do_not_go_through_the_cluster(web, monkeypatch):
    monkeypatch.setenv("USE_AIS_FOR", "gs")
    monkeypatch.setitem(gopen_schemes, "s3", lambda url, mode, bufsize: url)
    assert gopen("s3://bucket/x") == "s3://bucket/x"


def test_an_opener_of_the_users_own_comes_before_the_cluster(monkeypatch):
    monkeypatch.setenv("USE_AIS_FOR", "gs")
    monkeypatch.setitem(gopen_schemes, "gs", lambda url, mode, bufsize: url)
    assert gopen("gs://bucket/x") == "gs://bucket/x"
