"""The secure mode: no shell commands, no local files, no rewriting of URLs, no pickles."""

from __future__ import annotations

import os
from types import ModuleType

from mpwds.errors import SecurityError

_VARIABLE = "WDS_SECURE"
_OFF = ("", "0", "false", "no", "off")


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
    """Raises if the secure mode is on.

    Args:
        what: What is not allowed, and where it was asked for: the beginning of a sentence.

    Raises:
        SecurityError: The secure mode is on.

    Example:
        >>> refuse_in_secure_mode("local files may not be opened (/data/x.tar)")
    """
    if security_enforced():
        raise SecurityError(
            f"{what} in secure mode: it is on because {_VARIABLE}={os.environ[_VARIABLE]!r} is in the "
            "environment, or because enforce_security was set"
        )
