"""Kinds of fields: by first bytes and extensions; and how fields become columns of MDS datasets, and back."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mpwds.pipeline.decoding.fields import extension_of
from mpwds.pipeline.sources.formats import KEY
from mpwds.storage.mds.encodings import encoding
from mpwds.storage.tar.names import split_name
from mpwds.storage.writing.encoders import encode_field

Convert = Callable[[bytes], bytes]

Plan = dict[str, tuple[str, str, Convert]]
"""By field or column of the source: its new name, its encoding in MDS, and the function between them."""

# By encoding, the extensions of fields that are guessed to have it, the first of which a column gets.
_EXTENSIONS: dict[str, tuple[str, ...]] = {
    "jpeg": ("jpg", "jpeg"),
    "png": ("png",),
    "str": ("txt", "text", "transcript"),
    "int": ("cls", "cls2", "index", "inx", "id"),
    "json": ("json", "jsn"),
    "ndarray": ("npy",),
}
_AS_TEXT = {"str", "str_int", "str_float", "str_decimal"}
_AS_IT_IS = {"bytes", "pkl"}

# First bytes of files, the place where they are, and their extension.
SIGNATURES = (
    (b"\xff\xd8\xff", 0, "jpg"),
    (b"\x89PNG\r\n\x1a\n", 0, "png"),
    (b"GIF8", 0, "gif"),
    (b"WEBP", 8, "webp"),
    (b"II*\0", 0, "tif"),
    (b"MM\0*", 0, "tif"),
    (b"WAVE", 8, "wav"),
    (b"fLaC", 0, "flac"),
    (b"OggS", 0, "ogg"),
    (b"ID3", 0, "mp3"),
    (b"\xff\xfb", 0, "mp3"),
    (b"ftypavif", 4, "avif"),
    (b"ftyphei", 4, "heic"),
    (b"ftypM4A", 4, "m4a"),
    (b"ftypqt", 4, "mov"),
    (b"ftyp", 4, "mp4"),
    (b"%PDF", 0, "pdf"),
    (b"\x93NUMPY", 0, "npy"),
)


def plan_fields(first: Mapping[str, bytes], stored: Mapping[str, str], kind: str, columns: str) -> Plan:
    """Plans what becomes of the fields of a ``first`` sample, of which ``stored`` are the encodings."""
    names = [name for name in first if name != KEY]
    chosen = parse(columns, names) if columns else dict.fromkeys(names, ("", ""))
    plan: Plan = {}
    for name, (new, target) in chosen.items():
        encoding_before = stored.get(name, "")
        field = target if kind != "mds" else ""
        if not field:
            field = field_of(name, encoding_before, first[name]) if encoding_before else name
        if kind == "mds":
            target = target or encoding_before or guessed_encoding(field)
            plan[name] = (new or name, target, between(encoding_before, field, target))
        else:
            plan[name] = (field, "", from_column(encoding_before, field))
    names = [new for new, _, _ in plan.values()]
    check_distinct(names, bool(stored) and kind != "mds")
    for name in names if kind != "tar" else ():
        if not is_text(name):
            raise ValueError(
                f"the field {name!r} is not UTF-8, as names in {kind} are: rename it by --columns"
            )
    return plan


def is_text(name: str) -> bool:
    """True if UTF-8 can hold a name: one of an archive may have other bytes, as lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def check_distinct(fields: Sequence[str], of_columns: bool = True) -> None:
    if len(set(fields)) < len(fields):
        what = "two columns would be one field" if of_columns else "two fields would have one name"
        raise ValueError(f"{what}: {', '.join(sorted(fields))}")


def guessed_encoding(field: str) -> str:
    """The encoding that a field of a tar shard probably has, by its extension; ``bytes`` for most.

    Example:
        >>> [guessed_encoding(field) for field in ("jpg", "cls", "seg.png", "wav")]
        ['jpeg', 'int', 'png', 'bytes']
    """
    extension = extension_of(field)
    return next((name for name, known in _EXTENSIONS.items() if extension in known), "bytes")


def between(stored: str, field: str, target: str) -> Convert:
    """The function from a column's bytes, or a field's if ``stored`` is empty, to those of another column."""
    if stored == target:
        return bytes
    first, second = from_column(stored, field), to_column(field, target)
    return lambda data: second(first(data))


def to_column(field: str, name: str) -> Convert:
    """The function from a field's bytes to those of a column with this encoding.

    Images, texts and JSON keep their bytes. Others are decoded, by the field's extension, and encoded.

    Example:
        >>> to_column("cls", "int")(b"7"), to_column("txt", "str")(b"seven")
        (b'\\x07\\x00\\x00\\x00\\x00\\x00\\x00\\x00', b'seven')
    """
    column = encoding(name, allow_pickle=True)  # a pickle's bytes are stored, not read
    if name in _AS_IT_IS:
        return bytes
    if name in _AS_TEXT:
        return lambda data: column.encode(data.decode().encode())
    if name in ("jpeg", "png") and extension_of(field) in _EXTENSIONS[name]:
        return bytes
    if name == "json" and extension_of(field) in _EXTENSIONS["json"]:
        return _checked_json
    if name.startswith("ndarray"):
        return lambda data: column.encode(np.load(io.BytesIO(data), allow_pickle=False))
    if column.size is not None:  # a number
        number = float if name.startswith("float") else int
        return lambda data: column.encode(number(data))
    return lambda data: column.encode(_decoded(field, data))


def field_of(column: str, name: str, first: bytes) -> str:
    """The field of a tar shard that a column becomes: its name, and an extension that tells its kind.

    ``name`` is the column's encoding, ``first`` its bytes in some sample.

    Example:
        >>> field_of("jpg", "jpeg", b""), field_of("text", "str", b""), field_of("image", "bytes", b"GIF89a")
        ('jpg', 'text', 'image.gif')
    """
    if name.startswith("list") or name in ("jpeg_array", "jpegarray"):
        raise ValueError(
            f"column {column!r} holds lists ({name}), which are no file: leave it out by naming the others "
            "in --columns"
        )
    kind = name.partition(":")[0]
    known: tuple[str, ...]
    if name in ("bytes", "pkl"):
        extension = "pkl" if name == "pkl" else extension_by_content(first)
        known = (extension_of(column), "pkl") if extension == "bin" else (extension, "jpeg")
    elif name == "pil":
        known = ("png",)
    elif kind in ("ndarray", "jpeg", "png", "json") or kind in _AS_TEXT - {"str_int"}:
        known = _EXTENSIONS["str" if kind in _AS_TEXT else kind]
    else:
        known = ("json",) if kind.startswith("float") else _EXTENSIONS["int"]
    return column if extension_of(column) in known else f"{column}.{known[0]}"


def from_column(name: str, field: str) -> Convert:
    """The function from the bytes of a column with this encoding to those of a field, or of keys; without
    one, they are a field's."""
    if not name or name in _AS_IT_IS or name in _AS_TEXT or name in ("jpeg", "png", "json"):
        return bytes
    return partial(_value_as_field, name, field)


def _value_as_field(name: str, field: str, data: bytes) -> bytes:
    value = encoding(name, allow_pickle=True).decode(data)
    value = value.item() if isinstance(value, np.generic) else value
    return str(value).encode() if field == KEY else encode_field(field, value)


def extension_by_content(data: Any, path: str = "") -> str:
    """The extension of a file: what its first bytes say, its name, or ``bin``."""
    for signature, place, extension in SIGNATURES:
        if isinstance(data, bytes) and data.startswith(signature, place):
            return "jpeg" if extension == "jpg" and path.lower().endswith(".jpeg") else extension
    return split_name(path)[1].rpartition(".")[2] or "bin"


def parse(text: str, known: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Reads a user's choice, ``NAME:TARGET,...`` or ``NEW=NAME:TARGET``: by name, the new one and the target.

    Example:
        >>> parse("jpg:jpeg,label=cls:int", ["jpg", "cls"])
        {'jpg': ('jpg', 'jpeg'), 'cls': ('label', 'int')}
    """
    known = list(known)
    chosen = {}
    for part in text.split(","):
        names, colon, target = part.partition(":")
        new, _, name = names.rpartition("=")
        if not colon or not target or name not in known:
            expected = "expected NAME:TARGET or NEW=NAME:TARGET, and NAME one of"
            raise ValueError(f"--columns {part!r}: {expected} {', '.join(known)}")
        chosen[name] = (new or name, target)
    return chosen


def convert_fields(sample: Mapping[str, bytes], plan: Plan, may_lack: bool) -> dict[str, bytes]:
    """The sample with the names and bytes of a plan, some of whose fields it may lack if ``may_lack``."""
    converted = {}
    for name, (new, _, convert) in plan.items():
        if name not in sample:
            if may_lack:
                continue
            have = ", ".join(each for each in sample if each != KEY)
            raise ValueError(
                f"sample {sample[KEY]!r} has no {name!r}, only {have}: columns need a value in every sample; "
                "name those that all samples have with --columns"
            )
        try:
            converted[new] = convert(sample[name])
        except (ValueError, TypeError, ArithmeticError, EOFError, OSError) as error:
            raise ValueError(f"{name!r} of sample {sample[KEY]!r} cannot be converted: {error}") from error
    return converted


def _checked_json(data: bytes) -> bytes:
    json.loads(data)
    return data


def _decoded(field: str, data: bytes) -> Any:
    from mpwds.pipeline.decoding.decoders import Decoder
    from mpwds.pipeline.decoding.images import imagehandler

    value = Decoder(imagehandler("pil"))({field: data})[field]
    if isinstance(value, bytes):
        raise ValueError(f"the extension {extension_of(field)!r} does not tell how to decode it")
    return value
