"""Which file of a cache directory holds the shard of a URL."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from urllib.parse import quote, urlsplit

from mpwds.storage.streams.urls import without_credentials
from mpwds.suggestions import shown

PRIVATE = ".mpwds"
"""The folder of a cache directory for marks, partial files and the lock file."""

PARTIALS = "partial"
"""The folder in ``PRIVATE`` for shards that are being fetched."""

_PATH_SCHEMES = {"", "file", "http", "https", "ftp", "ftps", "gs", "s3", "ais"}
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"\?([^\s'\"#]*)")
_NAME_BYTES = 200  # of 255 that file systems allow: partial files and marks have longer names

# Kinds of signed URLs: what all their queries have, and the parameters that differ between two signatures of
# an object. Other parameters may select an object: versionId, snapshot.
_SIGNATURES = [
    (
        ("x-amz-signature=",),
        "x-amz-algorithm x-amz-credential x-amz-date x-amz-expires x-amz-signedheaders x-amz-signature "
        "x-amz-security-token x-amz-s3session-token x-amz-region-set",
    ),
    (
        ("awsaccesskeyid=", "signature=", "expires="),
        "awsaccesskeyid signature expires x-amz-security-token",
    ),
    (
        ("x-goog-signature=",),
        "x-goog-algorithm x-goog-credential x-goog-date x-goog-expires x-goog-signedheaders x-goog-signature",
    ),
    (("googleaccessid=", "signature=", "expires="), "googleaccessid signature expires"),
    (("key-pair-id=", "signature="), "key-pair-id signature expires policy hash-algorithm"),
    (  # Azure: a shared access signature always has its version, which is a date
        (r"sv=\d{4}-\d\d-\d\d(&|$)", "sig="),
        "sv ss srt sp se st spr sip sig sr si sdd ses scid saoid suoid skoid sktid skt ske sks skv",
    ),
]


def url_to_cache_name(url: str, ndir: int = 0) -> str:
    """The name under which webdataset's cache keeps a URL: the last part of its path.

    ``ndir`` directories before it are kept, too. The name of a ``pipe:`` URL, or one of an unknown scheme, is
    its last 128 characters, quoted.

    Source:
        ``webdataset.cache.url_to_cache_name``.

    Example:
        >>> url_to_cache_name("https://host/train/000.tar"), url_to_cache_name("gs://b/train/000.tar", ndir=1)
        ('000.tar', 'train/000.tar')
        >>> url_to_cache_name("pipe:cat x.tar")
        'pipe%3Acat%20x.tar'
    """
    if not isinstance(url, str):
        raise TypeError(f"a URL is a string, got {type(url).__name__}: {shown(url)}")
    parts = urlsplit(url)
    if parts.scheme not in _PATH_SCHEMES:
        return _quoted(url)
    return "/".join(parts.path.lstrip("/").split("/")[-1 - ndir :])


def cache_name(url: str, url_to_name: Callable[[str], str] = url_to_cache_name) -> str:
    """The checked name of a URL's file, relative to the cache directory.

    ``url_to_name`` returns the name, or another URL, as :func:`mpwds.pipe_cleaner` does. Raises ``TypeError``
    if it is not a string, ``ValueError`` if it leads out of the cache directory or is too long.
    """
    name = url_to_name(url)
    named = without_credentials(url)
    if not isinstance(name, str):
        raise TypeError(f"url_to_name must return a file name, got {shown(name)} for {shown(named)}")
    if "://" in name:
        name = url_to_cache_name(name)
    name = name or _quoted(url)
    parts = name.split("/")
    leads_out = {"", ".", ".."} & set(parts) or parts[0] == PRIVATE or "\0" in name
    if leads_out or max(len(os.fsencode(part)) for part in parts) > _NAME_BYTES:
        raise ValueError(
            f"url_to_name gives {shown(name)} for {shown(named)}, which does not name a file inside the "
            f"cache directory, or has more than {_NAME_BYTES} bytes"
        )
    return name


def _quoted(url: str) -> str:
    return quote(url, safe="_+{}*,-")[-128:]


def distinct_name(name: str, source: str) -> str:
    """The name of a shard whose own name is taken by another URL's shard.

    Example:
        >>> distinct_name("train/000.tar.gz", "0f1e2d3c4b5a6978")
        'train/000-0f1e2d3c4b5a6978.tar.gz'
    """
    directory, slash, last = name.rpartition("/")
    stem, dot, extensions = last.partition(".")
    return f"{directory}{slash}{stem}-{source}{dot}{extensions}"


def mark_path(directory: str, name: str) -> str:
    """The path of a shard's mark."""
    return os.path.join(directory, PRIVATE, name + ".mark")


def offsets_path(directory: str, name: str) -> str:
    """The path of the offsets of a tar shard's samples (:mod:`mpwds.storage.indexed.offsets`)."""
    return os.path.join(directory, PRIVATE, name + ".offsets")


def source_digest(url: str) -> str:
    """Identifies the object that a URL names, by 16 hexadecimal digits.

    Leaves out user names, passwords and the parameters of signatures (S3, Google, Azure, CloudFront).
    """
    identity = _QUERY.sub(_without_signature, _USERINFO.sub("", url))
    return hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _without_signature(match: re.Match[str]) -> str:
    query = match[1]
    for patterns, names in _SIGNATURES:
        if all(re.search(rf"(?i)(^|&){pattern}", query) for pattern in patterns):
            kept = [each for each in query.split("&") if each.partition("=")[0].lower() not in names.split()]
            return "?" + "&".join(kept) if kept else ""
    return match[0]
