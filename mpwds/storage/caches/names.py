"""Which file of a cache directory holds the shard of a URL."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from urllib.parse import quote, urlsplit

from mpwds.storage.streams.urls import without_credentials

PRIVATE = ".mpwds"
"""The directory inside a cache directory for what is no shard: partial files, marks, the lock."""

_PATH_SCHEMES = {"", "file", "http", "https", "ftp", "ftps", "gs", "s3", "ais"}
_REMOTE = re.compile(r"(https?|hdfs|gs|ais|s3):")
_SIGNED = re.compile(r"(?i)(^|&)(x-amz-signature|x-goog-signature|signature|sig)=")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_NAME_BYTES = 200  # of 255 that file systems take: partial files and marks have longer names


def url_to_cache_name(url: str, ndir: int = 0) -> str:
    """The name under which webdataset's cache keeps a URL: the last part of its path.

    Of a URL whose scheme says nothing about its form (``pipe:``), the last 128 characters, quoted.

    Args:
        url: The URL.
        ndir: Directories of its path that are kept before the last part.

    Raises:
        TypeError: ``url`` is no string.

    Source:
        ``webdataset.cache.url_to_cache_name``.

    Example:
        >>> url_to_cache_name("https://host/train/000.tar"), url_to_cache_name("gs://b/train/000.tar", ndir=1)
        ('000.tar', 'train/000.tar')
        >>> url_to_cache_name("pipe:cat x.tar")
        'pipe%3Acat%20x.tar'
    """
    if not isinstance(url, str):
        raise TypeError(f"a URL is a string, got {type(url).__name__}: {url!r}")
    parts = urlsplit(url)
    if parts.scheme not in _PATH_SCHEMES:
        return quote(url, safe="_+{}*,-")[-128:]
    return "/".join(parts.path.lstrip("/").split("/")[-1 - ndir :])


def pipe_cleaner(spec: str) -> str:
    """The URL that a ``pipe:`` command reads, as far as one can guess: its first word that is one.

    Args:
        spec: A ``pipe:`` URL; any other is returned as it is.

    Returns:
        The URL, or the command where no word of it is one.

    Source:
        ``webdataset.cache.pipe_cleaner``.

    Example:
        >>> pipe_cleaner("pipe:curl -s -L https://host/000.tar || true"), pipe_cleaner("pipe:cat x.tar")
        ('https://host/000.tar', 'cat x.tar')
    """
    if not spec.startswith("pipe:"):
        return spec
    command = spec[len("pipe:") :]
    words = (word.strip("'\"") for word in command.split(" "))
    return next(filter(_REMOTE.match, words), command)


def cache_name(url: str, url_to_name: Callable[[str], str] = url_to_cache_name) -> str:
    """The checked name of a URL's file, relative to the cache directory.

    Args:
        url: The URL.
        url_to_name: Makes the name; it may hold directories. A URL that it returns, as ``pipe_cleaner`` does,
            is named by :func:`url_to_cache_name`.

    Raises:
        TypeError: The name is no string.
        ValueError: The name leads out of the cache directory, or is too long.

    Example:
        >>> cache_name("pipe:curl -s https://host/train/000.tar", pipe_cleaner)
        '000.tar'
        >>> cache_name("https://host/?shard=7")
        'https%3A%2F%2Fhost%2F%3Fshard%3D7'
    """
    name = url_to_name(url)
    shown = without_credentials(url)
    if not isinstance(name, str):
        raise TypeError(f"url_to_name must return a file name, got {name!r} for {shown!r}")
    if "://" in name:
        name = url_to_cache_name(name)
    if not name:
        name = quote(url, safe="_+{}*,-")[-128:]
    parts = name.split("/")
    if {"", ".", ".."} & set(parts) or parts[0] == PRIVATE or "\0" in name:
        raise ValueError(
            f"url_to_name gives {name!r} for {shown!r}, which is no name of a file inside the cache directory"
        )
    if max(len(os.fsencode(part)) for part in parts) > _NAME_BYTES:
        raise ValueError(
            f"url_to_name gives a name of more than {_NAME_BYTES} bytes for {shown!r}: return a shorter one"
        )
    return name


def distinct_name(name: str, source: str) -> str:
    """Another name for a file whose own one is taken by the shard of another URL.

    Args:
        name: The name that both have.
        source: What :func:`source_digest` says of the URL.

    Example:
        >>> distinct_name("train/000.tar.gz", "0f1e2d3c4b5a6978")
        'train/000-0f1e2d3c.tar.gz'
    """
    directory, slash, last = name.rpartition("/")
    stem, dot, extensions = last.partition(".")
    return f"{directory}{slash}{stem}-{source[:8]}{dot}{extensions}"


def source_digest(url: str) -> str:
    """Tells apart what two URLs name: 16 hexadecimal digits.

    User names and passwords in a URL do not count, nor does the query of a signed URL, which differs each
    time.

    Example:
        >>> source_digest("https://me:pass@host/x.tar") == source_digest("https://host/x.tar?X-Amz-Signature=0f1e")
        True
        >>> source_digest("https://host/get?shard=1") == source_digest("https://host/get?shard=2")
        False
    """
    bare = _USERINFO.sub("", url)
    resource, _, query = bare.partition("?")
    identity = resource if _SIGNED.search(query) else bare
    return hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
