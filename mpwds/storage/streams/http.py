"""Byte streams from and to web servers, by urllib3; ``hf:`` and ``ais:`` URLs stand for web addresses."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import socket
import ssl
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError, ResponseError
from urllib3.util import Url, parse_url

from mpwds.errors import StreamError, StreamNotFound
from mpwds.storage.streams.base import Version
from mpwds.storage.streams.ranges import open_resource
from mpwds.storage.streams.resuming import (
    Attempts,
    Body,
    Interrupted,
    NoRanges,
    Resource,
    Retries,
    is_passing,
)
from mpwds.storage.streams.urls import too_short, without_credentials
from mpwds.suggestions import shown

_CONTENT_RANGE = re.compile(r"bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)")
_UNREACHABLE = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
_MOST_REDIRECTS = 10
_EXCERPT = 500
_MOST_KEPT = 64  # connections to a server, of 32 ranges ahead and their readers; urllib3 warns beyond
_PIECE_BYTES = 256 * 1024
_MUCH_BYTES = 1024 * 1024
_NO_TEXT = re.compile(r"<[^>]*>?|[\x00-\x1f\x7f-\x9f]")  # tags, and what a terminal would obey
_HF_URL = re.compile(
    r"hf://(?P<kind>datasets/|spaces/|)(?!datasets/|spaces/)(?P<repository>[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?/(?P<path>.+)"
)
_AIS_URL = re.compile(r"(?P<scheme>[A-Za-z0-9]+)://(?P<bucket>[^/]+)/(?P<name>.+)")
_AIS_PROVIDERS = {
    "ais": "ais",
    **dict.fromkeys(("s3", "aws"), "aws"),
    **dict.fromkeys(("gs", "gcp"), "gcp"),
    **dict.fromkeys(("az", "azure"), "azure"),
    **dict.fromkeys(("oc", "oci"), "oci"),
}

_reached: set[str] = set()  # servers that have answered this process: one that is gone may come back


def open_http(
    url: str,
    mode: str = "rb",
    bufsize: int = 8192,
    *,
    offset: int = 0,
    stop: int | None = None,
    timeout_s: float = 60.0,
    connect_timeout_s: float = 30.0,
    retries: Retries | None = None,
    headers: Mapping[str, str] | None = None,
    token: str = "",
    name: str | None = None,
    read_ahead: int = 0,
) -> BinaryIO:
    """A stream from a web server, or to one.

    *Reading* streams one ``GET``. When the connection breaks, stalls or ends too early, the stream continues
    at the same byte with a ``Range`` request, after a pause, or skips up to that byte if the server has no
    ranges. A resource that changed meanwhile is an error. So is a break if bytes have been delivered and the
    server gives neither ``ETag`` nor ``Last-Modified``. The status codes 408, 425, 429 and 5xx mean another
    try, after the server's ``Retry-After`` of up to two minutes. A ``Content-Encoding`` is not undone.

    *Writing* collects in a temporary file (in memory up to 16 MiB) and sends all in one ``PUT`` at ``close``,
    with tries like these. ``discard``, and a ``with`` block that raises, send nothing.

    Proxies come from the environment (``https_proxy`` and so on), certificates from the system or
    ``SSL_CERT_FILE``.

    Args:
        url: ``http:`` or ``https:``. ``user:password@`` is sent as basic authorization.
        mode: ``"rb"`` or ``"wb"``.
        bufsize: Bytes to buffer; at least 256 KiB when reading.
        offset: The byte at which to start reading.
        stop: The byte before which to end; a server that sends more than asked for is an error then.
        timeout_s: How long the server may be silent, in seconds, before that counts as a failure.
        connect_timeout_s: The same for connecting.
        retries: How often and how long to try; by default ten times, in about a minute.
        headers: Headers for this server; servers that it redirects to do not get them.
        token: Sent as bearer authorization, unless ``headers`` has another.
        name: The stream's name in messages; by default the URL without credentials.
        read_ahead: The number of ranges of 8 MB that threads fetch ahead of the reader, if the server does
            ranges; 0 reads one answer from start to end.

    Raises:
        StreamNotFound: The server has no such resource (404, 410).
        StreamError: It cannot be read or written for another reason; from ``read`` and ``close`` too.
    """
    retries = retries or Retries()
    timeout = connect_timeout_s, timeout_s
    headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
    shown = name or without_credentials(url)
    resource = _Resource(url, shown, headers, timeout, Attempts(shown, retries).left_s)
    return open_resource(resource, mode, bufsize, offset, stop, retries, read_ahead)


def open_hf(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> BinaryIO:
    """A stream from a file of the Hugging Face Hub, by :func:`open_http`.

    The token comes from ``HF_TOKEN`` in the environment or from ``huggingface-cli login``. Only the Hub gets
    it, not the servers that it redirects to. ``HF_ENDPOINT`` names another Hub.

    The URL is ``hf://datasets/OWNER/NAME/PATH``, with ``@REVISION`` after the name if it is not ``main``. A
    model has no ``datasets/``, a space has ``spaces/``. ``options`` are arguments of ``open_http``.
    """
    if mode[0] != "r":
        raise ValueError(f"{url}: hf: URLs can be read, not written; use huggingface-cli upload")
    return open_http(hf_location(url), mode, bufsize, name=url, token=_hf_token(), **options)


def hf_location(url: str) -> str:
    """The web address of an ``hf:`` URL.

    Example:
        >>> hf_location("hf://datasets/me/digits@v1/train/000.tar")
        'https://huggingface.co/datasets/me/digits/resolve/v1/train/000.tar'
    """
    match = _HF_URL.fullmatch(url)
    if match is None:
        raise ValueError(f"{shown(url)} is not of the form hf://datasets/OWNER/NAME[@REVISION]/PATH")
    revision = quote(unquote(match["revision"] or "main"), safe="")
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    return f"{endpoint}/{match['kind']}{match['repository']}/resolve/{revision}/{quote(match['path'])}"


def _hf_token() -> str:
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := os.environ.get(variable, "").strip():
            return token
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    try:
        return Path(os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")).read_text().strip()
    except OSError:
        return ""


def open_ais(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> BinaryIO:
    """A stream from an object in AIStore, or to one, by :func:`open_http`.

    ``AIS_ENDPOINT`` in the environment names the cluster (``http://host:51080``), ``AIS_AUTHN_TOKEN`` a token
    for it. With ``USE_AIS_FOR=gs:s3``, URLs of these schemes are read through AIStore as a cache.
    """
    token = os.environ.get("AIS_AUTHN_TOKEN", "").strip()
    return open_http(ais_location(url), mode, bufsize, name=f"{url} (by AIStore)", token=token, **options)


def schemes_for_aistore() -> frozenset[str]:
    """The schemes that ``USE_AIS_FOR`` in the environment lists. Raises ``ValueError`` for an unknown one."""
    listed = frozenset(filter(None, os.environ.get("USE_AIS_FOR", "").lower().replace(" ", "").split(":")))
    if unknown := sorted(listed - set(_AIS_PROVIDERS)):
        raise ValueError(
            f"USE_AIS_FOR in the environment lists {':'.join(unknown)}: expected {':'.join(_AIS_PROVIDERS)}"
        )
    return listed


def ais_location(url: str) -> str:
    """The web address of an object in AIStore: ``http://host:51080/v1/objects/BUCKET/NAME?provider=gcp``."""
    match = _AIS_URL.fullmatch(url)
    provider = _AIS_PROVIDERS.get(match["scheme"].lower()) if match else None
    if match is None or provider is None:
        raise ValueError(f"{shown(url)} names no object: write ais://BUCKET/NAME")
    endpoint = os.environ.get("AIS_ENDPOINT", "").rstrip("/")
    if not endpoint:
        raise ValueError(f"{url}: AIS_ENDPOINT is not set; it names the cluster: http://host:51080")
    return f"{endpoint}/v1/objects/{quote(match['bucket'])}/{quote(match['name'])}?provider={provider}"


class _Resource(Resource):
    def __init__(
        self,
        url: str,
        name: str,
        headers: Mapping[str, str],
        timeouts_s: tuple[float, float],
        left_s: Callable[[], float],
    ) -> None:
        self.name = name
        self._left_s = left_s
        try:
            parsed = parse_url(url)
        except LocationValueError as error:
            raise self._invalid(error) from None
        self._server = parsed.netloc or ""
        self._scheme = parsed.scheme or ""
        self._url = Url(parsed.scheme, None, *parsed[2:]).url
        self._timeouts_s = timeouts_s
        self._headers = {"User-Agent": "mpwds", "Accept-Encoding": "identity", **headers}
        if parsed.auth is not None:
            self._headers.setdefault("Authorization", _basic(parsed.auth))
        # urllib3 follows redirects, and nothing else: the stream and the upload above try again.
        self._redirects = urllib3.Retry(
            _MOST_REDIRECTS,
            connect=0,
            read=0,
            other=0,
            respect_retry_after_header=False,
            remove_headers_on_redirect=[*headers, "Authorization", "Proxy-Authorization", "Cookie", "Host"],
        )

    def get(self, position: int, version: Version | None, stop: int | None) -> _HttpBody:
        last = "" if stop is None else stop - 1
        asked = {"Range": f"bytes={position}-{last}"} if position or stop is not None else {}
        if position and version is not None:
            asked["If-Range"] = version.etag or version.modified or ""
        response = self._request("GET", asked)
        try:
            return self._body(response, position, version)
        except BaseException:
            response.close()
            raise

    def put(self, file: BinaryIO, size: int) -> None:
        response = self._request("PUT", {"Content-Length": str(size)}, body=file, body_pos=0)
        with response:
            followed = response.retries.history if response.retries is not None else ()
            if any(step.status == 303 for step in followed):  # which turns PUT into GET
                page = without_credentials(response.url or "another page")
                raise self._failed(
                    f"writing failed, the server answers 303 See Other: {page} was read, and nothing "
                    "says that the bytes were stored; is it a page to sign in?"
                )
            if not 200 <= response.status < 300:
                raise self._refusal(response, "writing")
            response.drain_conn()

    def _request(self, method: str, headers: Mapping[str, str], **options: Any) -> urllib3.BaseHTTPResponse:
        connect_s, read_s = (min(timeout_s, max(self._left_s(), 0.01)) for timeout_s in self._timeouts_s)
        try:
            response = self._pools().urlopen(
                method,
                self._url,
                headers={**self._headers, **headers},
                retries=self._redirects,
                timeout=urllib3.Timeout(connect=connect_s, read=read_s),
                preload_content=False,
                decode_content=False,
                **options,
            )
        except LocationValueError as error:
            raise self._invalid(error) from None
        except HTTPError as error:
            raise self._translated(_root(error)) from _root(error)
        _reached.add(self._server)
        return response

    def _pools(self) -> urllib3.PoolManager:
        proxies = urllib.request.getproxies()
        proxy = proxies.get(self._scheme) or proxies.get("all") or ""
        if not proxy or urllib.request.proxy_bypass(self._server):
            return pools(os.getpid(), self._scheme, "")
        try:
            return pools(os.getpid(), self._scheme, proxy if "://" in proxy else f"http://{proxy}")
        except (HTTPError, ValueError) as error:
            raise self._failed(
                f"the environment's proxy {without_credentials(proxy)!r} cannot be used: "
                f"{without_credentials(str(error))}; name the host in no_proxy to go without"
            ) from None

    def _body(self, response: urllib3.BaseHTTPResponse, position: int, asked: Version | None) -> _HttpBody:
        etag = response.headers.get("ETag")
        etag = None if not etag or etag.startswith("W/") else etag
        modified = response.headers.get("Last-Modified")
        if response.status == 200:
            return _HttpBody(response, 0, None, Version(etag, modified, response.length_remaining))
        if response.status not in (206, 416):
            raise self._refusal(response, "reading")
        said = response.headers.get("Content-Range", "no Content-Range")
        span = _CONTENT_RANGE.match(said)
        total = int(span[3]) if span and span[3] != "*" else None
        if asked is not None and etag is modified is None:
            etag, modified, _ = asked  # a part, and not the whole, means that it is of this version
        if response.status == 416 and (position or total is not None):
            if total != position:
                raise too_short(self.name, total, position)
        elif (
            span is None
            or span[1] is None
            or int(span[1]) != position
            or total is None
            or (response.length_remaining or 0) > int(span[2]) + 1 - position
        ):
            raise NoRanges(
                f"{self.name}: bytes from {position} on were asked for, and the server sent {shown(said)}: "
                "it does not do ranges properly",
                self.name,
                position,
            )
        stop = int(span[2]) + 1 if span and span[2] else position
        return _HttpBody(response, position, stop, Version(etag, modified, total))

    def _refusal(self, response: urllib3.BaseHTTPResponse, doing: str) -> Exception:
        """The error for a status code other than success."""
        status = response.status
        reason = _NO_TEXT.sub(" ", f"{status} {response.reason or ''}").strip()
        wish_s, said = None, ""
        with contextlib.suppress(HTTPError):  # an invalid header, or a body that breaks off
            wish_s = self._redirects.get_retry_after(response)
            page = response.read(_EXCERPT).decode("utf-8", "replace")
            if excerpt := " ".join(_NO_TEXT.sub(" ", page).split()):
                said = f"; it said: {without_credentials(excerpt)}"
        if is_passing(status):
            return Interrupted(f"the server answers {reason}{said}", wish_s)
        if status in (404, 410):
            return StreamNotFound(f"{self.name}: the server has no such resource ({reason}){said}", self.name)
        hint = ": does the server take PUT requests?" if doing == "writing" else ""
        if status in (401, 403, 407):
            hint = ": check the credentials and what they allow"
        return self._failed(f"{doing} failed, the server answers {reason}{hint}{said}")

    def _translated(self, error: BaseException) -> Exception:
        """The error for a request that got no answer."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return self._failed(
                f"the server's certificate is not valid: {error.verify_message}; if it is one of your own, "
                "name its authority in SSL_CERT_FILE"
            )
        if isinstance(error, ResponseError):
            return self._failed(f"more than {_MOST_REDIRECTS} redirects")
        if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
            return self._failed(f"the host is not known: {error.strerror}")
        if isinstance(error, TimeoutError):
            return Interrupted("the server is silent")
        gone = isinstance(error, OSError) and error.errno in (*_UNREACHABLE, socket.EAI_AGAIN)
        unreached = gone and self._server not in _reached
        return Interrupted(f"the connection failed ({type(error).__name__}: {error})", unreached=unreached)

    def _invalid(self, error: Exception) -> StreamError:
        reason = without_credentials(str(error))
        return self._failed(f"not a URL of a web server, http: or https: with a host: {reason}")

    def _failed(self, what: str) -> StreamError:
        return StreamError(f"{self.name}: {what}", self.name)


class _HttpBody(Body):
    def __init__(
        self, response: urllib3.BaseHTTPResponse, start: int, stop: int | None, version: Version
    ) -> None:
        self.start, self.stop, self.version = start, stop, version
        is_chunked = isinstance(response, urllib3.HTTPResponse) and response.chunked
        self.detects_truncation = version.size is not None or is_chunked
        self._response = response

    def read(self, much: bool = False) -> bytes:
        try:
            return self._response.read(_MUCH_BYTES) if much else self._response.read1(_PIECE_BYTES)
        except HTTPError as error:
            root = _root(error)
            reason = "the server is silent" if isinstance(root, TimeoutError) else "the connection broke"
            raise Interrupted(f"{reason} ({type(root).__name__}: {root})") from root

    def close(self) -> None:
        self._response.close()


@functools.lru_cache(maxsize=16)
def pools(pid: int, scheme: str, proxy: str) -> urllib3.PoolManager:
    """The connections of one process. A fork must not use those of its parent."""
    # OpenSSL reads SSL_CERT_FILE by itself.
    authorities = None if os.environ.get("SSL_CERT_FILE") else os.environ.get("CURL_CA_BUNDLE")
    context = ssl.create_default_context(cafile=authorities) if scheme == "https" else None
    if not proxy:
        return urllib3.PoolManager(maxsize=_MOST_KEPT, ssl_context=context)
    auth = parse_url(proxy).auth
    headers = {"Proxy-Authorization": _basic(auth)} if auth else {}
    return urllib3.ProxyManager(proxy, maxsize=_MOST_KEPT, ssl_context=context, proxy_headers=headers)


def _basic(auth: str) -> str:
    return "Basic " + b64encode(unquote(auth).encode()).decode("ascii")


def _root(error: BaseException) -> BaseException:
    """The cause of one of urllib3's errors, whose messages contain the URL with its secrets."""
    inner = error.__cause__ or next((part for part in error.args if isinstance(part, Exception)), None)
    return error if inner is None else _root(inner)
