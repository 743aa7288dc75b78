"""Rewriting of URLs by rules in the user's environment."""

from __future__ import annotations

import os
import re
import sys

from mpwds.storage.streams.secure import refuse_in_secure_mode
from mpwds.storage.streams.urls import without_credentials

_VARIABLES = ("WDS_REWRITE", "GOPEN_REWRITE")


def rewrite_url(url: str) -> str:
    """A URL as the user's environment wants it.

    The environment variables ``WDS_REWRITE`` and ``GOPEN_REWRITE`` hold rules ``prefix=replacement``,
    separated by semicolons: ``WDS_REWRITE="gs://=/shared/data/;s3://=pipe:ssh proxy cat-s3 "``. The first
    that changes the URL counts, those of ``WDS_REWRITE`` coming first.

    A rule is divided at its first ``=``, and what stands before it is a regular expression that is looked
    for at the URL's beginning: webdataset's rule. So that a prefix may hold ``=``: where a URL begins,
    letter by letter, with what stands before a *later* ``=``, the rule is divided there, at the last such
    place. For the URL ``https://host/get?x=1/a.tar`` the rule ``https://host/get?x=1=/local`` yields
    ``/local/a.tar``.

    With ``GOPEN_VERBOSE=1`` in the environment what is rewritten is printed on standard error.

    Args:
        url: A URL or a path.

    Raises:
        ValueError: A rule has no ``=``, or is no regular expression.
        SecurityError: There are rules, and the secure mode is on.

    Source:
        ``webdataset.gopen.rewrite_url``.

    Example:
        >>> os.environ["WDS_REWRITE"] = "gs://=pipe:ssh proxy gsutil cat gs://"
        >>> rewrite_url("gs://bucket/x.tar")
        'pipe:ssh proxy gsutil cat gs://bucket/x.tar'
        >>> del os.environ["WDS_REWRITE"]
    """
    for variable in _VARIABLES:
        rules = os.environ.get(variable, "")
        if not rules.strip():
            continue
        refuse_in_secure_mode(f"URLs are not rewritten by {variable}")
        for rule in filter(str.strip, rules.split(";")):
            rewritten = _apply(rule, url, variable)
            if rewritten != url:
                if verbose():
                    shown = f"{without_credentials(url)} -> {without_credentials(rewritten)}"
                    print(f"GOPEN REWRITE {shown}", file=sys.stderr)
                return rewritten
    return url


def verbose() -> bool:
    """Whether ``GOPEN_VERBOSE`` asks for a line about every URL that is opened."""
    return os.environ.get("GOPEN_VERBOSE", "0").strip() not in ("", "0")


def _apply(rule: str, url: str, variable: str) -> str:
    pattern, equals, replacement = rule.partition("=")
    if not equals:
        raise ValueError(
            f"{variable} in the environment has the rule {rule!r} without '=': write prefix=replacement, and "
            "';' between rules"
        )
    for later in range(len(rule) - 1, len(pattern), -1):
        if rule[later] == "=" and url.startswith(rule[:later]):
            return rule[later + 1 :] + url[later:]
    try:
        return re.sub("^" + pattern, replacement, url)
    except (re.error, IndexError) as error:
        raise ValueError(
            f"{variable} in the environment has the rule {rule!r}, which is no regular expression: {error}"
        ) from None
