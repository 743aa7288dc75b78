"""A server: runs workers for trainers on other machines, or on this one."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq

import mpwds
from mpwds.closing import Closes
from mpwds.errors import MpwdsError
from mpwds.feed import definition, wire
from mpwds.feed.fd_passing import FdSender
from mpwds.feed.keys import LONGEST_PATH
from mpwds.feed.server.clients import ClientGroup, Clients
from mpwds.feed.server.router import Router, why_not
from mpwds.feed.server.serving import ServingSetup
from mpwds.feed.server.worker_relay import WorkerRelay
from mpwds.loader.engine import options
from mpwds.loader.engine.options import BLOCKS_OF_CONSUMER, StartMethod
from mpwds.loader.launching.forkserver import ServerGone
from mpwds.loader.launching.launchers import LAUNCHERS
from mpwds.loader.messages.channel import Message
from mpwds.loader.processes import processes
from mpwds.loader.worker.elements import as_dataset
from mpwds.pipeline.context import Context
from mpwds.pipeline.stream import LengthUnknown
from mpwds.sharedmem.arena import EventFd
from mpwds.suggestions import suggest_arguments

logger = logging.getLogger("mpwds.feed")

_POLL_S = 0.25
_PILE_UP_S = 0.0005
_GOODBYE_S = 1.0
_COMMANDS_AT_ONCE = 256
_MOST_PEEKS = 4  # copies of batches that wait to be sent, and clients that wait for one
_MOST_CLASSES = 10_000  # whose names a status holds


class Server(Closes):
    """Runs workers that decode and augment a dataset for trainers, which reach them with ``RemoteLoader``.

    The server starts a worker process when a trainer begins its first epoch, and ends it when the trainer
    leaves. It restarts a worker that dies, which continues where the trainer's epoch is. Batches wait in the
    workers' shared memory until their trainer asks for more, so a slow trainer costs no memory.

    Args:
        dataset: As for ``MultiLoader``; pickled for the workers.
        bind: ``"tcp://HOST:PORT"`` or ``"ipc://PATH"``. Port 0 or ``*`` takes a free one: see ``url``.
        workers: Worker processes, shared by all trainers. For parts of lost servers that trainers move here,
            up to four times as many more are started.
        keys: Folder with ``server.key_secret`` and the public keys of clients, made by ``mpwds keygen``.
            Required unless only this machine can reach ``bind``.
        insecure: Serve other machines without keys: everybody who reaches the port can read the data.
        prefetch: Batches that each worker makes ahead.
        start_method: How workers start: ``"forkserver"``, ``"spawn"`` or ``"fork"``.
        max_clients: Most trainers at once, a group counting as one; further ones wait. ``None`` is as many as
            there are workers.
        workers_per_client: Workers that a trainer gets if it asks for no number. ``None``: the ranks of a job
            share all equally, a single trainer gets all that are free.
        client_timeout: Seconds of silence after which a trainer is gone and its workers are free.
        shared_memory: Let trainers on this machine map the workers' shared memory.

    Attributes:
        url: Where it serves.

    Raises:
        SecurityError: Other machines can reach ``bind``, and neither ``keys`` nor ``insecure`` is given.
        MpwdsError: The address is in use, or keys are missing.
        TypeError: The dataset cannot be sent to worker processes.

    Example:
        >>> import mpwds
        >>> dataset = mpwds.DataPipeline(range(8)).batched(4)
        >>> with Server(dataset, "tcp://127.0.0.1:0", workers=2) as server:
        ...     server.url.startswith("tcp://127.0.0.1:")
        True
    """

    @suggest_arguments
    def __init__(
        self,
        dataset: Any,
        bind: str,
        *,
        workers: int = 4,
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        prefetch: int = 2,
        start_method: StartMethod = "forkserver",
        max_clients: int | None = None,
        workers_per_client: int | None = None,
        client_timeout: float = wire.LOST_S,
        shared_memory: bool = True,
    ) -> None:
        self.workers = options.integer("Server", "workers", workers, at_least=1)
        prefetch = options.integer("Server", "prefetch", prefetch, at_least=1, at_most=options.MOST_PREFETCH)
        options.choice("Server", "start_method", start_method, StartMethod)
        wire.check_silence("Server", "client_timeout", client_timeout)
        self._id = secrets.token_hex(8)
        self._began = time.monotonic()
        classes = getattr(dataset, "classes", ())  # as torchvision's datasets have
        self._classes = [str(each) for each in classes] if isinstance(classes, (list, tuple)) else []
        self.dataset = as_dataset(dataset)
        self._definition = definition.define(self.dataset)
        count = functools.partial(definition.counts, self.dataset)
        self._counts = functools.lru_cache(maxsize=4)(count)  # all ranks of a job ask the same
        self._peekers: deque[tuple[bytes, int]] = deque(maxlen=_MOST_PEEKS)
        self._peeks: list[zmq.MessageTracker] = []
        self._stopping = EventFd()
        self._serving = threading.RLock()
        self._is_busy = False
        with contextlib.ExitStack() as ends:
            setup = ServingSetup(self.dataset, workers=1, blocks=prefetch + BLOCKS_OF_CONSUMER)
            processes.fill_standard_descriptors()
            launcher = LAUNCHERS[start_method](setup)
            ends.callback(launcher.close)
            launcher.prepare(wait=True)
            self._router = Router(bind, keys, insecure, client_timeout)
            ends.callback(self._router.close)
            self.url = self._router.url
            path = self.url[len("ipc://") :] + ".memory"
            is_path = self.url.startswith("ipc:///") and len(path) <= LONGEST_PATH
            try:
                fd_sender = FdSender(self._router.drop, path if is_path else None)
            except OSError as error:
                raise MpwdsError(f"cannot serve at {bind}: {why_not(error)}") from None
            ends.callback(fd_sender.close)
            self._trainers = Clients(
                {"server": self._id, "blocks": setup.blocks, **self._definition},
                self._router,
                launcher,
                fd_sender,
                workers=self.workers,
                most=max_clients or self.workers,
                workers_of_each=workers_per_client,
                timeout_s=client_timeout,
                shared_memory=shared_memory,
            )
            ends.callback(self._trainers.close)
            self._ends = ends.pop_all()

    def serve(self) -> None:
        """Serves until :meth:`stop` is called, then sends what is under way and ends the workers."""
        with self._serving:
            while not self._stopping.clear():
                self._turn(_POLL_S)
            self._drain()

    def stop(self) -> None:
        """Makes :meth:`serve` return; may be called from another thread or a signal handler."""
        self._stopping.ring()

    def close(self) -> None:
        """Ends the workers, and frees the address. If another thread serves, it stops first."""
        self._stopping.ring()
        with self._serving:
            self._ends.close()

    def status(self) -> dict[str, Any]:
        """Figures of the server, its workers and trainers; workers' counters are since the server started."""
        now, trainers = time.monotonic(), self._trainers
        return {
            "url": self.url,
            "server": self._id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": mpwds.__version__,
            "uptime_s": now - self._began,
            "time_s": now,
            "dataset": self._definition["description"],
            "classes": self._classes[:_MOST_CLASSES],
            "fingerprint": self._definition["fingerprint"],
            "draining": trainers.are_turned_away,
            "capacity": self.workers,
            "cores": len(os.sched_getaffinity(0)),
            "workers": trainers.status_of_workers(),  # other threads ask, too
            "clients": [session.status(now) for session in tuple(trainers.sessions.values())],
            "dropped": dict(self._router.dropped),
        }

    # One turn of the loop.

    def _turn(self, wait_s: float) -> None:
        poller = select.poll()
        router = self._router
        for each in (router, router.handshakes, self._stopping):
            poller.register(each, select.POLLIN)
        slots = [slot for party in tuple(self._trainers.groups) for slot in tuple(party.slots.values())]
        for slot in slots:
            if slot.worker is not None and (slot.listens or slot.worker.unsent):
                slot.worker.register(poller, receives=slot.listens)
        if self._is_busy:  # small batches pile up meanwhile, and travel together
            self._is_busy = False
            time.sleep(_PILE_UP_S)
        poller.poll(0 if router.has_news else wait_s * 1000)
        for _ in range(_COMMANDS_AT_ONCE):
            if not router.receive(self._handle):
                break
        for party in tuple(self._trainers.groups):
            for slot in tuple(party.slots.values()):
                self._relay(slot, party)
        for failure in router.handshakes.failures():
            router.drop("handshake", failure)
        self._trainers.run_maintenance(time.monotonic())

    def _relay(self, slot: WorkerRelay, party: ClientGroup) -> None:
        if self._peekers and slot.peeked is None:
            slot.peeked = self._show_peekers
        try:
            for data in slot.relay():
                if data.is_last:  # so that the trainer's statistics are whole when its epoch ends
                    self._tell_counters(data.client, party)
                session = self._trainers.sessions.get(data.client)
                if session and self._router.send(data.client, data.head, data.frames, data.parts):
                    session.batches += data.batches
                self._is_busy |= data.parts is None and not data.is_last and data.batches > 1
        except (OSError, MpwdsError) as error:
            # Its machine has no memory or processes left: its trainers hear why, others are served on.
            why = f"worker {slot.number_here} cannot run: {error}"
            logger.error("%s", why)
            for client in tuple(party.sessions):
                if isinstance(error, (OSError, MemoryError, ServerGone)):  # it may pass: they come back
                    self._router.reply(client, wire.NOTICE, text=why)
                else:
                    self._router.reply(client, wire.REFUSED, why=why)
                self._trainers.forget(client)
            return
        while slot.notices:
            notice = slot.notices.popleft()
            logger.warning("%s", notice)
            for client in party.sessions:
                self._router.reply(client, wire.NOTICE, text=notice)

    def _handle(self, identity: bytes, fields: dict[str, Any], address: str) -> None:
        kind, session = fields["kind"], self._trainers.sessions.get(identity)
        if session is not None:
            session.heard = time.monotonic()
        if kind == wire.HELLO:
            self._trainers.welcome(identity, fields, address)
        elif kind == wire.STATUS:
            self._router.reply(identity, wire.STATUS_IS, request=fields["request"], status=self.status())
        elif kind == wire.PEEK:
            self._peeks = [peek for peek in self._peeks if not peek.done]
            if len(self._peeks) >= _MOST_PEEKS:
                raise wire.Malformed("peek: copies that were sent are not received yet")
            for earlier in [peeker for peeker in self._peekers if peeker[0] == identity]:
                self._peekers.remove(earlier)  # which it waits for no longer
            self._peekers.append((identity, fields["request"]))
        elif session is None:
            if kind == wire.PING:
                unknown = {"known": False, "slots": [], "counters": {}}
                self._router.reply(identity, wire.PONG, server=self._id, number=fields["number"], **unknown)
            elif kind not in (wire.BYE, wire.ACK):  # of one that has left, and still used a batch
                self._router.drop(
                    "unknown client", f"{kind} of a client that is not welcomed (from {address})"
                )
        elif kind == wire.BYE:
            self._trainers.forget(identity)
        elif kind == wire.COUNT:
            self._router.reply(identity, wire.COUNTED, request=fields["request"], counts=self._count(fields))
        elif kind == wire.PING:
            session.asked = -1 if fields["epoch"] is None else fields["epoch"]
            self._answer_ping(identity, session.party, fields)
        elif kind == wire.START:
            self._trainers.start(identity, session, fields)
        else:
            slot = session.party.slots.get(fields["slot"])
            if slot is None:
                raise wire.Malformed(f"{kind}: there is no slot {fields['slot']}")
            if kind == wire.STOP:
                slot.stop(identity, fields["attempt"])
            else:
                slot.acknowledge(identity, fields["attempt"], fields["nbytes"], fields["window"])

    def _drain(self) -> None:
        """Sends what the workers have sent, and tells the trainers that the server ends."""
        self._trainers.are_turned_away = True
        for party in self._trainers.groups:
            for slot in party.slots.values():
                self._relay(slot, party)
        for identity in tuple(self._trainers.sessions):
            self._router.reply(identity, wire.GOODBYE, server=self._id)
        # Until they have read it: ZeroMQ drops what a peer has not read when the connection ends.
        deadline = time.monotonic() + _GOODBYE_S
        while self._trainers.sessions and time.monotonic() < deadline:
            if not self._router.receive(self._handle):
                time.sleep(_GOODBYE_S / 100)

    # Answers.

    def _answer_ping(self, identity: bytes, party: ClientGroup, ping: dict[str, Any]) -> None:
        for slot in party.slots.values():  # others may have waited for it in vain
            slot.begin_if_due()
        for number, attempt, nbytes in ping["acknowledged"]:
            if number in party.slots:
                party.slots[number].acknowledge(identity, attempt, nbytes)
        there = [(slot.number, slot.members.get(identity)) for slot in party.slots.values()]
        sent = [[number, member.attempt, member.number] for number, member in there if member is not None]
        self._tell_counters(identity, party, ping["number"], sent)

    def _tell_counters(
        self, identity: bytes, party: ClientGroup, number: int = 0, sent: Sequence[list[int]] = ()
    ) -> None:
        """Answers a ping, or tells the counters alone: ping 0 was never sent, so it asks for no messages."""
        counters = {slot.number: wire.pack_counters(slot.snapshot()) for slot in party.slots.values()}
        answer = {"known": True, "slots": list(sent), "counters": counters}
        self._router.reply(identity, wire.PONG, server=self._id, number=number, **answer)

    def _count(self, fields: dict[str, Any]) -> list[int] | str:
        job = {name: fields[name] for name in ("epoch", "seed", "world_size", "workers")}
        if (places := job["world_size"] * job["workers"]) > wire.MOST_STREAMS:
            return f"the job has {places:,} workers, and counts of {wire.MOST_STREAMS:,} fit into an answer"
        try:
            return self._counts(Context(**job), fields["exact"])
        except LengthUnknown as error:
            return error.reason
        except Exception as error:
            return f"counting the elements failed ({type(error).__name__}: {error})"

    def _show_peekers(self, message: Message, arrays: bytes) -> None:
        fields = bytes(message.frame[: len(message.frame) - len(message.payload)])
        while self._peekers:
            identity, request = self._peekers.popleft()
            copy = {"request": request, "message": fields, "arrays": arrays}
            tracker = self._router.send_copy(identity, wire.PEEKED, **copy)
            if tracker is not None:
                self._peeks.append(tracker)
