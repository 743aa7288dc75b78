"""AIStore, and the clouds behind it, over its HTTP interface."""

import pytest

from mpwds.errors import StreamNotFound
from mpwds.storage.streams.gopen import gopen, gopen_schemes

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


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_what_is_not_listed_or_has_an_opener_of_the_users_own_bypasses_the_cluster(monkeypatch, scheme):
    monkeypatch.setenv("USE_AIS_FOR", "gs")
    monkeypatch.setitem(gopen_schemes, scheme, lambda url, mode, bufsize: url)
    assert gopen(f"{scheme}://bucket/x") == f"{scheme}://bucket/x"
