"""mosaicml-streaming's encodings, to which its programs add their own: ``_encodings["mine"] = Mine``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from mpwds.storage.mds.encodings import ENCODINGS as _encodings
from mpwds.storage.mds.encodings import encoding

__all__ = ["Encoding", "_encodings", "get_mds_encoded_size", "mds_decode", "mds_encode"]


class Encoding(ABC):
    """Base of a program's own encodings.

    Attributes:
        size: Bytes that every value has; ``None`` if they differ.

    Source:
        ``streaming.base.format.mds.encodings.Encoding`` (mosaicml-streaming 0.13).
    """

    size: int | None = None

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """The bytes of a value. Values that are bytes are stored as they are."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """The value of bytes."""

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> None:
        if not isinstance(data, expected_type):
            raise TypeError(f"expected {expected_type}, got {type(data).__name__}")


def mds_encode(encoding_name: str, obj: Any) -> bytes:
    """The bytes of a value."""
    return encoding(encoding_name, allow_pickle=True).encode(obj)


def mds_decode(encoding_name: str, data: bytes) -> Any:
    """The value of bytes. Raises ``ValueError`` for pickles."""
    return encoding(encoding_name).decode(data)


def get_mds_encoded_size(encoding_name: str) -> int | None:
    """Bytes that every value has; ``None`` if they differ."""
    return encoding(encoding_name, allow_pickle=True).size
