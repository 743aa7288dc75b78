"""Names of a shard's members: which sample a member belongs to, and its extension."""

from __future__ import annotations


def split_name(name: str) -> tuple[str, str]:
    """A member's sample key and its extension in lower case; two empty strings if it belongs to no sample."""
    if is_meta(name):
        return "", ""
    key, extension = key_and_extension(name)
    return key, extension.lower()


def is_meta(name: str) -> bool:
    """True if a member describes the shard: ``__meta__``, ``__meta__/x.json``."""
    if not name.startswith("__"):
        return False
    top = name.partition("/")[0]
    return top.endswith("__") and (len(top) >= 4 or top == name)


def key_and_extension(name: str) -> tuple[str, str]:
    """The name up to the first dot of its last part, and the rest; two empty strings if there is none."""
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot < 0 or dot == 0:
        return "", ""
    if dot == base and "." in name[name.rfind("/", 0, base - 1) + 1 : base]:
        return "", ""
    return name[:dot], name[dot + 1 :]
