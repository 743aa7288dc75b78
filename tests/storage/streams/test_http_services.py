"""Files of the Hugging Face Hub, and objects in AIStore and the clouds behind it, by HTTP."""

import pytest

from mpwds.errors import StreamNotFound
from mpwds.storage.streams.gopen import gopen, gopen_schemes, open_at
from mpwds.storage.streams.http import hf_location

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


@pytest.fixture
def hub(web, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", web.url("/"))
    for variable in ("HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return web


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("hf://datasets/me/digits/a/0.tar", "/datasets/me/digits/resolve/main/a/0.tar"),
        ("hf://datasets/me/digits@v1.0/0.tar", "/datasets/me/digits/resolve/v1.0/0.tar"),
        ("hf://datasets/me/digits@refs/pr/7/0.tar", "/datasets/me/digits/resolve/refs%2Fpr%2F7/0.tar"),
        ("hf://datasets/me/digits@a%2Fb/0.tar", "/datasets/me/digits/resolve/a%2Fb/0.tar"),
        ("hf://me/model/x y.bin", "/me/model/resolve/main/x%20y.bin"),
        ("hf://spaces/me/app/x", "/spaces/me/app/resolve/main/x"),
    ],
)
def test_a_url_is_a_web_address(url, path):
    assert hf_location(url) == "https://huggingface.co" + path


@pytest.mark.parametrize("kept_in", ["environment", "file", None])
def test_the_token_goes_to_the_hub_alone(hub, make_web, monkeypatch, tmp_path, kept_in):
    if kept_in == "environment":
        monkeypatch.setenv("HF_TOKEN", "abc")
    elif kept_in == "file":
        (tmp_path / "token").write_text("abc\n")
    files = make_web()
    files.files["/blob"] = b"content"
    hub.plan = [{"status": 302, "headers": {"Location": files.url("/blob")}}]
    with open_at("hf://datasets/me/digits/0.tar", 3) as stream:
        assert stream.read() == b"tent"
    assert hub.requests[0][1] == "/datasets/me/digits/resolve/main/0.tar"
    assert hub.asked("Authorization") == ["Bearer abc" if kept_in else None]
    assert files.asked("Authorization") == [None]
