"""What URLs may do: the secure mode, and URLs that do not come from the user's own code."""

from __future__ import annotations

import os
import re
from types import ModuleType

from mpwds.errors import SecurityError
from mpwds.storage.streams.urls import expand_urls, url_scheme, without_credentials

_VARIABLE = "WDS_SECURE"
_OFF = ("", "0", "false", "no", "off")
_ONE_WORD = re.compile(r"(?!.*//-)[\w@%+=:,./?-]*", re.ASCII)  # to the shell, and no option


def security_enforced() -> bool:
    """Whether the secure mode is on: no shell commands, no local files, no rewriting of URLs, no pickles.

    It is on while the environment variable ``WDS_SECURE`` is set to anything but ``0``, ``false``, ``no``,
    ``off`` or nothing. The environment is the only place where it is kept, so processes that start later
    have it as well.

    Source:
        ``webdataset.utils.enforce_security``.

    Example:
        >>> enforce_security(True)
        >>> security_enforced()
        True
        >>> enforce_security(False)
    """
    return os.environ.get(_VARIABLE, "").strip().lower() not in _OFF


def enforce_security(on: bool = True) -> None:
    """Switches the secure mode on or off, in this process and those that it starts from now on.

    Args:
        on: Whether it is to be on.

    Example:
        >>> enforce_security(False)
        >>> security_enforced()
        False
    """
    os.environ[_VARIABLE] = "1" if on else "0"


class ModuleWithEnforceSecurity(ModuleType):
    """Class for a module whose attribute ``enforce_security`` is the secure mode, to be read and set.

    Example:
        >>> utils = ModuleWithEnforceSecurity("utils")
        >>> utils.enforce_security = False
        >>> utils.enforce_security
        False
    """

    @property
    def enforce_security(self) -> bool:
        return security_enforced()

    @enforce_security.setter
    def enforce_security(self, on: bool) -> None:
        enforce_security(on)


def refuse_in_secure_mode(what: str) -> None:
    """Raises where the secure mode is on.

    Args:
        what: What is not allowed then, and where it was asked for, as the beginning of a sentence.

    Raises:
        SecurityError: The secure mode is on.

    Example:
        >>> refuse_in_secure_mode("local files may not be opened (/data/x.tar)")
    """
    if security_enforced():
        raise SecurityError(
            f"{what} in secure mode: it is on because {_VARIABLE}={os.environ[_VARIABLE]!r} is in the "
            "environment, "
            "or because enforce_security was set"
        )


def check_url(url: str, trusted: bool, where: str) -> None:
    """Refuses a URL that runs a command, unless it comes from the user's own code.

    Call it for every URL that was read from a file or fetched. What the user's environment makes of a
    URL later (``WDS_REWRITE``) may be a command. But the URL must then be a plain word: what the shell would
    take for more than that, such as ``;`` and ``$(...)``, is refused.

    Args:
        url: A URL, or a pattern for :func:`mpwds.expand_urls`: what it expands to is looked at
            too, as ``{pipe,}:rm`` and ``${X}rm`` may hide what they are.
        trusted: Whether the caller vouches for the place that it comes from.
        where: That place, for the message: ``"train.yaml, line 7"``.

    Raises:
        SecurityError: The place is not trusted, and the URL is ``pipe:``, or adds more than a word to the
            command that the environment makes of it.

    Example:
        >>> check_url("pipe:cat x.tar", trusted=True, where="train.yaml")
        >>> check_url("https://host/{00..99}.tar", trusted=False, where="train.yaml")
        >>> check_url("a.tar::pipe:cat b.tar", trusted=False, where="train.yaml, line 7")
        Traceback (most recent call last):
            ...
        mpwds.errors.SecurityError: train.yaml, line 7: the URL 'pipe:cat b.tar' runs a command, ...
    """
    if trusted:
        return
    from mpwds.storage.streams.rewrite import rewrite_url  # which needs the secure mode

    for candidate in _readings(url):
        if url_scheme(candidate) == "pipe":
            raise SecurityError(
                f"{where}: the URL {without_credentials(candidate)!r} runs a command, which is allowed "
                "only for URLs "
                "that stand in your code or that WDS_REWRITE in your environment yields; if you wrote that "
                "file yourself, load it with trusted=True"
            )
        if _ONE_WORD.fullmatch(candidate) is None and url_scheme(rewrite_url(candidate)) == "pipe":
            raise SecurityError(
                f"{where}: the URL {without_credentials(candidate)!r} has characters with a meaning for the "
                "shell, and WDS_REWRITE (or GOPEN_REWRITE) in your environment makes a command of it; if you "
                "wrote that file yourself, load it with trusted=True"
            )


def _readings(url: str) -> list[str]:
    try:
        return [url, *expand_urls(url)]
    except ValueError:  # not a pattern that can be expanded: whoever expands it will say so
        return [url, *url.split("::")]
