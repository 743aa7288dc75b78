"""Files of the Hugging Face Hub: ``hf:`` URLs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

from mpwds.storage.streams.http import open_http

_ENDPOINT = "https://huggingface.co"
_HF_URL = re.compile(
    r"hf://(?P<kind>datasets/|spaces/|)(?!datasets/|spaces/)(?P<repository>[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?/(?P<path>.+)"
)


def open_hf(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> BinaryIO:
    """A stream from a file of the Hugging Face Hub.

    The token comes from ``HF_TOKEN`` in the environment or from ``huggingface-cli login``. Only the Hub gets
    it, not the servers that it redirects to. ``HF_ENDPOINT`` names another Hub.

    Args:
        url: ``hf://datasets/OWNER/NAME/PATH``, with ``@REVISION`` behind the name if it is not ``main``. A
            model has no ``datasets/``, a space has ``spaces/``.
        mode: ``"rb"``.
        bufsize: Bytes to buffer; at least 256 KiB.
        options: As for :func:`mpwds.storage.streams.http.open_http`.

    Raises:
        ValueError: The URL does not have that form, or the mode is for writing.
        StreamError: As for :func:`mpwds.storage.streams.http.open_http`.
    """
    if mode[0] != "r":
        raise ValueError(f"{url}: hf: URLs can be read, not written; use huggingface-cli upload")
    return open_http(hf_location(url), mode, bufsize, name=url, token=_token(), **options)


def hf_location(url: str) -> str:
    """The web address of an ``hf:`` URL.

    Example:
        >>> hf_location("hf://datasets/me/digits@v1/train/000.tar")
        'https://huggingface.co/datasets/me/digits/resolve/v1/train/000.tar'
    """
    match = _HF_URL.fullmatch(url)
    if match is None:
        raise ValueError(
            f"{url!r} is not of the form hf://datasets/OWNER/NAME/PATH, with @REVISION behind NAME if need be"
        )
    revision = quote(unquote(match["revision"] or "main"), safe="")
    endpoint = os.environ.get("HF_ENDPOINT", _ENDPOINT).rstrip("/")
    return f"{endpoint}/{match['kind']}{match['repository']}/resolve/{revision}/{quote(match['path'])}"


def _token() -> str:
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
