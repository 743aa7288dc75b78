"""URLs: local names, names for messages, secure mode, and the user's rules that rewrite them."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from mpwds.errors import SecurityError, StreamError
from mpwds.suggestions import shown

_REWRITE_VARIABLES = ("WDS_REWRITE", "GOPEN_REWRITE")

PACKED = ".shardindex"
"""The ending of descriptions in binary form."""

_SECURE_VARIABLE = "WDS_SECURE"
_OFF = ("", "0", "false", "no", "off")
_PATH_SCHEMES = {"", "file", "http", "https", "ftp", "ftps", "gs", "s3", "ais"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
# In abfss://container@account.dfs.core.windows.net/ it is not a secret.
_USERINFO = re.compile(r"(?i)(?<!abfs://)(?<!abfss://)(?<=://)[^/@\s'\"]+@")
_SECRET_PARAMETER = re.compile(
    r"(?i)(?<=[?&;])([\w.-]*(?:signature|credential|token|password|secret|access_?key|api_?key)[\w.-]*|sig)"
    r"=[^&;\s'\"]+"
)
_SECRET_HEADER = re.compile(
    r"(?i)\b((?:authorization:\s*(?:bearer\s+|basic\s+|token\s+)?)|(?:[\w-]*(?:api-key|token):\s*))[^\s'\"]+"
)


def url_scheme(url: str) -> str:
    """A URL's scheme in lower case; an empty string for a path.

    Example:
        >>> [url_scheme(url) for url in ("S3://bucket/x.tar", "pipe:cat x.tar", "data/s3:x.tar", "C:/x.tar")]
        ['s3', 'pipe', '', '']
    """
    match = _SCHEME.match(url)
    return match[1].lower() if match else ""


def is_local(url: str | os.PathLike[str]) -> bool:
    """True if a URL names a local file: a path, ``file:``, or ``ab:c.tar`` if such a file exists."""
    name = as_str(url)
    return url_scheme(name) in ("", "file") or os.path.exists(name)


def local_path(url: str | os.PathLike[str]) -> str:
    """The path of the local file that a URL names. ``%20`` is a space in a ``file:`` URL.

    Raises ``ValueError`` if the URL is not local, or a ``file:`` URL names another machine.

    Example:
        >>> local_path("data/x.tar"), local_path("file:///data/my%20x.tar")
        ('data/x.tar', '/data/my x.tar')
    """
    path = as_str(url)
    scheme = url_scheme(path)
    if scheme not in ("", "file") and not is_local(path):
        raise ValueError(
            f"{shown(without_credentials(path))} cannot be used here: only local files can (a path or file:)"
        )
    if scheme != "file":
        return path
    path = unquote(path[len("file:") :])
    if not path.startswith("//"):
        return path
    host, slash, rest = path[2:].partition("/")
    if host not in ("", "localhost"):
        raise ValueError(
            f"cannot open {shown(url)}: it names a file on host {shown(host)}; write file:///absolute/path"
        )
    return slash + rest


def absolute_path(path: str | os.PathLike[str]) -> str:
    """The absolute path of a local file or folder, where ``~`` is the user's folder."""
    return os.path.abspath(os.path.expanduser(path))


def as_str(url: object) -> str:
    """A shard's name, given as a string or a path. Raises ``TypeError`` for anything else."""
    if isinstance(url, str):
        return url
    path = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(path, str):
        raise TypeError(f"a shard's name must be a string or a path, got {type(url).__name__}: {shown(url)}")
    return path


def without_credentials(url: str) -> str:
    """A URL or a command for messages, without passwords, tokens and signatures of the usual forms.

    Example:
        >>> without_credentials("https://me:pass@host/x.tar?part=1&X-Amz-Signature=0f1e")
        'https://***@host/x.tar?part=1&X-Amz-Signature=***'
    """
    shown = _USERINFO.sub("***@", url)
    shown = _SECRET_PARAMETER.sub(r"\1=***", shown)
    return _SECRET_HEADER.sub(r"\1***", shown)


def too_short(name: str, end: int | None, offset: int) -> StreamError:
    """The error for a resource that ends before the offset from which it is to be read."""
    at = "" if end is None else f" at byte {end},"
    what = f"it ends{at} before byte {offset}: it is shorter than it was, or the position is of another file"
    return StreamError(f"{name}: {what}", name, offset)


def has_rules() -> bool:
    """True if the environment has rules that rewrite URLs."""
    return any(map(os.environ.get, _REWRITE_VARIABLES))


def verbose() -> bool:
    """True if ``GOPEN_VERBOSE`` asks for a line about every URL that is opened."""
    return os.environ.get("GOPEN_VERBOSE", "0").strip() not in ("", "0")


def rewrite_url(url: str) -> str:
    """A URL after the rules in the user's environment.

    The environment variables ``WDS_REWRITE`` and ``GOPEN_REWRITE`` hold rules ``prefix=replacement``,
    separated by semicolons: ``WDS_REWRITE="gs://=/shared/data/;s3://=pipe:ssh proxy cat-s3 "``. The first
    rule that changes the URL counts; those of ``WDS_REWRITE`` come first.

    As in webdataset, the first ``=`` divides a rule, and the prefix is a regular expression that matches at
    the URL's beginning. If the URL begins literally with the text before a *later* ``=``, the last such ``=``
    divides the rule: ``https://host/get?x=1=/local`` makes ``/local/a.tar`` of ``https://host/get?x=1/a.tar``.

    Raises:
        ValueError: A rule has no ``=``, or its prefix is not a regular expression.
        SecurityError: There are rules, and secure mode is on.

    Source:
        ``webdataset.gopen.rewrite_url``.

    Example:
        >>> os.environ["WDS_REWRITE"] = "gs://=pipe:ssh proxy gsutil cat gs://"
        >>> rewrite_url("gs://bucket/x.tar")
        'pipe:ssh proxy gsutil cat gs://bucket/x.tar'
        >>> del os.environ["WDS_REWRITE"]
    """
    rewritten = apply_rules(url).url
    if rewritten != url and verbose():
        shown = f"{without_credentials(url)} -> {without_credentials(rewritten)}"
        print(f"GOPEN REWRITE {shown}", file=sys.stderr)
    return rewritten


class Rewritten(NamedTuple):
    """A URL after the rules; which parts of the original are left in it; the variable with the rule."""

    url: str
    pieces: tuple[str, ...] = ()
    variable: str = ""


def apply_rules(url: str) -> Rewritten:
    """A URL after the rules in the user's environment, as for :func:`rewrite_url`."""
    for variable in _REWRITE_VARIABLES:
        rules = os.environ.get(variable, "")
        if not rules.strip():
            continue
        refuse_in_secure_mode(f"URLs are not rewritten by {variable}")
        for rule in filter(str.strip, rules.split(";")):
            rewritten = _apply(rule, url, variable)
            if rewritten.url != url:
                return rewritten
    return Rewritten(url)


def _apply(rule: str, url: str, variable: str) -> Rewritten:
    pattern, equals, replacement = rule.partition("=")
    if not equals:
        raise ValueError(
            f"{variable} in the environment has the rule {rule!r} without '=': write prefix=replacement;..."
        )
    for later in range(len(rule) - 1, len(pattern), -1):
        if rule[later] == "=" and url.startswith(rule[:later]):
            return Rewritten(rule[later + 1 :] + url[later:], (url[later:],), variable)
    try:
        prefix = re.compile("^" + pattern)
        rewritten = prefix.sub(replacement, url)
    except (re.error, IndexError) as error:
        raise ValueError(
            f"{variable} in the environment has the rule {rule!r}, which is not a regular expression: {error}"
        ) from None
    pieces = []
    at = 0
    for match in prefix.finditer(url):
        pieces += [url[at : match.start()], *match.groups("")]
        pieces += [match[0]] if "\\g<0>" in replacement else []
        at = match.end()
    return Rewritten(rewritten, (*pieces, url[at:]), variable)


def enforce_security(on: bool = True) -> None:
    """Switches secure mode on or off, in this process and those that it starts from now on.

    In secure mode nothing runs a shell command, opens a local file, rewrites a URL or reads a pickle; a
    ``SecurityError`` says so. The environment variable ``WDS_SECURE`` holds the mode.

    Args:
        on: Whether it is to be on.

    Source:
        ``webdataset.utils.enforce_security``.

    Example:
        >>> enforce_security(False)
        >>> security_enforced()
        False
    """
    os.environ[_SECURE_VARIABLE] = "1" if on else "0"


def security_enforced() -> bool:
    """True if ``WDS_SECURE`` is set to anything but ``0``, ``false``, ``no``, ``off`` or nothing."""
    return os.environ.get(_SECURE_VARIABLE, "").strip().lower() not in _OFF


def refuse_in_secure_mode(what: str, url: str = "") -> None:
    """Raises ``SecurityError`` if secure mode is on; ``what`` begins its message."""
    if security_enforced():
        where = f" ({without_credentials(url)})" if url else ""
        given = f"{_SECURE_VARIABLE}={os.environ[_SECURE_VARIABLE]!r} in the environment"
        raise SecurityError(f"{what}{where} in secure mode, which {given} or enforce_security has set")


def is_named(source: object, *endings: str) -> bool:
    """True if a source is a name with one of these endings; a query may follow it in a URL.

    Example:
        >>> [is_named(url, ".json") for url in ("x.json", "https://host/x.json?version=1", "x?.json?")]
        [True, True, False]
    """
    if not isinstance(source, (str, os.PathLike)):
        return False
    name = os.fspath(source)
    return name.endswith(endings) or (bool(url_scheme(name)) and name.partition("?")[0].endswith(endings))


def is_description(source: object) -> bool:
    """True if a source is named as a description of a dataset: as JSON, or in its binary form."""
    return is_named(source, ".json", ".json.gz", PACKED)


def folder_of(url: str) -> str:
    """The folder of a path or URL; empty for a command.

    Example:
        >>> folder_of("data/index.json"), folder_of("https://host/data/index.json?version=1")
        ('data', 'https://host/data')
    """
    scheme = url_scheme(url)
    if not scheme or scheme == "file":
        return os.path.dirname(local_path(url))
    if scheme == "pipe" or "//" not in url:
        return ""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{posixpath.dirname(parts.path)}"


def last_part(url: str) -> str:
    """What follows the last slash of a path or of a URL's path: a query stays, and may have slashes.

    Example:
        >>> last_part("data?/x.tar"), last_part("https://host/data/x.tar?signature=a/b")
        ('x.tar', 'x.tar?signature=a/b')
    """
    path = url if is_local(url) else url.partition("?")[0]
    return url[path.rfind("/") + 1 :]


def join_url(base: str, url: str) -> str:
    """A URL that may be relative to the folder ``base``. A path that begins with ``/`` keeps only the host.

    Example:
        >>> join_url("https://host/a/b", "../0.tar"), join_url("https://host/a", "/b/0.tar")
        ('https://host/a/0.tar', 'https://host/b/0.tar')
        >>> join_url("data", "x/0.tar"), join_url("data", "s3://bucket/0.tar")
        ('data/x/0.tar', 's3://bucket/0.tar')
    """
    if not url:
        return base
    if not base or url_scheme(url):
        return url
    host = ""
    if "://" in base:
        parts = urlsplit(base)
        host, base = f"{parts.scheme}://{parts.netloc}", parts.path or "/"
    joined = posixpath.join(base, url)
    return host + (posixpath.normpath(joined) if "./" in joined or "//" in joined else joined)


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
        return quoted_name(url)
    return "/".join(parts.path.lstrip("/").split("/")[-1 - ndir :])


def quoted_name(url: str) -> str:
    """A file's name made of the end of a URL."""
    return quote(url, safe="_+{}*,-")[-128:]
