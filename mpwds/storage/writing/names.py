"""File names for a sample's fields that are read back as the key and the field they were made from."""

from __future__ import annotations

import re
from typing import Any

_READABLE_KEY = re.compile(r"(?:.*/)?[^.]+")
_METADATA = re.compile(r"__[^/]*__(?:/|$)")


def check_key(key: Any) -> str:
    """Return a sample's key if readers, which cut file names at the first dot, will find it again.

    Args:
        key: The key: directories before it are fine, a dot in its last component is not.

    Raises:
        ValueError: The key is no string, is empty, or would be read back as another one.

    Source:
        ``webdataset.tariterators.base_plus_ext``.

    Example:
        >>> check_key("train.v2/000017")
        'train.v2/000017'
        >>> check_key("img.17")
        Traceback (most recent call last):
        ValueError: sample key 'img.17' would be read back as 'img': names end at the first dot, replace it
    """
    if not isinstance(key, str):
        raise ValueError(f"sample key {key!r} is {type(key).__name__}, expected a str")
    if _READABLE_KEY.fullmatch(key) is not None and "\0" not in key:
        return key
    directory, slash, last = key.rpartition("/")
    base, dot, _ = last.partition(".")
    if base and dot:
        raise ValueError(
            f"sample key {key!r} would be read back as {directory + slash + base!r}: names end at "
            "the first dot, replace it"
        )
    raise ValueError(
        f"sample key {key!r} cannot be read back: expected a name, with directories before it or not"
    )


def file_name(key: str, field: Any) -> str:
    """The name of the file that holds a field: the key, a dot, the field.

    Args:
        key: A key that ``check_key`` accepts.
        field: The field's name; it may hold dots.

    Raises:
        ValueError: The field's name is no string, is empty or holds a slash, a newline or a NUL; or readers
            skip a file of this name, as its first component starts and ends with two underscores.

    Example:
        >>> file_name("train/000017", "mask.png")
        'train/000017.mask.png'
    """
    if not isinstance(field, str) or not field or "/" in field or "\n" in field or "\0" in field:
        raise ValueError(
            f"field name {field!r} of sample {key!r} cannot be part of a file name: expected a str such as "
            "'png' or 'mask.png'"
        )
    name = f"{key}.{field}"
    if name.startswith("__") and _METADATA.match(name) is not None:
        raise ValueError(
            f"{name!r} would be skipped by readers, as a name with __ at both ends: change the key"
        )
    return name
