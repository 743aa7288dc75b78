"""Copies batches to a device, on a stream of their own, some of them ahead."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mpwds.loader.engine.epoch import NOT_YET, OneThread
from mpwds.loader.output.replacing import replaced
from mpwds.sharedmem.cuda import CopyStream


class DeviceIterator(Iterator[Any]):
    """The elements of an iterator, with their tensors copied to a device.

    Copies begin on a side stream as soon as batches have arrived, and run while the device computes. A batch
    can be used at once on the stream that is current when it is delivered. An error, and the end, are raised
    behind the batches that came before them.

    Args:
        source: The iterator.
        stream: For the copies.
        ahead: The most batches to copy before they are asked for.
        next_now: As ``next(source)``, but ``NOT_YET`` if that would wait. Without it nothing is copied ahead.
        is_closed: Whether batches that were copied ahead must not be delivered any more.
    """

    def __init__(
        self,
        source: Iterator[Any],
        stream: CopyStream,
        ahead: int = 0,
        next_now: Callable[[], Any] | None = None,
        is_closed: Callable[[], bool] = lambda: False,
    ) -> None:
        import torch

        self._tensor: type = torch.Tensor
        self._source = source
        self._stream = stream
        self._ahead = ahead
        self._next_now = next_now
        self._is_closed = is_closed
        self._one_thread = OneThread()
        self._sent: deque[_Sent] = deque()
        self._original: list[Any] = []
        self._ending: Exception | None = None
        self._finalizing = sys.is_finalizing

    def __next__(self) -> Any:
        with self._one_thread:
            return self._next()

    @property
    def ahead(self) -> int:
        """Batches that the source has delivered and this iterator has not."""
        return len(self._sent)

    def _next(self) -> Any:
        if self._is_closed():
            self._sent.clear()
        else:
            self._send_what_is_here()
        if not self._sent:
            if self._ending is not None:
                ending, self._ending = self._ending, None
                raise ending
            self._send(next(self._source))
        sent = self._sent.popleft()
        self._stream.hand_over(sent.tensors, sent.mark)
        return sent.batch

    def _send_what_is_here(self) -> None:
        while self._next_now is not None and self._ending is None and len(self._sent) <= self._ahead:
            try:
                batch = self._next_now()
            except Exception as ending:
                self._ending = ending.with_traceback(None)  # whose frames refer to this iterator
                return
            if batch is NOT_YET:
                return
            self._send(batch)

    def _send(self, batch: Any) -> None:
        tensors: list[Any] = []

        def copied(tensor: Any) -> Any:
            tensors.append(self._stream.copied(tensor))
            return tensors[-1]

        # This drops the batch before, which the source may have held until now: the fences of its blocks
        # then come behind its copies.
        with self._stream.selected():
            self._original[:] = [batch]
            self._sent.append(_Sent(replaced(batch, self._tensor, copied), tensors, self._stream.mark()))

    def __del__(self) -> None:
        if hasattr(self, "_finalizing") and self._original and not self._finalizing():
            with self._stream.selected():
                self.__dict__.clear()  # the batch, and the source that may hold it too


class _Sent(NamedTuple):
    batch: Any
    tensors: list[Any]
    mark: Any
