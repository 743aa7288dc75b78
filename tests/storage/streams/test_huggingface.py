"""Files of the Hugging Face Hub."""

import pytest

from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.http import hf_location


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
