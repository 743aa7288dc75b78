"""The secure mode, and URLs that are not the user's own."""

import subprocess
import sys

import pytest

from mpwds.errors import SecurityError
from mpwds.storage.streams.gopen import gopen, open_at
from mpwds.storage.streams.secure import (
    ModuleWithEnforceSecurity,
    check_url,
    enforce_security,
    refuse_in_secure_mode,
    security_enforced,
)


@pytest.fixture
def secure(monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "1")


@pytest.mark.parametrize(
    ("value", "on"),
    [("1", True), ("true", True), ("yes", True), ("2", True), ("0", False), ("", False), ("false", False)],
)
def test_the_environment_switches_it_on(monkeypatch, value, on):
    monkeypatch.setenv("WDS_SECURE", value)
    assert security_enforced() is on


def test_processes_started_later_have_it_too(monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "0")
    enforce_security()
    code = "from mpwds.storage.streams.secure import security_enforced; print(security_enforced())"
    child = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert child.stdout == "True\n"


def test_a_module_offers_it_as_an_attribute(monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "0")
    utils = ModuleWithEnforceSecurity("utils")
    utils.enforce_security = True
    assert (utils.enforce_security, security_enforced()) == (True, True)


@pytest.mark.parametrize("opens", [gopen, open_at])
@pytest.mark.parametrize("url", ["{}/x.tar", "file:{}/x.tar", "file://{}/x.tar"])
def test_local_files_are_refused(secure, tmp_path, url, opens):
    (tmp_path / "x.tar").touch()
    with pytest.raises(ValueError, match="local files may not be opened .* in secure mode"):
        opens(url.format(tmp_path))


def test_a_file_whose_name_looks_like_a_url_is_refused(secure, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ab:c.tar").touch()
    with pytest.raises(SecurityError, match="local files"):
        gopen("ab:c.tar")


@pytest.mark.parametrize("mode", ["rb", "wb"])
def test_commands_are_refused(secure, tmp_path, mode):
    with pytest.raises(SecurityError, match="commands may not be run"):
        gopen(f"pipe:touch {tmp_path}/done", mode)
    assert not (tmp_path / "done").exists()


def test_web_servers_and_standard_streams_are_not_refused(secure, web):
    web.files["/x.tar"] = b"content"
    with gopen(web.url()) as stream:
        assert stream.read() == b"content"
    assert gopen("-", "wb") is sys.stdout.buffer


def test_what_is_refused_is_said_only_in_secure_mode(monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "0")
    refuse_in_secure_mode("pickles may not be read")
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(SecurityError, match="^pickles may not be read in secure mode"):
        refuse_in_secure_mode("pickles may not be read")


@pytest.mark.parametrize(
    "url",
    [
        "pipe:rm -r x",
        "PIPE:rm",
        "a.tar::pipe:rm",
        "{a.tar,pipe:rm}",
        "{pipe,http}:rm",
        "pip{e..f}:rm",
        "pi{,}pe:rm",
        "${HIDDEN}rm",
        "a{::pipe:rm",
    ],
)
def test_a_command_in_a_file_is_refused_however_it_is_spelt(monkeypatch, url):
    monkeypatch.setenv("WDS_HIDDEN", "pipe:")
    with pytest.raises(SecurityError, match="^train.yaml, line 7: the URL .* runs a command.*trusted=True"):
        check_url(url, trusted=False, where="train.yaml, line 7")


@pytest.mark.parametrize("url", ["http://host/{0..9}.tar", "s3://pipe:x/a", "data/pipe:x.tar", "x.tar", "{x"])
def test_other_urls_in_a_file_are_not_refused(url):
    check_url(url, trusted=False, where="train.yaml")


def test_a_command_in_a_trusted_file_is_not_refused():
    check_url("pipe:cat x.tar", trusted=True, where="train.yaml")


def test_the_users_environment_may_turn_a_checked_url_into_a_command(monkeypatch):
    monkeypatch.setenv("WDS_REWRITE", "gs://=pipe:echo ")
    check_url("gs://bucket", trusted=False, where="train.yaml")
    with gopen("gs://bucket") as stream:
        assert stream.read() == b"bucket\n"


@pytest.mark.parametrize(
    "url",
    [
        "gs://b/x.tar;touch done",
        "gs://b/$(touch done)",
        "gs://b/`id`",
        "gs://b/x|sh",
        "gs://b/a b",
        "gs://-oX=y",
    ],
)
def test_a_url_in_a_file_adds_no_words_to_the_command_that_the_environment_makes_of_it(monkeypatch, url):
    check_url(url, trusted=False, where="train.yaml")
    monkeypatch.setenv("WDS_REWRITE", "gs://=pipe:echo ")
    check_url(url, trusted=True, where="train.yaml")
    with pytest.raises(SecurityError, match="^train.yaml: the URL .* for the shell.*WDS_REWRITE"):
        check_url(url, trusted=False, where="train.yaml")
