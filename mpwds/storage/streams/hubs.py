"""URLs that stand for web addresses: ``hf:`` (Hugging Face Hub) and ``ais:`` (AIStore)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from mpwds.mistakes import shown
from mpwds.storage.streams.http import open_http

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


def open_hf(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> BinaryIO:
    """A stream from a file of the Hugging Face Hub, by :func:`mpwds.storage.streams.http.open_http`.

    The token comes from ``HF_TOKEN`` in the environment or from ``huggingface-cli login``. Only the Hub gets
    it, not the servers that it redirects to. ``HF_ENDPOINT`` names another Hub.

    The URL is ``hf://datasets/OWNER/NAME/PATH``, with ``@REVISION`` behind the name if it is not ``main``. A
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
        raise ValueError(
            f"{shown(url)} is not of the form hf://datasets/OWNER/NAME/PATH, with @REVISION after NAME if "
            "need be"
        )
    revision = quote(unquote(match["revision"] or "main"), safe="")
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    return f"{endpoint}/{match['kind']}{match['repository']}/resolve/{revision}/{quote(match['path'])}"


def _hf_token() -> str:
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := os.environ.get(variable, "").strip():
            return token
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    try:
        return Path(os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")).read_text().strip()
    except OSError:
        return ""


def open_ais(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> BinaryIO:
    """A stream from an object in AIStore, or to one, by :func:`mpwds.storage.streams.http.open_http`.

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
            f"USE_AIS_FOR in the environment lists {', '.join(unknown)}, which AIStore does not know; it "
            f"knows {', '.join(_AIS_PROVIDERS)}, separated by ':'"
        )
    return listed


def ais_location(url: str) -> str:
    """The web address of an object in AIStore.

    Example:
        >>> os.environ["AIS_ENDPOINT"] = "http://cache:51080"
        >>> ais_location("gs://bucket/train/x 0.tar")
        'http://cache:51080/v1/objects/bucket/train/x%200.tar?provider=gcp'
        >>> del os.environ["AIS_ENDPOINT"]
    """
    match = _AIS_URL.fullmatch(url)
    provider = _AIS_PROVIDERS.get(match["scheme"].lower()) if match else None
    if match is None or provider is None:
        raise ValueError(f"{shown(url)} names no object: write ais://BUCKET/NAME")
    endpoint = os.environ.get("AIS_ENDPOINT", "").rstrip("/")
    if not endpoint:
        raise ValueError(
            f"{url}: AIS_ENDPOINT is not set in the environment; it names the AIStore cluster: "
            "http://host:51080"
        )
    return f"{endpoint}/v1/objects/{quote(match['bucket'])}/{quote(match['name'])}?provider={provider}"
