"""Byte streams from and to cloud storage, by obstore."""

from __future__ import annotations

import configparser
import contextlib
import functools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from mpwds.errors import StreamError, StreamNotFound
from mpwds.imports import require
from mpwds.storage.streams.base import Version, stream_version
from mpwds.storage.streams.pipes import open_command
from mpwds.storage.streams.ranges import READ_AHEAD, open_resource
from mpwds.storage.streams.resuming import (
    Attempts,
    Body,
    Interrupted,
    NoRanges,
    Resource,
    Retries,
    changed,
    is_passing,
)
from mpwds.storage.streams.urls import too_short, without_credentials

_CHUNK_BYTES = 128 * 1024
_MUCH_BYTES = 256 * 1024
_STATUS = re.compile(r"status code: (\d{3})")
_NO_RANGE = re.compile(r"non-partial|Requested \d+\.\.\d+, got")
_OPTIONS_VARIABLE = "MPWDS_CLOUD_OPTIONS"
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_PROFILE_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_OTHER_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)

# obstore's threads do not survive a fork: a call in the child would never return.
_used_by_pid: int | None = None


def open_cloud(
    url: str,
    mode: str = "rb",
    bufsize: int = 8192,
    *,
    offset: int = 0,
    stop: int | None = None,
    config: Mapping[str, Any] | None = None,
    timeout_s: float = 60.0,
    retries: Retries | None = None,
    read_ahead: int = READ_AHEAD,
) -> BinaryIO:
    """A stream from an object in cloud storage, or to one: S3 and compatible stores, Google, Azure, R2.

    Credentials and settings come from the environment, under the names of obstore's documentation
    (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ``AWS_SKIP_SIGNATURE=true`` for public buckets,
    ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...), from the machine's role, or for
    S3 from a profile in ``~/.aws/credentials`` (``AWS_PROFILE``). ``r2:`` is S3 at ``AWS_ENDPOINT_URL`` or
    the account ``R2_ACCOUNT_ID``.

    *Reading* fetches ranges of 8 MB ahead, and continues where a connection broke. *Writing* collects in a
    temporary file and sends all at ``close``. ``discard``, and a ``with`` block that raises, send nothing.

    obstore does not work in a fork of a process that used cloud storage (a worker of
    ``torch.utils.data.DataLoader``). There a fresh interpreter reads the object and pipes it here;
    writing and ranges (``stop``) are errors.

    Args:
        url: ``s3://BUCKET/NAME``, and likewise ``s3a r2 gs az azure adl abfs abfss``.
        config: Settings of obstore's store (``{"region": "eu-west-1"}``), which override the environment's.
        mode, bufsize, offset, stop, timeout_s, retries, read_ahead: As for
            :func:`mpwds.storage.streams.http.open_http`.
    """
    _obstore()  # report a missing package first
    shown = without_credentials(url)
    _split(url)
    if _is_forked():
        if mode[0] == "r" and stop is None:
            options = {"offset": offset, "config": dict(config or {}), "timeout_s": timeout_s}
            options |= {"retries": vars(retries or Retries()), "read_ahead": read_ahead}
            return _open_by_fresh_interpreter(url, shown, bufsize, options)
        what = f"cannot be {'read by ranges' if mode[0] == 'r' else 'written'} in this process"
        fork = "a fork of one that used cloud storage: start processes with 'spawn'"
        raise StreamError(f"{shown}: {what}, {fork}", shown)
    retries = retries or Retries()
    source = _CloudObject(url, shown, config, min(timeout_s, retries.within_s))
    return open_resource(source, mode, bufsize, offset, stop, retries, read_ahead)


def object_version(url: str) -> Version:
    """The version of an object, asked for as by :func:`open_cloud`. ``StreamNotFound`` if there is none."""
    shown = without_credentials(url)
    if _is_forked():
        with open_cloud(url, read_ahead=0) as stream:
            return stream_version(stream)
    return Attempts(shown, Retries()).run(_CloudObject(url, shown).version, "when it was looked for")


@dataclass
class _CloudObject(Resource):
    url: str
    name: str
    config: Mapping[str, Any] | None = None
    timeout_s: float = 60.0

    def get(self, position: int, version: Version | None, stop: int | None) -> _CloudBody:
        if _is_forked():
            what = "a stream cannot be read on in the fork: open it here, or start processes with 'spawn'"
            raise StreamError(f"{self.name}: {what}", self.name, position)
        store, path = self._store()
        options: dict[str, Any] = {"range": {"offset": position}} if position else {}
        if stop is not None:
            options["range"] = (position, stop)
        if version is not None and version.etag is not None:
            options["if_match"] = version.etag
        try:
            with _translating(self.name, "read", position):
                result = _obstore().get(store, path, options=options)
                stop = result.range[1] if "range" in options else None
                return _CloudBody(result, position, stop, _version(result.meta))
        except NoRanges:  # perhaps because the rest that it asked for is empty
            if not position:
                raise
            at_end = self.version()
            if at_end.size is not None and at_end.size < position:
                raise too_short(self.name, at_end.size, position) from None
            if at_end.size != position:
                raise
            return _CloudBody(None, position, position, at_end)

    def put(self, file: BinaryIO, size: int) -> None:
        store, path = self._store()
        with _translating(self.name, "written"):
            _obstore().put(store, path, file)

    def version(self) -> Version:
        store, path = self._store()
        with _translating(self.name, "found"):
            return _version(_obstore().head(store, path))

    def _store(self) -> tuple[object, str]:
        global _used_by_pid
        bucket, path = _split(self.url)
        settings = json.dumps(_settings(bucket, dict(self.config or {})))
        if bucket.startswith("r2://"):
            bucket = "s3" + bucket[2:]
        _used_by_pid = os.getpid()
        # The environment is part of the key, as it may change while the process runs.
        known = sorted(
            each for each in os.environ.items() if each[0].startswith(("AWS_", "GOOGLE_", "AZURE_"))
        )
        return _make_store(bucket, settings, self.timeout_s, json.dumps(known)), path


class _CloudBody(Body):
    detects_truncation = True

    def __init__(self, result: Any, start: int, stop: int | None, version: Version) -> None:
        self.start, self.stop, self.version = start, stop, version
        self._result = result  # None if there is nothing to read
        self._chunks: Iterator[bytes] | None = None  # once reading has begun
        self._pid = os.getpid()

    def read(self, much: bool = False) -> bytes:
        if self._result is None:
            return b""
        from obstore.exceptions import BaseError

        try:
            if self._chunks is None:
                self._chunks = iter(self._result.stream(_MUCH_BYTES if much else _CHUNK_BYTES))
            return next(self._chunks, b"")
        except (BaseError, OSError) as error:
            raise Interrupted(f"the connection broke ({_first_line(error)})") from error

    def close(self) -> None:
        if self._pid != os.getpid():
            _left_to_the_parent.append((self._result, self._chunks))
        self._result = self._chunks = None


_left_to_the_parent: list[object] = []  # obstore's objects must not be freed in a fork


def copy_to_output() -> None:
    """Runs in the fresh interpreter: writes an object's version, or null if there is none, and its bytes."""
    options = json.loads(os.environ.pop(_OPTIONS_VARIABLE))  # there may be secrets in it
    options["retries"] = Retries(**options["retries"])
    try:
        with open_cloud(sys.argv[1], **options) as stream:
            sys.stdout.buffer.write(json.dumps(stream_version(stream)).encode() + b"\n")
            while block := stream.read(_CHUNK_BYTES):
                sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(0)  # the reader has closed its end
    except StreamNotFound:
        sys.stdout.write("null\n")
    except Exception as error:
        sys.exit(str(error))


def _open_by_fresh_interpreter(url: str, shown: str, bufsize: int, options: dict[str, Any]) -> BinaryIO:
    program = "from mpwds.storage.streams.cloud import copy_to_output; copy_to_output()"
    environment = {
        _OPTIONS_VARIABLE: json.dumps(options),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    arguments = [sys.executable, "-c", program, url]
    stream = open_command(arguments, shown, "rb", bufsize, environment, detects_truncation=True)
    try:
        version = json.loads(stream.readline())
        if version is None:
            raise StreamNotFound(f"{shown}: there is no such object", shown)
        cast(Any, stream).raw.version = Version(*version)
    except BaseException:
        stream.close()
        raise
    return stream


def _obstore() -> Any:
    return require(
        "obstore",
        "cloud storage needs obstore: pip install 'mpwds[cloud]'; or use pipe: with the storage's own "
        "program ('pipe:aws s3 cp s3://... -')",
    )


def _is_forked() -> bool:
    """True if this process was forked from one that used cloud storage."""
    return _used_by_pid not in (None, os.getpid())


def _split(url: str) -> tuple[str, str]:
    """The bucket's URL and the object's name, which is not escaped."""
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    if not bucket or not path:
        raise ValueError(f"{without_credentials(url)!r} names no object: write {scheme}://BUCKET/NAME")
    return f"{scheme.lower()}://{bucket}", path


@functools.lru_cache(maxsize=32)
def _make_store(bucket: str, settings: str, timeout_s: float, environment: str) -> object:
    from obstore.store import from_url

    config = json.loads(settings)
    endpoints = [config.get("endpoint", ""), *(os.environ.get(name, "") for name in _ENDPOINT_VARIABLES)]
    # The library's own limit is 30 s for a whole download, and a training loop takes its time over a shard.
    client = {
        "timeout": timedelta(days=7),
        "connect_timeout": timedelta(seconds=30),
        "read_timeout": timedelta(seconds=timeout_s),
        "allow_http": any(endpoint.startswith("http://") for endpoint in endpoints),
    }
    retry = {"max_retries": 0, "retry_timeout": timedelta(minutes=3)}  # the stream tries again
    return cast(Any, from_url)(bucket, config=config, client_options=client, retry_config=retry)


def _settings(bucket: str, config: dict[str, Any]) -> dict[str, Any]:
    scheme = urlsplit(bucket).scheme
    if scheme not in ("s3", "s3a", "r2"):
        return config
    settings = {**profile_settings(), **config}
    if scheme == "r2":
        settings.setdefault("region", "auto")
        account = os.environ.get("R2_ACCOUNT_ID")
        if "endpoint" not in settings and not any(map(os.environ.get, _ENDPOINT_VARIABLES)):
            if not account:
                raise ValueError(
                    f"{bucket}: set R2_ACCOUNT_ID, or AWS_ENDPOINT_URL=https://ACCOUNT.r2.cloudflarestorage.com"
                )
            settings["endpoint"] = f"https://{account}.r2.cloudflarestorage.com"
    return settings


def profile_settings() -> dict[str, str]:
    """Keys, region and endpoint of a profile in ``~/.aws``, which obstore does not read, in obstore's names.

    Empty if the environment has other credentials, or there is no such file. The environment's region and
    endpoint override the profile's. Raises ``ValueError`` if ``AWS_PROFILE`` names a profile without keys.

    Source:
        "Configuration and credential file settings" in the AWS CLI's user guide.
    """
    if any(map(os.environ.get, _OTHER_CREDENTIALS)):
        return {}
    asked_for = os.environ.get("AWS_PROFILE", "")
    name = asked_for or "default"
    secrets = _section("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name)
    general = _section("AWS_CONFIG_FILE", "~/.aws/config", name if name == "default" else f"profile {name}")
    found = {**general, **secrets}
    settings = {ours: found[theirs] for theirs, ours in _PROFILE_KEYS.items() if theirs in found}
    if "access_key_id" not in settings or "secret_access_key" not in settings:
        if asked_for:
            raise ValueError(
                f"AWS_PROFILE names the profile {asked_for!r}, which has no access key in ~/.aws; if it "
                "signs in by other means, run: eval $(aws configure export-credentials --profile "
                f"{asked_for} --format env)"
            )
        return {}
    if "region" in found and not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        settings["region"] = found["region"]
    if "endpoint_url" in found and not any(map(os.environ.get, _ENDPOINT_VARIABLES)):
        settings["endpoint"] = found["endpoint_url"]
    return settings


def _section(variable: str, default: str, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(os.path.expanduser(os.environ.get(variable) or default), encoding="utf-8")
    except configparser.Error as error:
        raise ValueError(f"{variable} or {default}: {error}") from None
    return dict(parser[name]) if parser.has_section(name) else {}


def _version(meta: Mapping[str, Any]) -> Version:
    etag = meta["e_tag"]
    etag = None if not etag or etag.startswith("W/") else etag
    return Version(etag, str(meta["last_modified"]), meta["size"])


@contextlib.contextmanager
def _translating(name: str, done: str, position: int | None = None) -> Iterator[None]:
    """Raises the library's errors as this package's: what could not be ``done``, and where."""
    from obstore import exceptions

    try:
        yield
    except (exceptions.BaseError, OSError) as error:
        reason = _first_line(error)
        found = _STATUS.search(reason)
        status = int(found[1]) if found else 0
        failed = f"{name}: it could not be {done}"
        if isinstance(error, (FileNotFoundError, exceptions.NotFoundError)):
            raise StreamNotFound(f"{name}: there is no such object ({reason})", name, position) from error
        if isinstance(error, exceptions.PreconditionError):
            raise changed(name, position, "it is another version") from error
        if _NO_RANGE.search(reason) or status == 416:
            raise NoRanges(f"{failed} by ranges: {reason}", name, position) from error
        if is_passing(status) if status else "HTTP error" in reason:
            raise Interrupted(reason) from error
        denials = PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError
        if isinstance(error, denials):
            reason += "; check the credentials and what they allow, and the bucket's region"
        raise StreamError(f"{failed}: {reason}", name, position) from error


def _first_line(error: Exception) -> str:
    """An error of obstore without the dump of its internals."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return without_credentials(lines[0])
