"""tensorcom's dataset, and what feeds tensorcom's consumers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import zmq

from mpwds.compat.tensorcom.conversion import arrays_of
from mpwds.compat.tensorcom.zcom import Connection, parse_url
from mpwds.errors import TenbinError
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.iterable_sources import UnseekableStream
from mpwds.pipeline.stream import Count, Origin, Stream
from mpwds.storage.streams.patterns import Names
from mpwds.tenbin.array import describe
from mpwds.warn import warn


class TensorcomDataset(DataPipeline):
    """The batches that arrive over tensorcom URLs: the source of a pipeline, or a dataset for a loader.

    An epoch is ``length`` batches: tensorcom has no end of data. The sockets are opened when the first epoch
    starts, in the process that iterates, and stay open between epochs until ``close()``. A worker that binds
    ``+ipc`` leaves the socket's file, which the next one to bind replaces.

    Workers of a loader receive equal parts of an epoch. All of them connect to all URLs of ``zrpull`` and
    ``zreq``, whose senders divide their batches. Other URLs are divided among the workers, because they bind,
    or because every receiver gets everything (``zsub``); workers without a URL receive nothing. torch's
    ``DataLoader`` starts new workers each epoch and loses what the old ones had received: use
    ``persistent_workers=True``, or ``MultiLoader``. An epoch that is resumed receives, and drops, as many
    batches as were delivered before.

    Args:
        urls: As for :class:`~mpwds.compat.tensorcom.zcom.Connection`.
        length: Batches in an epoch of this process, over all workers; the result of ``len()``.
        timeout: Seconds without a batch after which an epoch ends, with a warning; by default it waits.
        options: Further arguments of ``Connection``, such as ``converters`` and ``max_message_bytes``.

    Raises:
        ValueError: A URL is invalid, or ``length`` is negative.
        StreamError: While iterating, a socket cannot bind or connect.
        TimeoutError: While iterating, no batch of the epoch arrived within ``timeout``.

    Example:
        >>> import numpy as np, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> batches = [[np.full((2, 3), n, "uint8"), np.arange(2, dtype="int32")] for n in range(4)]
        >>> with TensorcomDataset(f"zpull+ipc://{folder.name}/feed", length=3) as dataset:
        ...     with folder, Connection(f"zpush+ipc://{folder.name}/feed") as sender:
        ...         sender.serve(batches)
        ...         [int(images.max()) for images, labels in dataset]
        [0, 1, 2]
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        length: int = 1000000,
        *,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        if length < 0:
            raise ValueError(f"TensorcomDataset: length must not be negative, got {length}")
        source = _Received(urls, length, timeout, options)
        super().__init__(source)
        self._call = str(source)

    def _own_length(self) -> int | None:
        return None if self.stages else self.pipeline[0].length


class _Received(Origin):
    addressable = False

    def __init__(
        self, urls: str | Sequence[str], length: int, timeout: float | None, options: dict[str, Any]
    ) -> None:
        given = [urls] if isinstance(urls, str) else list(urls)
        self._given = urls
        self._urls = given if options.get("noexpand") else list(Names(*given))
        # Only one worker can bind a URL, and each subscriber would receive everything.
        endpoints = [parse_url(url) for url in self._urls]
        self._divided = any(endpoint.binds or endpoint.kind == zmq.SUB for endpoint in endpoints)
        self.length = length
        self._timeout = timeout
        self._options = options
        self._connection: Connection | None = None
        self._pid = 0

    def __str__(self) -> str:
        return f"TensorcomDataset({self._given!r}, length={self.length})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def close(self) -> None:
        if self._connection is not None and self._pid == os.getpid():
            self._connection.close()
        self._connection = None

    def count_in(self, context: Context, exact: bool = True) -> Count:
        return Count(self._share(context)[1])

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return UnseekableStream(partial(self._batches, context), self, context)

    def _share(self, context: Context) -> tuple[list[str], int]:
        """The URLs of a worker, and the number of batches that it receives in an epoch."""
        urls, place, places = self._urls, context.worker, context.workers
        if self._divided:
            places = min(places, len(urls))
            urls = urls[place::places] if place < places else []
        batches = len(range(place, self.length, places)) if urls else 0
        return urls, batches

    def _batches(self, context: Context) -> Iterator[Any]:
        urls, length = self._share(context)
        if not length:
            return
        if self._connection is None or self._pid != os.getpid():
            self._connection = Connection(urls, timeout=self._timeout, **{**self._options, "noexpand": True})
            self._pid = os.getpid()
        received = self._connection.items()
        for number in range(length):
            try:
                batch = next(received)
            except TimeoutError as error:
                if not number:
                    raise
                warn(f"{self}: the epoch ends after {number} of {length} batches: {error}")
                return
            except StopIteration:  # `total`
                return
            yield batch


def send_batches(urls: str | Iterable[str], batches: Iterable[Any], *, multipart: bool = True) -> int:
    """Sends batches to tensorcom's consumers, until the last one has left this process.

    Args:
        urls: As for :class:`~mpwds.compat.tensorcom.zcom.Connection`; ``zpush``, ``zpub``, ``zrep`` or their
            ``r`` forms.
        batches: A loader or another iterable of batches: tuples, lists or dicts of arrays or CPU tensors. The
            keys of a dict are sent as names.
        multipart: Send each array as two frames, as tensorcom's consumers expect by default.

    Returns:
        The number of batches sent.

    Raises:
        TenbinError: An element is not an array, or of a dtype that tensorcom does not know.
        ValueError: A URL is invalid, or only receives.
        StreamError: A socket cannot bind or connect.

    Example:
        >>> import numpy as np, threading
        >>> with Connection("zpull://127.0.0.1:*", total=8) as consumer:
        ...     port = consumer.socket.last_endpoint.rpartition(b":")[2].decode()
        ...     sent = send_batches(f"zpush://127.0.0.1:{port}", [(np.zeros((4, 2), "uint8"),)] * 2)
        ...     sent, len(list(consumer))
        (2, 2)
    """
    count = 0
    connection = Connection(urls, multipart=multipart, allow64=True)
    try:
        for batch in batches:
            _check_known(batch)
            connection.send(batch)
            count += 1
        connection.close(linger=None)
    finally:
        connection.close()
    return count


_KNOWN = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u8")


def _check_known(batch: Any) -> None:
    """Raises ``TenbinError`` for dtypes that only mpwds can receive."""
    for place, array in arrays_of(batch).items():
        kind, _ = describe(array)
        if kind.code not in _KNOWN:
            raise TenbinError(
                f"element {place!r} of a batch is {kind.name}, which tensorcom cannot receive: convert it, "
                "for instance to uint8 (from bool), int32 or float32"
            )
