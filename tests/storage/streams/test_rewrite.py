"""Rules in the environment that rewrite URLs."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from webdataset.gopen import rewrite_url as webdataset_rewrite_url

from mpwds.errors import SecurityError
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.urls import rewrite_url

RULES = [
    "http://old.com/=http://new.com/;ftp://=http://",
    "gs://=pipe:ssh proxy gsutil cat ",
    "gs://=pipe:curl --header=a=b -d x=y ",
    "gs://(\\w+)/=/data/\\1/",
    "s3://[ab]/=/x/;s3://=/y/",
    "[hf]ttps?://[^/]*/=/mirror/",
]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(
    "url",
    ["http://old.com/x", "ftp://h/x", "gs://bucket/x=1.tar", "s3://a/x", "s3://c/x", "https://h/x", "/x"],
)
def test_rules_mean_what_they_mean_to_webdataset(rules, url, monkeypatch):
    monkeypatch.setenv("GOPEN_REWRITE", rules)
    assert rewrite_url(url) == webdataset_rewrite_url(url)


@given(
    rules=st.lists(st.tuples(st.text("ab/:", min_size=1), st.text("ab/:=")), min_size=1, max_size=3),
    url=st.text("ab/:", min_size=1),
)
def test_plain_rules_mean_what_they_mean_to_webdataset(rules, url):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOPEN_REWRITE", ";".join(f"{prefix}={replacement}" for prefix, replacement in rules))
        assert rewrite_url(url) == webdataset_rewrite_url(url)


def test_a_prefix_may_hold_equals_signs(monkeypatch):
    monkeypatch.setenv("WDS_REWRITE", "https://host/get?x=1=file:/local/;https://host/get?x=1&y=2==pipe:a=b ")
    assert rewrite_url("https://host/get?x=1a.tar") == "file:/local/a.tar"
    assert rewrite_url("https://host/get?x=2a.tar") == "https://host/get?x=2a.tar"


@given(prefix=st.text("ab=?", min_size=1), replacement=st.text("cd", min_size=1), rest=st.text("ef"))
def test_any_prefix_that_matches_letter_by_letter_is_replaced(prefix, replacement, rest):
    assume("=" in prefix[1:] and prefix[-1] != "=")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WDS_REWRITE", f"{prefix}={replacement}")
        assert rewrite_url(prefix + rest) == replacement + rest


def test_empty_rules_are_passed_over(monkeypatch):
    monkeypatch.setenv("WDS_REWRITE", ";gs://=/data/; ;")
    assert rewrite_url("gs://x.tar") == "/data/x.tar"


def test_the_first_rule_that_changes_a_url_counts_and_wds_rewrite_comes_first(monkeypatch):
    monkeypatch.setenv("GOPEN_REWRITE", "gs://=/second/;s3://=/third/")
    monkeypatch.setenv("WDS_REWRITE", "gs://=gs://;gs://=/first/;/first/=/never/")
    assert rewrite_url("gs://x") == "/first/x"
    assert rewrite_url("s3://x") == "/third/x"


def test_rules_are_refused_in_secure_mode(monkeypatch):
    monkeypatch.setenv("WDS_REWRITE", "gs://=/data/")
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(SecurityError, match="not rewritten by WDS_REWRITE in secure mode"):
        rewrite_url("http://host/x")


def test_gopen_reads_what_a_rule_yields(tmp_path, monkeypatch, capfd):
    (tmp_path / "x.tar").write_bytes(b"content")
    monkeypatch.setenv("WDS_REWRITE", f"gs://bucket=pipe:cat {tmp_path}")
    monkeypatch.setenv("GOPEN_VERBOSE", "1")
    with gopen("gs://bucket/x.tar") as stream:
        assert stream.read() == b"content"
    said = capfd.readouterr().err
    assert f"GOPEN REWRITE gs://bucket/x.tar -> pipe:cat {tmp_path}/x.tar\n" in said
    assert f"GOPEN exit 0 pipe:cat {tmp_path}/x.tar\n" in said


@pytest.mark.parametrize("rules", [None, ""])
@pytest.mark.parametrize("secure", ["0", "1"])
def test_without_rules_nothing_changes_or_is_refused(monkeypatch, rules, secure):
    if rules is not None:
        monkeypatch.setenv("WDS_REWRITE", rules)
    monkeypatch.setenv("WDS_SECURE", secure)
    assert rewrite_url("https://host/x.tar") == "https://host/x.tar"
