"""Decompress one zstd frame block by block, so that little input cannot become much output at once."""

from __future__ import annotations

_FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
_RUN = 1  # a block of one byte, repeated


class ZstdFrame:
    """One zstd frame, with the interface that ``bz2`` and ``lzma`` have for one member.

    ``zstandard`` has no limit for what a call gives, and a few kilobytes can become gigabytes. So it gets one
    block at a time, which becomes 128 KiB at most; a frame's window is at most 128 MiB (``zstd --long=27``).

    Raises:
        ImportError: There is no ``zstandard``.

    Source:
        RFC 8878, 3.1.1 (frames and blocks) and 3.1.2 (skippable frames).

    Example:
        >>> import zstandard
        >>> frame = ZstdFrame()
        >>> frame.decompress(zstandard.compress(bytes(1000)) + b"rest", 600) == bytes(600)
        True
        >>> frame.needs_input, len(frame.decompress(b"", 600)), frame.eof, frame.unused_data
        (False, 400, True, b'rest')
    """

    def __init__(self) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise ImportError(
                "zstd-compressed shards need the package zstandard: pip install 'mpwds[zstd]'"
            ) from error
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._input = b""
        self._output = b""
        self._has_begun = False
        self._is_skipped = False  # as frames of other magic numbers are
        self._checksum_bytes = 0
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._frame.eof and not self._output

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data + self._input

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        self._input += data
        while not self._output and not self._frame.eof and (size := self._next_bytes()):
            unit, self._input = self._input[:size], self._input[size:]
            self._output = self._frame.decompress(unit)
            if not self._has_begun:
                self._has_begun = True
                self._is_skipped = not unit.startswith(_FRAME_MAGIC)
                self._checksum_bytes = 4 if unit[4] & 4 else 0
        stop = len(self._output) if max_length < 0 else max_length
        piece, self._output = self._output[:stop], self._output[stop:]
        self.needs_input = not self._output and not self._next_bytes()
        return piece

    def _next_bytes(self) -> int:
        """How much of the input to decompress next: a header or a block, or 0 while there is less."""
        held = self._input
        if self._is_skipped:
            return len(held)
        if self._has_begun:
            block = int.from_bytes(held[:3], "little")
            size = 3 + (1 if block >> 1 & 3 == _RUN else block >> 3) + (block & 1) * self._checksum_bytes
        elif len(held) < 5 or held.startswith(_FRAME_MAGIC):
            descriptor = held[4] if len(held) > 4 else 0
            single_segment = descriptor >> 5 & 1
            size = (
                6 - single_segment + (0, 1, 2, 4)[descriptor & 3] + (single_segment, 2, 4, 8)[descriptor >> 6]
            )
        else:
            return len(held)
        return size if size <= len(held) else 0
