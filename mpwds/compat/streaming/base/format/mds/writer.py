"""mosaicml-streaming's MDSWriter."""

from __future__ import annotations

from typing import Any

from mpwds.storage.mds import writer_v2


class MDSWriter(writer_v2.MDSWriter):
    """``mpwds.MDSWriter``, which writes columns of pickles without being asked: only to read them is unsafe.

    Source:
        ``streaming.MDSWriter`` (mosaicml-streaming 0.13).
    """

    def __init__(self, *, allow_pickle: bool = True, **options: Any) -> None:
        super().__init__(allow_pickle=allow_pickle, **options)
        described = self._common
        self.column_names: list[str] = described["column_names"]
        self.column_encodings: list[str] = described["column_encodings"]
        self.column_sizes: list[int | None] = described["column_sizes"]
        self.compression: str | None = described["compression"]
        self.hashes: list[str] = described["hashes"]
        self.size_limit: int | None = described["size_limit"]
        self.keep_local = bool(options.get("keep_local"))
