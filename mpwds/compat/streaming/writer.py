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
