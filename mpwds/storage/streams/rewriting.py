"""Rules in the user's environment that rewrite URLs, and the check of URLs from untrusted files."""

from __future__ import annotations

import os
import re
import sys
from typing import NamedTuple
from urllib.parse import unquote

from mpwds.errors import SecurityError
from mpwds.storage.streams.patterns import expand_names
from mpwds.storage.streams.urls import (
    REWRITE_VARIABLES,
    refuse_in_secure_mode,
    url_scheme,
    verbose,
    without_credentials,
)

# One word that a shell leaves unchanged, and that cannot be an option.
_PLAIN_WORD = re.compile(r"(?:[\w/.:][\w@%+=:,./-]*)?", re.ASCII)


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
    rewritten = _rewrite(url).url
    if rewritten != url and verbose():
        shown = f"{without_credentials(url)} -> {without_credentials(rewritten)}"
        print(f"GOPEN REWRITE {shown}", file=sys.stderr)
    return rewritten


def check_url(url: str, trusted: bool, where: str) -> None:
    """Refuses a URL that runs a command, unless it comes from the user's own code.

    Call it for every URL that was read from a file or fetched. The user's environment may later turn such a
    URL into a command (``WDS_REWRITE``). Then the part of the URL that ends up in the command must be a plain
    word: no option (a leading ``-``), nothing that the shell would expand or split. Whatever it is rewritten
    to, it must not lead to a parent folder (``..``).

    Args:
        url: A URL, or a pattern for :func:`mpwds.expand_urls`. All that it expands to is checked too, because
            ``{pipe,}:rm`` and ``${X}rm`` may hide a command.
        trusted: Whether the caller trusts the place that the URL comes from.
        where: That place, for the message: ``"train.yaml, line 7"``.

    Raises:
        SecurityError: The place is not trusted, and the URL is ``pipe:`` or breaks one of these rules.

    Example:
        >>> check_url("https://host/{00..99}.tar", trusted=False, where="train.yaml")
        >>> check_url("a.tar::pipe:cat b.tar", trusted=False, where="train.yaml, line 7")
        Traceback (most recent call last):
            ...
        mpwds.errors.SecurityError: train.yaml, line 7: the URL 'pipe:cat b.tar' runs a command, ...
    """
    if trusted:
        return
    for candidate in _readings(url):
        if why := _danger(candidate):
            raise SecurityError(
                f"{where}: the URL {without_credentials(candidate)!r} {why}; if you wrote that file "
                "yourself, load it with trusted=True"
            )


def _readings(url: str) -> list[str]:
    try:
        return [url, *expand_names(url)]
    except ValueError:  # an invalid pattern: the caller that expands it raises
        return [url, *url.split("::")]


def _danger(url: str) -> str:
    """Why a URL from an untrusted file is refused; empty if it is not."""
    if url_scheme(url) == "pipe":
        return (
            "runs a command, which is allowed only for URLs in your code and for results of WDS_REWRITE in "
            "your environment"
        )
    rewritten = _rewrite(url)
    if any(".." in unquote(piece).split("/") for piece in rewritten.pieces):
        return (
            f"has '..', which would leave the place to which {rewritten.variable} in your environment maps it"
        )
    if url_scheme(rewritten.url) == "pipe" and not all(map(_PLAIN_WORD.fullmatch, rewritten.pieces)):
        return (
            "would add an option, or characters with a meaning for the shell, to the command that "
            f"{rewritten.variable} in your environment makes of it"
        )
    return ""


class _Rewritten(NamedTuple):
    """A URL after the rules; which parts of the original are left in it; the variable with the rule."""

    url: str
    pieces: tuple[str, ...] = ()
    variable: str = ""


def _rewrite(url: str) -> _Rewritten:
    for variable in REWRITE_VARIABLES:
        rules = os.environ.get(variable, "")
        if not rules.strip():
            continue
        refuse_in_secure_mode(f"URLs are not rewritten by {variable}")
        for rule in filter(str.strip, rules.split(";")):
            rewritten = _apply(rule, url, variable)
            if rewritten.url != url:
                return rewritten
    return _Rewritten(url)


def _apply(rule: str, url: str, variable: str) -> _Rewritten:
    pattern, equals, replacement = rule.partition("=")
    if not equals:
        raise ValueError(
            f"{variable} in the environment has the rule {rule!r} without '=': write prefix=replacement, and "
            "';' between rules"
        )
    for later in range(len(rule) - 1, len(pattern), -1):
        if rule[later] == "=" and url.startswith(rule[:later]):
            return _Rewritten(rule[later + 1 :] + url[later:], (url[later:],), variable)
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
    return _Rewritten(rewritten, (*pieces, url[at:]), variable)
