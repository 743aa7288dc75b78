"""URLs: shard patterns and their braces, schemes, local paths, and the form for messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import unquote

from braceexpand import braceexpand

MAX_NAMES = 1_000_000
"""The most names that a pattern may expand to: about a petabyte of shards."""

_MAX_CHARACTERS = 1_000_000_000  # of all names: padding and long patterns multiply, too

_TOKEN = re.compile(
    r"\\."
    r"|\{(?P<first>-?\d+)\.\.(?P<last>-?\d+)(\.\.(?P<step>-?\d+))?\}"
    r"|\{(?P<from>[A-Za-z])\.\.(?P<to>[A-Za-z])(\.\.(?P<stride>-?\d+))?\}"
    r"|[{},]",
    re.DOTALL,
)

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

    A pattern (a string or a path) may consist of several patterns separated by ``::``. ``${NAME}`` becomes
    the value of the environment variable ``WDS_NAME``. ``{000..131}`` and ``{a,b}`` become one name for each
    value. Names from an iterable stay as they are. These are webdataset's rules.

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
        raise ValueError(f"no shards: {urls!r} is empty")
    if "" in shards:
        raise ValueError(f"shard {shards.index('')} of {urls!r} has an empty name")
    return shards


def expand_braces(*patterns: str) -> list[str]:
    """The names that the braces of patterns expand to, in order.

    Raises:
        ValueError: The braces do not match, or there would be more than a million names. They are counted
            first.

    Example:
        >>> expand_braces("x-{0..2}.{tar,txt}")
        ['x-0.tar', 'x-0.txt', 'x-1.tar', 'x-1.txt', 'x-2.tar', 'x-2.txt']
    """
    names = sum(map(_count, patterns))
    if names > MAX_NAMES:
        largest = max(patterns, key=_count)
        raise ValueError(
            f"the braces in {largest!r} stand for {_count(largest)} names; {MAX_NAMES} are allowed. If you "
            "really have that many shards, pass a list of names"
        )
    characters = sum(_count(pattern) * len(pattern) for pattern in patterns)
    if characters > _MAX_CHARACTERS:
        raise ValueError(
            f"the braces in a pattern of {max(map(len, patterns))} characters stand for {names} names of up "
            f"to that length: {characters} characters in all, and {_MAX_CHARACTERS} are allowed"
        )
    return [name for pattern in patterns for name in _expand(pattern)]


def url_scheme(url: str) -> str:
    """A URL's scheme in lower case; an empty string for a path.

    Example:
        >>> [url_scheme(url) for url in ("S3://bucket/x.tar", "pipe:cat x.tar", "data/s3:x.tar", "C:/x.tar")]
        ['s3', 'pipe', '', '']
    """
    match = _SCHEME.match(url)
    return match[1].lower() if match else ""


def is_local(url: str | os.PathLike[str]) -> bool:
    """Whether a URL names a local file: a path, ``file:``, or ``ab:c.tar`` if such a file exists."""
    name = _as_str(url)
    return url_scheme(name) in ("", "file") or os.path.exists(name)


def local_path(url: str | os.PathLike[str]) -> str:
    """The path of the local file that a URL names.

    In a ``file:`` URL, ``%20`` and the like stand for characters. A path that looks like a URL (``ab:c.tar``)
    is a path if such a file exists.

    Raises:
        ValueError: The URL's scheme is another one, or a ``file:`` URL names another machine.
        TypeError: ``url`` is neither a string nor a path.

    Example:
        >>> local_path("data/x.tar"), local_path("file:///data/my%20x.tar")
        ('data/x.tar', '/data/my x.tar')
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
    """A URL or a command for messages, without passwords, tokens and signatures of the usual forms.

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
    """Refuses a glob: no shard has that name."""
    is_file = url_scheme(pattern) in ("", "file")
    if is_file and _GLOB.search(pattern) and not os.path.exists(expand_braces(pattern)[0]):
        raise ValueError(
            f"{pattern!r} is a glob, which is not expanded: write braces, such as train-{{000..011}}.tar, or "
            f"give a list of files, sorted(glob.glob({pattern!r}))"
        )


def _expand(pattern: str) -> list[str]:
    try:
        return list(braceexpand(pattern))
    except ValueError:
        raise ValueError(f"the braces in {pattern!r} do not match: write train-{{000..011}}.tar") from None


def _count(pattern: str) -> int:
    """The number of names; too high if letters are counted or braces do not match."""
    alternatives, names = 0, 1  # of the braces that are open: those before the last comma; those since
    outer: list[tuple[int, int]] = []
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text == "{":
            outer.append((alternatives, names))
            alternatives, names = 0, 1
        elif text == "," and outer:
            alternatives, names = alternatives + names, 1
        elif text == "}" and outer:
            inside = alternatives + names
            alternatives, names = outer.pop()
            names *= inside
        elif token["first"]:
            names *= _steps(int(token["first"]), int(token["last"]), token["step"])
        elif token["from"]:
            names *= _steps(ord(token["from"]), ord(token["to"]), token["stride"])
    return max(names, *(before for _, before in outer), 1)


def _steps(first: int, last: int, step: str | None) -> int:
    return abs(last - first) // max(1, abs(int(step or 1))) + 1


def _substitute_variables(pattern: str) -> str:
    """Replaces each ``${NAME}``, also in the values."""
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
