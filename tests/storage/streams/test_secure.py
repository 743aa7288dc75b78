"""The secure mode, and URLs that are not the user's own."""

import subprocess
import sys

import pytest

from mpwds.errors import SecurityError
from mpwds.pipeline.sources.specs import load_spec
from mpwds.storage.streams.gopen import gopen, open_at
from mpwds.storage.streams.patterns import check_url
from mpwds.storage.streams.urls import enforce_security, security_enforced


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
    code = "from mpwds.storage.streams.urls import security_enforced; print(security_enforced())"
    child = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert child.stdout == "True\n"


def test_a_module_offers_it_as_an_attribute(monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "0")
    from mpwds import utils

    utils.enforce_security = True
    assert (utils.enforce_security, security_enforced()) == (True, True)


@pytest.mark.parametrize("opens", [gopen, open_at])
@pytest.mark.parametrize("url", ["{}/x.tar", "file:{}/x.tar", "file://{}/x.tar", "ab:c.tar"])
def test_local_files_are_refused(secure, tmp_path, monkeypatch, url, opens):
    monkeypatch.chdir(tmp_path)
    for name in ("x.tar", "ab:c.tar"):  # which looks like a URL
        (tmp_path / name).touch()
    with pytest.raises(SecurityError, match="local files may not be opened .* in secure mode"):
        opens(url.format(tmp_path))


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


@pytest.mark.parametrize(
    "url",
    [
        "pipe:rm -r x",
        "PIPE:rm",
        "a.tar::pipe:rm",
        "{a.tar,pipe:rm}",
        "{pipe,http}:rm",
        "{no-such-*.tar,pipe:rm}",
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
def test_other_urls_in_a_file_and_commands_in_a_trusted_one_are_not_refused(url):
    check_url(url, trusted=False, where="train.yaml")
    check_url("pipe:cat x.tar", trusted=True, where="train.yaml")


def test_the_users_environment_may_turn_a_checked_url_into_a_command(monkeypatch):
    monkeypatch.setenv("WDS_REWRITE", "gs://=pipe:echo ")
    check_url("gs://bucket", trusted=False, where="train.yaml")
    with gopen("gs://bucket") as stream:
        assert stream.read() == b"bucket\n"


NOT_PLAIN = [
    *("x.tar;touch done", "$(touch done)", "`id`", "x|sh", "a b", "x?.tar", "*.tar", "[ab].tar"),
    *("a\nb", "a\n", "~x", "a'b"),
]
OPTIONS = [
    *("--config=http:evil/x.tar", "-oProxyCommand=x", "%2d-config=x", "%2D-config=x"),
    *("@/etc/passwd", "+x", "-", "a.tar\n--config=x"),
]


@pytest.mark.parametrize("rest", NOT_PLAIN)
@pytest.mark.parametrize("rule", ["gs://=pipe:echo ", "gs://b/=pipe:echo ", r"gs://b/(.*)=pipe:echo \1 end"])
def test_a_url_in_a_file_adds_no_words_to_the_command_that_the_environment_makes_of_it(
    monkeypatch, rest, rule
):
    url = f"gs://b/{rest}"
    check_url(url, trusted=False, where="train.yaml")
    monkeypatch.setenv("WDS_REWRITE", rule)
    check_url(url, trusted=True, where="train.yaml")
    check_url("gs://b/train-000.tar", trusted=False, where="train.yaml")
    with pytest.raises(SecurityError, match="^train.yaml: the URL .* for the shell.*WDS_REWRITE"):
        check_url(url, trusted=False, where="train.yaml")


@pytest.mark.parametrize("rest", OPTIONS)
@pytest.mark.parametrize(
    "rule",
    [
        "s3://data/=pipe:rclone cat ",
        "s3://data/=pipe:rclone cat remote:",
        r"s3://(\w+)/(.*)=pipe:rclone --\1 cat \2",
        r"s3://data/(?P<path>[^/]*)=pipe:rclone cat \g<path>",
        r"s3://data/(v\d+/)?=pipe:rclone cat \1",
        "s3://data/?versions=1&x==pipe:rclone cat ",
    ],
)
def test_a_url_in_a_file_adds_no_option_to_the_command(monkeypatch, rest, rule):
    monkeypatch.setenv("GOPEN_REWRITE", rule)
    prefix = "s3://data/?versions=1&x=" if "versions" in rule else "s3://data/"
    check_url(prefix + "a/x-000.tar", trusted=False, where="train.yaml")
    with pytest.raises(SecurityError, match="^train.yaml: the URL .* would add an option.*GOPEN_REWRITE"):
        check_url(prefix + rest, trusted=False, where="train.yaml")


@pytest.mark.parametrize(
    "rule", ["s3://data/=/shared/data/", "s3://data=file:/shared/data", "s3://data/=pipe:cat /shared/data/"]
)
@pytest.mark.parametrize("rest", ["../../etc/passwd", "a/../../../etc/passwd", "%2e%2e/x", "a/.%2E/x", ".."])
def test_a_url_in_a_file_does_not_leave_the_folder_that_a_rule_maps_it_to(monkeypatch, rest, rule):
    monkeypatch.setenv("WDS_REWRITE", rule)
    check_url("s3://data/a..b/x..tar", trusted=False, where="train.yaml")
    check_url(f"s3://other/{rest}", trusted=False, where="train.yaml")
    with pytest.raises(SecurityError, match=r"^train.yaml: the URL .* has '\.\.'.*WDS_REWRITE"):
        check_url(f"s3://data/{rest}", trusted=False, where="train.yaml")


def test_a_specification_adds_no_option_to_the_command_that_the_environment_makes_of_its_shards(monkeypatch):
    monkeypatch.setenv("WDS_REWRITE", "s3://data/=pipe:rclone cat ")
    spec = {"prefix": "s3://data/", "datasets": [{"shards": "--config=http:evil/x-{0..1}.tar"}]}
    with pytest.raises(SecurityError, match="would add an option"):
        load_spec(spec, trusted=False)
