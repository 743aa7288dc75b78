"""Objects of an AIStore cluster, and of the clouds behind it."""

from __future__ import annotations

import os
import re
from typing import Any, BinaryIO
from urllib.parse import quote

from mpwds.storage.streams.http import open_http

_PROVIDERS = {
    "ais": "ais",
    "s3": "aws",
    "aws": "aws",
    "gs": "gcp",
    "gcp": "gcp",
    "az": "azure",
    "azure": "azure",
    "oc": "oci",
    "oci": "oci",
}
_BUCKET_URL = re.compile(r"(?P<scheme>[A-Za-z0-9]+)://(?P<bucket>[^/]+)/(?P<name>.+)")


def schemes_for_aistore() -> frozenset[str]:
    """The schemes that ``USE_AIS_FOR`` in the environment lists. Raises ``ValueError`` for an unknown one."""
    listed = frozenset(filter(None, os.environ.get("USE_AIS_FOR", "").lower().replace(" ", "").split(":")))
    if unknown := sorted(listed - set(_PROVIDERS)):
        raise ValueError(
            f"USE_AIS_FOR in the environment lists {', '.join(unknown)}, which AIStore does not know; it "
            f"knows {', '.join(_PROVIDERS)}, separated by ':'"
        )
    return listed


def open_ais(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> BinaryIO:
    """A stream from an object in AIStore, or to one, over AIStore's HTTP interface.

    ``AIS_ENDPOINT`` in the environment names the cluster (``http://host:51080``), ``AIS_AUTHN_TOKEN`` a token
    for it. With ``USE_AIS_FOR=gs:s3``, URLs of these schemes are read through AIStore as a cache.

    Args:
        url: ``ais://BUCKET/NAME``, or the URL of a cloud's object.
        mode: ``"rb"`` or ``"wb"``.
        bufsize: As for :func:`mpwds.storage.streams.http.open_http`.
        options: As for :func:`mpwds.storage.streams.http.open_http`.

    Raises:
        ValueError: The URL names no bucket or object, or ``AIS_ENDPOINT`` is not set.
    """
    token = os.environ.get("AIS_AUTHN_TOKEN", "").strip()
    return open_http(ais_location(url), mode, bufsize, name=f"{url} (by AIStore)", token=token, **options)


def ais_location(url: str) -> str:
    """The web address of an object in AIStore.

    Example:
        >>> os.environ["AIS_ENDPOINT"] = "http://cache:51080"
        >>> ais_location("gs://bucket/train/x 0.tar")
        'http://cache:51080/v1/objects/bucket/train/x%200.tar?provider=gcp'
        >>> del os.environ["AIS_ENDPOINT"]
    """
    match = _BUCKET_URL.fullmatch(url)
    if match is None or match["scheme"].lower() not in _PROVIDERS:
        raise ValueError(f"{url!r} names no object: write ais://BUCKET/NAME")
    endpoint = os.environ.get("AIS_ENDPOINT", "").rstrip("/")
    if not endpoint:
        raise ValueError(
            f"{url}: AIS_ENDPOINT is not set in the environment; it names the AIStore cluster: "
            "http://host:51080"
        )
    provider = _PROVIDERS[match["scheme"].lower()]
    return f"{endpoint}/v1/objects/{quote(match['bucket'])}/{quote(match['name'])}?provider={provider}"
