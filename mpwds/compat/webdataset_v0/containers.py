"""Samples that a tar shard stores as one member each: MessagePack, JSON, tenbin or pickle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.decoding.decoders import Decoder


@dataclass(frozen=True)
class Unpacked:
    """Function for ``map`` that replaces a sample by what its one member contains.

    Args:
        extension: The members' extension; samples without such a member are dropped.
        allow_pickle: Whether pickles may be loaded, which runs any code that a shard holds.

    Raises:
        DecodeError: The member cannot be decoded.
        ValueError: A sample has several such members.

    Example:
        >>> Unpacked("json")({"__key__": "0017", "json": b'{"cls": 7}'})
        {'__key__': '0017.json', 'cls': 7}
        >>> Unpacked("mp")({"__key__": "0017", "json": b'{"cls": 7}'})
    """

    extension: str
    allow_pickle: bool = False

    def __call__(self, sample: dict[str, Any]) -> Any:
        fields = [field for field in sample if f".{field}".endswith(f".{self.extension}")]
        if not fields:
            return None
        if len(fields) > 1:
            raise ValueError(
                f"container={self.extension!r} takes one member as a sample, here are {', '.join(fields)}"
            )
        (field,) = fields
        decoder = Decoder([], allow_pickle=self.allow_pickle)
        content = decoder({"__key__": sample["__key__"], field: sample[field]})[field]
        if isinstance(content, dict):
            return {"__key__": f"{sample['__key__']}.{field}", **content}
        return tuple(content) if isinstance(content, list) else content
