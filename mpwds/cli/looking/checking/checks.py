"""Checks of a sample's fields: the checksums that their formats have, and whether they can be decoded."""

from __future__ import annotations

import contextlib
import io
import zipfile
import zlib
from collections.abc import Callable

from mpwds.pipeline.decoding.audio import AudioDecoder
from mpwds.pipeline.decoding.decoders import Decoder
from mpwds.pipeline.decoding.media import check_complete
from mpwds.pipeline.decoding.video import VideoDecoder
from mpwds.storage.tar.compression import LOOK_BYTES, compression_of
from mpwds.storage.tar.input import Decompressed, StreamInput

_JPEG_START = b"\xff\xd8\xff"
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND"
_PICKLES = frozenset(["pyd", "pickle", "pkl", "pth", "pt"])  # decoding them would run their code
_PIECE_BYTES = 1 << 20


def check_checksums(data: bytes) -> None:
    """Compares the checksums and lengths in a field with its bytes; its content tells the format.

    Knows PNG, zip (npz), gzip, zstd, bzip2, xz, Ogg, and the lengths in MP4, Matroska, WAV, AVI, MP3 and
    others. A field of another format passes.

    Raises:
        ValueError: The field is damaged.

    Example:
        >>> check_checksums(b"BZh9" + bytes(20))
        >>> import gzip
        >>> check_checksums(gzip.compress(b"text")[:-3])
        Traceback (most recent call last):
        mpwds.errors.ShardError: it cannot be decompressed (gzip), ...: it ends in the middle, ...
    """
    if data.startswith(_PNG_START):
        _check_png(data)
    elif data.startswith(b"PK\x03\x04"):
        _check_zip(data)
    elif compression := compression_of(data[:LOOK_BYTES]):
        stream = Decompressed(StreamInput(io.BytesIO(data), "it", 0), compression)
        while stream.read(_PIECE_BYTES):
            pass
    else:
        check_complete(data)


def _check_png(data: bytes) -> None:
    """Raises unless all chunks are there with their checksums.

    Source:
        The PNG specification, 5.3 (chunk layout).
    """
    start, kind = len(_PNG_START), b""
    while kind != _PNG_END:
        end = start + 12 + int.from_bytes(data[start : start + 4], "big")
        kind = data[start + 4 : start + 8]
        if start + 12 > len(data) or end > len(data):
            raise ValueError(f"the PNG image is cut off in its chunk at byte {start}")
        if zlib.crc32(data[start + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            raise ValueError(f"the PNG image is damaged: its chunk at byte {start} has the wrong checksum")
        start = end


def _check_zip(data: bytes) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"the zip archive is damaged: {error}") from None
    if damaged is not None:
        raise ValueError(f"the zip archive is damaged: {damaged} in it has the wrong checksum")


def _check_jpeg(data: bytes) -> None:
    with contextlib.suppress(ImportError):
        import simplejpeg

        if simplejpeg.decode_jpeg_header(data)[2] in ("Gray", "YCbCr", "RGB"):
            simplejpeg.decode_jpeg(data, "GRAY", strict=True)


def make_decoder() -> Callable[[str, bytes], None]:
    """A function of a field's name and data that raises if the field cannot be decoded.

    Images, sound, video, text, numbers, arrays and structures are decoded, by the extension of the name.
    Pickles are not, and other extensions pass. With mpwds[turbojpeg], a JPEG image is an error if its decoder
    so much as warns of damage.
    """
    decode = Decoder("rgb8", AudioDecoder("numpy"), VideoDecoder("numpy"))

    def check(name: str, data: bytes) -> None:
        if name.rpartition(".")[2] not in _PICKLES:
            decode({name: data})
        if data.startswith(_JPEG_START):
            _check_jpeg(data)

    return check
