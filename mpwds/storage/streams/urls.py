"""Shard patterns to lists of URLs; a URL's scheme, its local path, and its form for messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import unquote

from mpwds.storage.streams.braces import expand_braces

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_NESTED_VARIABLES = 10
_NO_RANGE = re.compile(r"\{(\d+)(?:-|:|\.{3})(\d+)\}")
_GLOB = re.compile(r"[*?]")
# In abfss://container@account.dfs.core.windows.net/ it is not a secret.
_USERINFO = re.compile(r"(?i)(?<!abfs://)(?<!abfss://)(?<=://)[^/@\s'\"]+@")
_SECRET_PARAMETER = re.compile(
    r"(?i)(?<=[?&;])([\w.-]*(?:signature|credential|token|password|secret|access_?key|api_?key)[\w.-]*|sig)"
    r"=[^&;\s'\"]+"
)
_SECRET_HEADER = re.compile(
    r"(?i)\b((?:authorization:\s*(?:bearer\s+|basic\s+|token\s+)?)|(?:[\w-]*(?:api-key|token):\s*))[^\s'\"]+"
)


def expand_urls(urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """The shards of a pattern, or of an iterable of names.

    A string (or a path object) may hold several patterns separated by ``::``, variables and braces:
    ``${NAME}`` becomes the value of the environment variable ``WDS_NAME``; ``{000..131}`` and ``{a,b}``
    become one name for each of their values. Names from an iterable stay as they are. These are webdataset's
    rules.

    Args:
        urls: A pattern, or an iterable of shard names.

    Returns:
        The names in the order they are written; at least one.

    Raises:
        ValueError: There is no shard, a variable is not set, braces do not match, hold no range, or stand for
            more than a million names; or a pattern is a glob.
        TypeError: ``urls``, or one of its elements, is neither a string nor a path.

    Source:
        ``webdataset.shardlists.expand_urls``.

    Example:
        >>> expand_urls("digits-{000..002}.tar::extra.tar")
        ['digits-000.tar', 'digits-001.tar', 'digits-002.tar', 'extra.tar']
        >>> expand_urls(["a{1}.tar", "b.tar"])
        ['a{1}.tar', 'b.tar']
    """
    if isinstance(urls, (str, os.PathLike)):
        shards = _expand_pattern(_as_str(urls))
    elif isinstance(urls, (bytes, bytearray)) or not isinstance(urls, Iterable):
        raise TypeError(f"shards are given as a string or an iterable of strings, not {type(urls).__name__}")
    else:
        shards = [_as_str(url) for url in urls]
    if not shards:
        raise ValueError(f"no shards: {urls!r} names none")
    if "" in shards:
        raise ValueError(f"shard {shards.index('')} of {urls!r} has an empty name")
    return shards


def url_scheme(url: str) -> str:
    """A URL's scheme in lower case; an empty string for a path.

    A single letter is not a scheme, nor is anything behind the first slash of a path.

    Example:
        >>> [url_scheme(url) for url in ("S3://bucket/x.tar", "pipe:cat x.tar", "data/s3:x.tar", "C:/x.tar")]
        ['s3', 'pipe', '', '']
    """
    match = _SCHEME.match(url)
    return match[1].lower() if match else ""


def is_local(url: str | os.PathLike[str]) -> bool:
    """Whether a URL names a local file: by a path, by ``file:``, or as ``ab:c.tar`` where that file exists.

    Example:
        >>> is_local("data/x.tar"), is_local("file:data/x.tar"), is_local("https://host/x.tar")
        (True, True, False)
    """
    name = _as_str(url)
    return url_scheme(name) in ("", "file") or os.path.exists(name)


def local_path(url: str | os.PathLike[str]) -> str:
    """The path of the local file that a URL names.

    Args:
        url: A path, or a ``file:`` URL, in which ``%20`` and the like stand for characters. A path that looks
            like a URL (``ab:c.tar``) is a path when a file of that name exists.

    Raises:
        ValueError: The URL's scheme is another one, or a ``file:`` URL names another machine.
        TypeError: ``url`` is neither a string nor a path.

    Example:
        >>> local_path("data/x.tar"), local_path("file:data/x.tar"), local_path("file:///data/my%20x.tar")
        ('data/x.tar', 'data/x.tar', '/data/my x.tar')
    """
    path = _as_str(url)
    scheme = url_scheme(path)
    if scheme == "file":
        return _file_url_path(path)
    if scheme == "" or os.path.exists(path):
        return path
    raise ValueError(
        f"{without_credentials(path)!r} is not the name of a local file: only local files (a path or file:) "
        f"can be used here, not {scheme}:"
    )


def without_credentials(url: str) -> str:
    """A URL for messages: without passwords, tokens and signatures of the usual forms.

    Also for commands (``pipe:curl -H "Authorization: ..." ...``).

    Example:
        >>> without_credentials("https://me:pass@host/x.tar?part=1&X-Amz-Signature=0f1e")
        'https://***@host/x.tar?part=1&X-Amz-Signature=***'
    """
    shown = _USERINFO.sub("***@", url)
    shown = _SECRET_PARAMETER.sub(r"\1=***", shown)
    return _SECRET_HEADER.sub(r"\1***", shown)


def _file_url_path(url: str) -> str:
    path = unquote(url[len("file:") :])
    if not path.startswith("//"):
        return path
    host, slash, rest = path[2:].partition("/")
    if host not in ("", "localhost"):
        raise ValueError(
            f"cannot open {url!r}: it names a file on host {host!r}; write file:///absolute/path"
        )
    return slash + rest


def _expand_pattern(pattern: str) -> list[str]:
    parts = [_substitute_variables(part) for part in pattern.split("::")]
    for part in parts:
        _check_range(part)
    shards = expand_braces(*parts)
    for part in parts:
        _check_glob(part)
    return shards


def _check_range(pattern: str) -> None:
    wrong = _NO_RANGE.search(pattern)
    if wrong and url_scheme(pattern) != "pipe":
        raise ValueError(
            f"{wrong[0]} in {without_credentials(pattern)!r} is no range: "
            f"did you mean {{{wrong[1]}..{wrong[2]}}}?"
        )


def _check_glob(pattern: str) -> None:
    """Refuses a glob, which would name a shard that cannot be there."""
    is_file = url_scheme(pattern) in ("", "file")
    if is_file and _GLOB.search(pattern) and not os.path.exists(expand_braces(pattern)[0]):
        raise ValueError(
            f"{pattern!r} is a glob, which is not expanded: write braces, such as train-{{000..011}}.tar, or "
            f"give a list of files, sorted(glob.glob({pattern!r}))"
        )


def _substitute_variables(pattern: str) -> str:
    """Replace ``${NAME}`` until none is left: a value may itself hold variables."""
    expanded = pattern
    for _ in range(_NESTED_VARIABLES):
        if _VARIABLE.search(expanded) is None:
            return expanded
        expanded = _VARIABLE.sub(lambda match: _variable(match[1], pattern), expanded)
    raise ValueError(f"variables of shard pattern {pattern!r} refer to each other without end")


def _variable(name: str, pattern: str) -> str:
    value = os.environ.get("WDS_" + name)
    if value is None:
        raise ValueError(
            f"shard pattern {pattern!r} needs the environment variable WDS_{name}, which is not set"
        )
    return value


def _as_str(url: object) -> str:
    path = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(path, str):
        raise TypeError(f"a shard's name must be a string or a path, got {type(url).__name__}: {url!r}")
    return path
