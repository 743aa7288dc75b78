"""Objects in cloud storage, at a local server that speaks as much of S3 as is needed."""

import sys
import threading
from types import SimpleNamespace

import pytest

from mpwds.cli.outputs import which_exist
from mpwds.errors import StreamError, StreamNotFound
from mpwds.storage.streams import cloud
from mpwds.storage.streams.cloud import profile_settings
from mpwds.storage.streams.gopen import exists, gopen, open_at, open_range, version_at
from mpwds.storage.streams.resuming import Retries
from tests.forks import raised_in_fork
from tests.storage.streams.served import CONTENT, OTHER


@pytest.fixture(autouse=True)
def storage(s3, monkeypatch, tmp_path):
    for variable in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_REGION", "R2_ACCOUNT_ID"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    s3.files["/bucket/a/x.tar"] = CONTENT


@pytest.mark.parametrize("scheme", ["s3", "s3a", "r2", "S3"])
def test_reads_an_object(scheme):
    with gopen(f"{scheme}://bucket/a/x.tar") as stream:
        assert stream.read() == CONTENT


@pytest.mark.parametrize(("config", "region"), [({}, "auto"), ({"region": "weur"}, "weur")])
def test_requests_to_r2_are_signed_for_its_region(web, monkeypatch, config, region):
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with cloud.open_cloud("r2://bucket/a/x.tar", config=config) as stream:
        assert stream.read() == CONTENT
    assert f"/{region}/s3/" in web.asked("authorization")[0]


@pytest.mark.parametrize("offset", [1, 299_999, 300_000])
def test_reads_from_an_offset(web, offset):
    with open_at("s3://bucket/a/x.tar", offset) as stream:
        assert stream.read() == CONTENT[offset:]
    assert web.requests[0][2]["range"].startswith(f"bytes={offset}-")


def test_an_offset_behind_the_end_is_an_error():
    with pytest.raises(StreamError, match="ends at byte 300000, .* it is shorter"):
        open_at("s3://bucket/a/x.tar", 300_001)


def test_names_are_taken_as_they_are_written(web):
    web.files["/bucket/a%20b%2Bc%2520%3D.tar"] = CONTENT
    with gopen("s3://bucket/a b+c%20=.tar") as stream:
        assert stream.read() == CONTENT


@pytest.mark.parametrize(
    "plan",
    [[{"cut": 70_000}] * 2, [{"reset": 70_000}] * 2, [{"stall": 70_000}], [{"status": 503}, {"status": 500}]],
)
def test_goes_on_where_the_connection_broke_or_stalled_and_asks_a_busy_server_again(web, quick, plan):
    web.plan = plan
    if "stall" in plan[0]:  # a server that is slow passes for one that stalls
        options = {"retries": Retries(tries=100, first_s=0.0), "timeout_s": 1}
    else:
        options = {"retries": quick}
    with cloud.open_cloud("s3://bucket/a/x.tar", **options) as stream:
        assert stream.read() == CONTENT


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 429}, {"reset": 10}, {"silent": True}])
@pytest.mark.parametrize("tries", [1, 3])
def test_reading_is_tried_as_often_as_asked(web, fault, tries):
    web.plan = [fault] * 9
    with pytest.raises(StreamError, match=f"gave up after {tries} tries") as caught:
        cloud.open_cloud("s3://bucket/a/x.tar", retries=Retries(tries=tries, first_s=0.0)).read()
    assert (caught.value.tries, len(web.requests)) == (tries, tries)


def test_writing_is_tried_as_often_as_asked(web):
    web.plan = [{"status": 503}] * 9
    stream = cloud.open_cloud("s3://bucket/new.tar", "wb", retries=Retries(tries=3, first_s=0.0))
    stream.write(CONTENT)
    with pytest.raises(StreamError, match="503 .*gave up after 3 tries"):
        stream.close()
    assert len(web.requests) == 3


def test_a_silent_store_is_not_waited_for_longer_than_everything_may_take(web):
    web.plan = [{"stall": 0}]
    with pytest.raises(StreamError, match="gave up after 1 tries, within 0.3 s"):
        cloud.open_cloud("s3://bucket/a/x.tar", retries=Retries(within_s=0.3)).read()


def test_a_changed_object_is_an_error_and_never_mixed(web, quick):
    web.files["/bucket/a/x.tar"] = CONTENT * 10
    web.plan = [{"cut": 2_000_000}]
    with cloud.open_cloud("s3://bucket/a/x.tar", retries=quick) as stream:
        stream.read(1)
        web.files["/bucket/a/x.tar"] = OTHER * 10
        with pytest.raises(StreamError, match="it changed while it was read"):
            stream.read()


def test_a_connection_that_breaks_behind_the_last_byte_is_no_failure(monkeypatch, quick):
    obstore = cloud._obstore()

    def get(*arguments, **options):
        result = obstore.get(*arguments, **options)

        def chunks(size):
            yield from result.stream(size)
            raise ConnectionResetError

        return SimpleNamespace(meta=result.meta, range=result.range, stream=chunks)

    monkeypatch.setattr(cloud, "_obstore", lambda: SimpleNamespace(get=get, head=obstore.head))
    with cloud.open_cloud("s3://bucket/a/x.tar", retries=quick) as stream:
        assert stream.read() == CONTENT


def test_a_missing_object_is_not_found():
    with pytest.raises(StreamNotFound, match="s3://bucket/no.tar: there is no such object"):
        gopen("s3://bucket/no.tar")


def test_a_refusal_says_to_check_the_credentials(web):
    web.plan = [{"status": 403}]
    with pytest.raises(StreamError, match="could not be read.*check the credentials"):
        gopen("s3://bucket/a/x.tar")


def test_writing_sends_all_at_close(web):
    with gopen("s3://bucket/new.tar", "wb") as stream:
        stream.write(CONTENT)
        assert web.requests == []
    assert web.files["/bucket/new.tar"] == CONTENT


def test_writing_that_is_refused_is_an_error_from_close(web):
    web.plan = [{"status": 403}]
    stream = gopen("s3://bucket/new.tar", "wb")
    stream.write(b"data")
    with pytest.raises(StreamError, match="s3://bucket/new.tar: it could not be written"):
        stream.close()


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3:///x.tar", "gs:x"])
def test_a_url_without_an_object_is_an_error(url):
    with pytest.raises(ValueError, match="names no object: write .*://BUCKET/NAME"):
        gopen(url)


def test_settings_may_be_given_in_code(web, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with gopen("s3://bucket/a/x.tar", config={"endpoint": web.url("/").rstrip("/")}) as stream:
        assert stream.read() == CONTENT


def test_without_the_library_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ImportError, match=r"pip install 'mpwds\[cloud\]'"):
        gopen("s3://bucket/a/x.tar")


def test_a_profile_gives_keys_region_and_endpoint(monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert profile_settings() == {}
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = A\naws_secret_access_key = B\n"
        "[other]\naws_access_key_id = C\naws_secret_access_key = D\naws_session_token = E\n"
    )
    (tmp_path / "config").write_text(
        "[profile other]\nregion = eu-west-1\nendpoint_url = https://host\n[profile sso]\n"
    )
    assert profile_settings() == {"access_key_id": "A", "secret_access_key": "B"}
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert profile_settings() == {
        "access_key_id": "C",
        "secret_access_key": "D",
        "session_token": "E",
        "region": "eu-west-1",
        "endpoint": "https://host",
    }
    monkeypatch.setenv("AWS_PROFILE", "sso")
    with pytest.raises(ValueError, match="profile 'sso', which has no access key"):
        profile_settings()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "F")
    assert profile_settings() == {}


def test_requests_are_signed_with_a_profiles_keys(web, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = KEYID\naws_secret_access_key = B\n")
    with gopen("s3://bucket/a/x.tar") as stream:
        assert stream.read() == CONTENT
    assert "Credential=KEYID/" in web.requests[0][2]["authorization"]


def test_a_fork_reads_by_a_fresh_interpreter_for_the_library_would_hang():
    refused = {
        "cannot be read on in the fork": lambda: stream.read(),
        "there is no such object": lambda: gopen("s3://bucket/no.tar").read(),
        "cannot be written in this process": lambda: gopen("s3://bucket/new.tar", "wb"),
        "cannot be read by ranges in this process": lambda: open_range("s3://bucket/a/x.tar", 0, 100),
    }

    def read_in_fork():
        for message, use in refused.items():
            with pytest.raises(StreamError, match=message):
                use()
        with open_at("s3://bucket/a/x.tar", 1000) as own:
            assert own.read() == CONTENT[1000:]
        assert version_at("s3://bucket/a/x.tar") == version
        assert not exists("s3://bucket/no.tar")
        with pytest.raises(FileNotFoundError):
            gopen("s3://bucket/no.tar")

    version = version_at("s3://bucket/a/x.tar")
    with gopen("s3://bucket/a/x.tar") as stream:
        stream.read(1)
        assert raised_in_fork(read_in_fork) == ""
        assert stream.read() == CONTENT[1:]


def test_a_fork_asks_as_often_and_as_long_as_it_is_told(web):
    with gopen("s3://bucket/a/x.tar") as stream:
        stream.read(1)
    web.plan = [{"status": 503}] * 9

    def read_in_fork():
        with pytest.raises(StreamError, match="gave up after 2 tries"):
            gopen("s3://bucket/a/x.tar", retries=Retries(2, first_s=0)).read()

    assert raised_in_fork(read_in_fork) == ""


def test_whether_an_object_exists_is_a_head(web):
    assert exists("s3://bucket/a/x.tar")
    assert not exists("s3://bucket/no.tar")
    assert [method for method, *_ in web.requests] == ["HEAD", "HEAD"]


def test_a_busy_store_is_asked_again_whether_an_object_exists(web, pauses):
    web.plan = [{"status": 503}]
    assert exists("s3://bucket/a/x.tar")
    methods = [method for method, *_ in web.requests]
    assert set(methods) == {"HEAD"}
    assert len(methods) >= 2  # the client may send one again whose connection was closed


def test_many_objects_are_looked_for_at_a_time(web):
    names = ["s3://bucket/a/x.tar", *(f"s3://bucket/no-{number}.tar" for number in range(24))]
    web.plan = [{"meets": threading.Barrier(len(names), timeout=600)}] * len(names)
    assert list(which_exist(names)) == names[:1]
