"""Sends and receives lists of arrays over ZeroMQ, as tensorcom's module of this name does."""

from __future__ import annotations

import contextlib
import errno
import os
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import zmq

from mpwds import tenbin
from mpwds.closing import Closes
from mpwds.compat.tensorcom.conversion import (
    Reports,
    Statistics,
    arrays_of,
    converter_table,
    listify,
    tensor_of,
    transform_with,
)
from mpwds.errors import StreamError, TenbinError
from mpwds.feed import unix_sockets
from mpwds.interrupts import uninterrupted
from mpwds.pipeline.error_context import check_whole
from mpwds.storage.streams.patterns import Names
from mpwds.suggestions import did_you_mean
from mpwds.warn import warn

schemes = {
    # (kind of socket, whether it binds)
    "zpush": (zmq.PUSH, False),
    "zpull": (zmq.PULL, True),
    "zpub": (zmq.PUB, True),
    "zsub": (zmq.SUB, False),
    "zreq": (zmq.REQ, False),
    "zrep": (zmq.REP, True),
    "zrpush": (zmq.PUSH, True),
    "zrpull": (zmq.PULL, False),
    "zrpub": (zmq.PUB, False),
    "zrsub": (zmq.SUB, True),
    "zrreq": (zmq.REQ, True),
    "zrrep": (zmq.REP, False),
}

_SENDERS = (zmq.PUSH, zmq.PUB)
_RECEIVERS = (zmq.PULL, zmq.SUB)
_IN_TURNS = (zmq.REQ, zmq.REP)
_LINGER_MS = 5000  # when a program ends without close()
_WARNINGS_EVERY_S = 60.0
_LONGEST_WAIT_S = 1.0  # of one system call: Ctrl-C that arrives just before it acts after it


@dataclass(eq=False, repr=False)
class Connection(Closes):
    """Sends or receives batches, which are lists of arrays, over ZeroMQ sockets.

    Either end may start first and may be restarted. An iteration ends only after ``total`` samples: tensorcom
    has no end of data. ``zpush`` and ``zpull`` deliver each batch to one receiver, and the sender waits when
    receivers are slow. ``zpub`` sends to all ``zsub`` and drops what a slow one does not take. ``zreq`` asks
    for each batch, and ``zrep`` answers.

    ``recv`` raises ``TenbinError`` for a message that is not a valid batch. Iteration drops such a message,
    so that one sender cannot end a training run: it counts them in ``dropped``, and warns at most once a
    minute. ZeroMQ disconnects a peer that sends more than twice ``max_message_bytes`` in one array, and tells
    nobody: that is not counted.

    Args:
        url: ``scheme://host:port``, or a list of such. ``zpull``, ``zpub`` and ``zrep`` bind; ``zpush``,
            ``zsub`` and ``zreq`` connect; with an ``r`` after the ``z`` the roles change (``zrpush`` binds).
            ``zpush+ipc:///path`` is a socket in the file system. ``zsub://host:port#topic`` takes messages
            that begin with the topic. Braces stand for several: ``zsub://host:788{0..3}``.
        epoch: Result of ``len()``.
        total: Samples after which iteration ends, over the connection's life; -1 for no limit.
        multipart: Send each array as two frames of a message. ``False`` sends a batch as one frame. Both are
            received in any case.
        infos: Names of the arrays of a batch, up to 8 ASCII characters each: they are sent with it, and
            required of what is received. ``True`` makes ``recv`` return ``(arrays, names)``.
        device: Deliver tensors on this torch device; ``None`` leaves arrays as ``converters`` made them.
        allow64: Send 64-bit types as well.
        raw: Deliver the undecoded frames of each message, as memoryviews.
        batch_transforms: A function for each array of a received batch, or one for all; ``None`` in a list
            leaves an array as it is. If there are fewer functions than arrays, they are used in turn.
        batch_count: Count samples: the length of each batch's first array. ``False`` counts batches.
        converters: Functions applied after ``batch_transforms``, or ``"numpy"``, ``"torch"`` or
            ``"torch_cuda"`` (see ``tonumpy`` and ``totorch``).
        report: Samples between two printed reports while iterating; -1 for none.
        stats_horizon: Batches that the recent rates of ``stats`` cover.
        noexpand: Take braces in URLs as they are.
        max_message_bytes: The most bytes to accept in one message.
        hwm: Messages that each side holds for each peer (ZeroMQ's high-water mark): memory for so many
            batches may be needed when receivers are slow.
        timeout: Seconds that ``send`` and ``recv`` wait at most; without a limit by default.

    Attributes:
        stats: ``Statistics`` of the batches sent and received.
        dropped: Number of messages that iteration dropped.
        socket: The ZeroMQ socket.

    Raises:
        ValueError: A URL or an option is invalid.
        StreamError: A socket cannot bind or connect.

    Example:
        >>> import numpy as np
        >>> receiver = Connection("zpull://127.0.0.1:*", total=4)
        >>> port = receiver.socket.last_endpoint.rpartition(b":")[2].decode()
        >>> with receiver, Connection(f"zpush://127.0.0.1:{port}") as sender:
        ...     sender.serve([[np.zeros((2, 3), "uint8"), np.arange(2, dtype="int32")]] * 2)
        ...     [(images.shape, labels.tolist()) for images, labels in receiver]
        [((2, 3), [0, 1]), ((2, 3), [0, 1])]
    """

    url: str | Iterable[str] | None = None
    epoch: int = 100000
    total: int = -1
    multipart: bool = True
    infos: tenbin.Infos = None
    device: Any = None
    allow64: bool = False
    raw: bool = False
    batch_transforms: Any = None
    batch_count: bool = True
    converters: Any = None
    report: int = -1
    stats_horizon: int = 1000
    noexpand: bool = False
    _: KW_ONLY
    max_message_bytes: int = 1 << 30
    hwm: int = 1000
    timeout: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.converters, str):
            if self.converters not in converter_table:
                known = ", ".join(map(repr, converter_table))
                raise ValueError(
                    f"Connection: converters is {self.converters!r}, expected functions or {known}"
                )
            self.converters = converter_table[self.converters]
        check_whole("Connection", "max_message_bytes", self.max_message_bytes, least=1)
        check_whole("Connection", "hwm", self.hwm, least=1)
        self.batch_transforms = listify(self.batch_transforms)
        self.converters = listify(self.converters)
        self.stats = Statistics(self.stats_horizon)
        self.count = 0  # samples that iteration has delivered
        self.dropped = 0
        self.urls: list[str] = []
        self.socket: Any = None
        self._warned_at = 0.0
        self._is_my_turn = False
        if self.url is not None:
            urls = [self.url] if isinstance(self.url, str) else list(self.url)
            try:
                self.connect(urls if self.noexpand else Names(*urls))
            except BaseException:
                self.close(0)
                raise

    def connect(self, url: str | Iterable[str], topic: str = "") -> None:
        """Binds or connects to one more URL, or several, of the same kind. Braces are not expanded.

        ``topic`` is for ``zsub``: only messages whose first frame begins with it are received. That frame
        begins with the dtype code of the first array, such as ``f4``, if the sender sends multipart messages.
        """
        if not isinstance(url, str):
            for each in url:
                self.connect(each, topic)
            return
        kind, binds, location, fragment = parse_url(url)
        if (topic or fragment) and kind != zmq.SUB:
            raise ValueError(f"{url}: a topic is for zsub and zrsub, which subscribe to it")
        if self.socket is None:
            self._open(kind)
        elif self.socket.type != kind:
            raise ValueError(f"{url} is of another kind than {self.urls[0]}: make a Connection for each kind")
        self.socket.ipv6 = "[" in location
        try:
            if binds:
                self._files.update(unix_sockets.bind(self.socket, location))
            else:
                self.socket.connect(location)
        except (zmq.ZMQError, OSError) as error:
            advice = ": another program, or worker, has it" if error.errno == errno.EADDRINUSE else ""
            what = f"cannot {'bind' if binds else 'connect'} {url}: {error}{advice}"
            if not self.urls:
                self.close(0)
            raise StreamError(what, url) from error
        if kind == zmq.SUB:
            self.socket.subscribe(topic or fragment)
        self.urls.append(url)

    def _open(self, kind: int) -> None:
        context: Any = zmq.Context()
        self.socket = context.socket(kind)
        self.socket.linger = _LINGER_MS
        # Above our own limit, which is checked when a message is there and can be counted.
        self.socket.maxmsgsize = min(2 * self.max_message_bytes, (1 << 63) - 1)
        self.socket.hwm = self.hwm
        if kind == zmq.REQ:
            # An answer to an earlier request, which timed out, is not taken for one to this.
            self.socket.setsockopt(zmq.REQ_CORRELATE, 1)
            self.socket.setsockopt(zmq.REQ_RELAXED, 1)
        self._is_my_turn = kind == zmq.REQ
        # Also runs when the program ends without close().
        self._files: dict[str, int] = {}  # sockets in the file system, and their inodes
        self._finalizer = weakref.finalize(self, _close, self.socket, context, self._files, os.getpid())

    def close(self, linger: float | None = 5.0) -> None:
        """Closes the sockets, and removes their files (``+ipc``). The connection can be opened again.

        Args:
            linger: Seconds to wait until batches sent so far have left this process; ``None`` for as long as
                that takes. Batches that are left are dropped.
        """
        if self.socket is not None:
            self.socket.linger = -1 if linger is None else int(linger * 1000)
            self._finalizer()
            self.socket = None
            self.urls = []

    def send(self, data: Sequence[Any] | Mapping[str, Any], allow64: bool = False) -> None:
        """Sends a batch.

        Args:
            data: Arrays or CPU tensors in a list, a tuple, or a dict, whose keys are sent as names.
            allow64: Send 64-bit types as well.

        Raises:
            TenbinError: An element is not an array that tenbin can carry; the message names it and its type.
            TimeoutError: Nobody took a batch for ``timeout`` seconds.
        """
        by_place = arrays_of(data)
        names = None if isinstance(self.infos, bool) else self.infos
        if isinstance(data, Mapping):
            names = list(by_place)
        arrays = list(by_place.values())
        if not arrays:
            raise TenbinError("a batch needs at least one array, this one is empty")
        tenbin.check_acceptable_input_type(arrays, allow64 or self.allow64)
        frames: list[Any]
        if self.multipart:
            frames = tenbin.encode_list(arrays, names)
        else:
            frames = [tenbin.encode_buffer(arrays, names)]
        self._catch_up(sending=True)
        is_sent = False
        while not is_sent:
            self._wait(zmq.POLLOUT, "nobody took a batch")
            with contextlib.suppress(zmq.Again):  # who was there has left
                # A caller may change his arrays after this returns, but not the buffer of a single frame.
                self.socket.send_multipart(frames, zmq.NOBLOCK, copy=self.multipart)
                is_sent = True
        self._is_my_turn = False
        self.stats.add(sum(memoryview(frame).nbytes for frame in frames))

    write = send

    def recv(self) -> Any:
        """Receives a batch.

        Returns:
            A list of arrays, which are views of the message's memory, through ``batch_transforms`` and
            ``converters``; ``(arrays, names)`` for ``infos=True``; a list of memoryviews for ``raw=True``.
            An empty request, to a ``zrep``, is an empty list.

        Raises:
            TenbinError: The message is not a valid batch. It is gone; the next call receives the next one.
            ValueError: There are more functions to apply than arrays.
            TimeoutError: Nothing arrived for ``timeout`` seconds.
        """
        return self._converted(self._decoded(self._received()))

    def _received(self) -> list[zmq.Frame]:
        self._catch_up(sending=False)
        self._wait(zmq.POLLIN, "nothing arrived")
        frames: list[zmq.Frame] = self.socket.recv_multipart(copy=False)
        self._is_my_turn = True
        return frames

    def _decoded(self, frames: list[zmq.Frame]) -> Any:
        buffers = [frame.buffer for frame in frames]
        nbytes = sum(buffer.nbytes for buffer in buffers)
        if nbytes > self.max_message_bytes:
            raise TenbinError(f"a message has {nbytes} bytes, max_message_bytes is {self.max_message_bytes}")
        decoded: Any = buffers
        if not self.raw:
            if not nbytes and self.socket.type != zmq.REP:
                raise TenbinError("a message is empty")
            if len(buffers) == 1:
                decoded = tenbin.decode_buffer(buffers[0], self.infos)
            else:
                decoded = tenbin.decode_list(buffers, self.infos)
        self.stats.add(nbytes)
        return decoded

    def _converted(self, decoded: Any) -> Any:
        if self.raw:
            return decoded
        arrays, names = decoded if self.infos is True else (decoded, None)
        for functions in (self.batch_transforms, self.converters):
            arrays = transform_with(arrays, functions)
        if self.device is not None:
            arrays = [tensor_of(array).to(self.device) for array in arrays]
        return arrays if names is None else (arrays, names)

    def batchsize(self, xs: Any) -> int:
        """The samples in a batch: the length of its first array. 1 for ``batch_count=False`` and ``raw``."""
        arrays = xs[0] if self.infos is True and isinstance(xs, tuple) else xs
        if not self.batch_count or self.raw or not arrays:
            return 1
        if isinstance(arrays, Mapping):
            arrays = list(arrays.values())
        try:
            return len(arrays[0])
        except TypeError:  # it has no dimensions
            return 1

    def serve(self, source: Iterable[Any], report: int = -1) -> None:
        """Sends the batches of an iterable, and prints rates every ``report`` samples."""
        reports = Reports(self.stats, report if report > 0 else self.report)
        for batch in source:
            self.send(batch)
            reports.add(self.batchsize(batch))

    def items(self, report: int = -1) -> Iterator[Any]:
        """Yields received batches, up to ``total`` samples, and prints rates every ``report`` samples."""
        reports = Reports(self.stats, report if report > 0 else self.report)
        while self.total <= 0 or self.count < self.total:
            frames = self._received()
            try:
                decoded = self._decoded(frames)
            except (TenbinError, ImportError) as error:  # of a dtype whose package is missing here
                self._drop(frames, error)
                continue
            batch = self._converted(decoded)
            size = self.batchsize(batch)
            reports.add(size)
            self.count += size
            yield batch

    def __iter__(self) -> Iterator[Any]:
        return self.items()

    def __len__(self) -> int:
        """``epoch``, for frameworks that ask a loader for its length."""
        return self.epoch

    def _drop(self, frames: list[zmq.Frame], error: Exception) -> None:
        self.dropped += 1
        now = time.monotonic()
        if self.dropped == 1 or now - self._warned_at >= _WARNINGS_EVERY_S:
            self._warned_at = now
            try:
                sender = f" from {frames[0].get('Peer-Address')}"
            except zmq.ZMQError:  # unknown to ZeroMQ
                sender = ""
            messages = "a message" if self.dropped == 1 else f"message number {self.dropped}"
            warn(f"{', '.join(self.urls)}: dropped {messages}{sender} that is not a valid batch: {error}")

    def _wait(self, event: int, what: str) -> None:
        if self.socket is None:
            raise ValueError("the connection is closed, or has no URL yet: call connect(url)")
        sends, receives = event == zmq.POLLOUT, event == zmq.POLLIN
        if (receives and self.socket.type in _SENDERS) or (sends and self.socket.type in _RECEIVERS):
            raise ValueError(f"{self.urls[0]} {'only sends' if receives else 'only receives'}")
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        while True:
            left = _LONGEST_WAIT_S if deadline is None else max(deadline - time.monotonic(), 0)
            if self.socket.poll(int(min(left, _LONGEST_WAIT_S) * 1000) + 1, event):
                return
            if deadline is not None and time.monotonic() >= deadline:
                self._is_my_turn = self.socket.type == zmq.REQ  # which asks again
                urls = ", ".join(self.urls)
                raise TimeoutError(f"{what} for {self.timeout} s over {urls}: does the other end run?")

    def _catch_up(self, sending: bool) -> None:
        """Lets the ends of ``zreq`` and ``zrep`` speak in turns, as ZeroMQ demands.

        A turn that the program does not take is an empty message: ``recv`` of a ``zreq`` is a request, and
        ``send`` of a ``zrep`` waits for one.
        """
        if self.socket is None or self.socket.type not in _IN_TURNS or self._is_my_turn == sending:
            return
        if sending:
            self._wait(zmq.POLLIN, "nobody asked for a batch")
            self.socket.recv_multipart()
        else:
            self._wait(zmq.POLLOUT, "nobody took a request")
            self.socket.send(b"")
        self._is_my_turn = sending


class Endpoint(NamedTuple):
    """A parsed URL."""

    kind: int  # of socket
    binds: bool
    location: str  # ZeroMQ's
    topic: str


def parse_url(url: str) -> Endpoint:
    parts = urlsplit(url)
    scheme, _, transport = parts.scheme.partition("+")
    if scheme not in schemes:
        what = f"{url!r} is not a tensorcom URL, such as zsub://host:7880 or zpush+ipc:///path"
        raise ValueError(what + did_you_mean(scheme, schemes))
    if transport not in ("", "tcp", "ipc"):
        raise ValueError(f"{url!r}: transport {transport!r} is neither tcp nor ipc")
    location = parts.netloc + (parts.path if transport == "ipc" else "")
    if not location or (transport != "ipc" and ":" not in location):
        raise ValueError(f"{url!r} has no {'path' if transport == 'ipc' else 'host and port'}")
    return Endpoint(*schemes[scheme], f"{transport or 'tcp'}://{location}", parts.fragment)


def _close(zmq_socket: Any, context: Any, files: dict[str, int], pid: int) -> None:
    if os.getpid() != pid:  # a fork has no part in its parent's sockets
        return
    unix_sockets.remove(files)
    zmq_socket.close()
    uninterrupted(context.term)
