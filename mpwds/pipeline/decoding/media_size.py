"""Whether an audio or video file is all there, by the sizes its own headers state."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

Data: TypeAlias = bytes | bytearray | memoryview


def check_complete(data: Data) -> None:
    """Raise an error if a file ends before its headers say it does.

    Decoders mostly take the end of the data for the end of the recording, so a download that broke off gives
    a shorter clip and no error. This looks at the outermost structure only, which costs microseconds. It
    knows MP4 and MOV (M4A), Matroska and WebM, RIFF (WAV, AVI), AIFF, Ogg, MP3, ASF (WMV, WMA) and SoX; files
    of other kinds, and files written as a stream, which state no size, pass. Of Ogg files the checksums of
    all pages are looked at: libsndfile takes a damaged page for the end, too.

    Args:
        data: The whole file.

    Raises:
        ValueError: Data is missing at the end, or damaged.

    Example:
        >>> check_complete(b"RIFF" + bytes(4) + b"WAVE" + b"data" + bytes([4, 0, 0, 0]) + b"abcd")
        >>> check_complete(b"RIFF" + bytes(4) + b"WAVE" + b"data" + bytes([4, 0, 0, 0]) + b"ab")
        Traceback (most recent call last):
        ValueError: the file is cut off: its part "data" at offset 12 ends at byte 24, the data at byte 22
    """
    head = bytes(data[:16])
    if head[:4] == b"OggS":
        _check_ogg(data)
        return
    for part in _parts(head, data):
        if part.end > len(data):
            raise ValueError(
                f'the file is cut off: its part "{part.name}" at offset {part.start} ends at byte '
                f"{part.end}, the data at byte {len(data)}"
            )


class _Part(NamedTuple):
    name: str
    start: int
    end: int


_ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_ASF_DATA = bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c")
_BOXES = (b"moov", b"mdat", b"moof")
_MATROSKA_SEGMENT = 0x18538067


def _parts(head: bytes, data: Data) -> Iterator[_Part]:
    if head[:4] == b"RIFF":
        return _chunks(data, "<4sI", (b"LIST", b"data", b"RIFF"))
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return _chunks(data, ">4sI", (b"SSND",))
    if head[4:8] in (b"ftyp", b"free", b"skip", b"wide", *_BOXES):
        return _boxes(data)
    if head[:4] == b"\x1aE\xdf\xa3":
        return _elements(data)
    if head == _ASF_HEADER:
        return _objects(data)
    if head[:3] == b"ID3" or (head[:1] == b"\xff" and head[1:2] >= b"\xe0"):
        return _tagged(data)
    if head[:4] == b".SoX" and len(data) >= 16:
        return _sox(data)
    return iter(())


def _chunks(data: Data, layout: str, known: tuple[bytes, ...]) -> Iterator[_Part]:
    start = 12
    while start + 8 <= len(data):
        name, size = struct.unpack_from(layout, data, start)
        # Programs that write to a pipe leave 0 or about the largest number as the size.
        if not name.isascii() or (name in known and not 0 < size < 0x7FFF0000):
            return
        if name in known:
            yield _Part(name.decode("ascii"), start, start + 8 + size)
        start += 8 + size + size % 2


def _boxes(data: Data) -> Iterator[_Part]:
    start = 0
    while start + 8 <= len(data):
        size, name = struct.unpack_from(">I4s", data, start)
        if size == 1 and start + 16 <= len(data):
            (size,) = struct.unpack_from(">Q", data, start + 8)
        if size < 8:  # 0 is "up to the end"
            return
        if name in _BOXES:
            yield _Part(name.decode("ascii"), start, start + size)
        start += size


def _objects(data: Data) -> Iterator[_Part]:
    start = 0
    while start + 24 <= len(data):
        name, size = struct.unpack_from("<16sQ", data, start)
        if size < 24:
            return
        if name in (_ASF_HEADER, _ASF_DATA):
            yield _Part("header" if name == _ASF_HEADER else "data", start, start + size)
        start += size


def _elements(data: Data) -> Iterator[_Part]:
    start = 0
    while (read := _element(data, start)) is not None:
        identifier, body, size = read
        if size is None:
            return
        if identifier == _MATROSKA_SEGMENT:
            yield _Part("Segment", start, body + size)
        start = body + size


def _element(data: Data, start: int) -> tuple[int, int, int | None] | None:
    """Identifier, offset of the body and its size (``None`` if unknown) of the EBML element at an offset."""
    identifier_length = _ebml_length(data, start)
    size_length = _ebml_length(data, start + identifier_length)
    body = start + identifier_length + size_length
    if not identifier_length or not size_length or body > len(data):
        return None
    identifier = int.from_bytes(data[start : start + identifier_length], "big")
    unknown = (1 << 7 * size_length) - 1
    size = int.from_bytes(data[start + identifier_length : body], "big") & unknown
    return identifier, body, None if size == unknown else size


def _ebml_length(data: Data, start: int) -> int:
    """Length of the number at an offset; 0 if there is none."""
    return 9 - data[start].bit_length() if start < len(data) and data[start] else 0


def _sox(data: Data) -> Iterator[_Part]:
    header, samples = struct.unpack_from("<IQ", data, 4)
    yield _Part("samples", 4 + header, 4 + header + 4 * samples)


def _tagged(data: Data) -> Iterator[_Part]:
    _, size = mp3_length(data)
    if size is not None:  # some encoders count the tags in, some do not
        yield _Part("MPEG", 0, size)


def mp3_length(data: Data) -> tuple[int | None, int | None]:
    r"""The number of MPEG frames and of bytes that an MP3 file states; ``None`` for what it does not.

    Example:
        >>> mp3_length(b"\xff\xfb" + bytes(30) + b"Xing" + bytes([0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0]))
        (512, None)
    """
    head = bytes(data[:10])
    start = 0
    if head[:3] == b"ID3" and len(head) == 10:  # its size is in four times seven bits
        start = 10 + (head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9])
    frame = bytes(data[start : start + 4096])
    at = max(frame.find(b"Xing"), frame.find(b"Info"))
    if at < 0 or len(frame) < at + 16:
        return None, None
    flags, first, second = struct.unpack_from(">III", frame, at + 4)
    return first if flags & 1 else None, (second if flags & 1 else first) if flags & 2 else None


def _check_ogg(data: Data) -> None:
    start = flags = 0
    while start < len(data):
        header = bytes(data[start : start + 27])
        if header[:4] != b"OggS"[: len(header)]:
            if flags & _LAST_PAGE:  # what follows is no part of it
                return
            raise ValueError(
                f"the file is damaged: there is no Ogg page at offset {start}, where one should be"
            )
        lacing = bytes(data[start + 27 : start + 27 + header[26]]) if len(header) == 27 else b""
        end = start + 27 + len(lacing) + sum(lacing)
        if len(header) < 27 or len(lacing) < header[26] or end > len(data):
            raise ValueError(f"the file is cut off: its Ogg page at offset {start} ends behind the data")
        if _ogg_checksum(header[:22] + bytes(4) + bytes(data[start + 26 : end])) != header[22:26]:
            raise ValueError(f"the file is damaged: its Ogg page at offset {start} has another checksum")
        start, flags = end, header[5]
    if not flags & _LAST_PAGE:
        raise ValueError("the file is cut off: its last Ogg page does not end the stream")


_LAST_PAGE = 4
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _ogg_checksum(page: bytes) -> bytes:
    """The checksum as it stands in a page: that of zlib with all bits mirrored, without its inversions."""
    checksum = zlib.crc32(page.translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return checksum.to_bytes(4, "big").translate(_MIRRORED)
