"""A server: runs workers for trainers on other machines, or on this one."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import zmq

import mpwds
from mpwds.errors import MpwdsError
from mpwds.feed import definition, wire
from mpwds.feed.direct import DirectSender
from mpwds.feed.handover import Giver
from mpwds.feed.server.router import Router
from mpwds.feed.server.serving import ServingSetup
from mpwds.feed.server.slot import Data, Slot
from mpwds.feed.wire import Malformed, Place
from mpwds.loader.engine import options, protocol
from mpwds.loader.engine.channel import Message
from mpwds.loader.engine.options import BLOCKS_OF_CONSUMER, StartMethod
from mpwds.loader.processes import processes
from mpwds.loader.processes.launchers import LAUNCHERS
from mpwds.loader.worker.elements import as_dataset
from mpwds.pipeline.context import Context
from mpwds.pipeline.counts import LengthUnknown
from mpwds.sharedmem.bell import Bell

logger = logging.getLogger("mpwds.feed")

_POLL_S = 0.25
_PILE_UP_S = 0.0005
_GOODBYE_S = 1.0
_COMMANDS_AT_ONCE = 256
_MOST_PEEKS = 4  # copies of batches that wait to be sent
_LONGEST_PATH = 107  # of a Unix socket
_MOST_TAKEN_OVER = 4  # parts of lost servers, for each worker


@dataclass
class _Party:
    """The workers that one trainer has, or a group of trainers together."""

    workers: int
    group: str = ""
    members: int = 1  # that are expected before an epoch begins
    max_lag: float | None = None
    slots: dict[int, Slot] = field(default_factory=dict)
    sessions: dict[bytes, _Session] = field(default_factory=dict)


@dataclass
class _Session:
    """A trainer that the server has welcomed."""

    name: str
    address: str
    rank: int
    world_size: int
    party: _Party
    shares_memory: bool
    began: float
    heard: float
    batches: int = 0
    is_direct: bool = False  # its arrays come over a connection of their own


class Server:
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
        max_clients: Most trainers at once; further ones wait. ``None`` is as many as there are workers.
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
        self._blocks = options.integer("Server", "prefetch", prefetch, at_least=1) + BLOCKS_OF_CONSUMER
        options.choice("Server", "start_method", start_method, StartMethod)
        wire.check_silence("Server", "client_timeout", client_timeout)
        self._max_clients = max_clients or self.workers
        self._workers_per_client = workers_per_client
        self._client_timeout = client_timeout
        self._shares_memory = shared_memory
        self._id = secrets.token_hex(8)
        self._began = self._looked = time.monotonic()
        self.dataset = as_dataset(dataset)
        self._definition = definition.define(self.dataset)
        self._parties: list[_Party] = []
        self._sessions: dict[bytes, _Session] = {}
        self._ending: list[tuple[float, Any]] = []
        self._peekers: deque[tuple[bytes, int]] = deque()
        self._peeks: list[zmq.MessageTracker] = []
        self._stopping = Bell()
        self._draining = False
        self._is_busy = False
        with contextlib.ExitStack() as ends:
            setup = ServingSetup(self.dataset, workers=1, blocks=self._blocks)
            processes.fill_standard_descriptors()
            self._launcher = LAUNCHERS[start_method](setup)
            ends.callback(lambda: self._launcher.close())
            self._router = Router(bind, keys, insecure, client_timeout)
            ends.callback(self._router.close)
            self.url = self._router.url
            path = self.url[len("ipc://") :] + ".memory"
            is_path = self.url.startswith("ipc:///") and len(path) <= _LONGEST_PATH
            self._giver = Giver(path if is_path else None)
            ends.callback(self._giver.close)
            self._direct: DirectSender | None = None
            if keys is None and self.url.startswith("tcp://"):
                self._direct = DirectSender(urlsplit(self.url).hostname or "")
                ends.callback(self._direct.close)
            self._ends = ends.pop_all()

    def serve(self) -> None:
        """Serves until :meth:`stop` is called, then sends what is under way and ends the workers."""
        while not self._stopping.clear():
            self._turn(_POLL_S)
        self._drain()

    def stop(self) -> None:
        """Makes :meth:`serve` return; may be called from another thread or a signal handler."""
        self._stopping.ring()

    def close(self) -> None:
        """Ends the workers, and frees the address."""
        for session in tuple(self._sessions):
            self._forget(session)
        processes.end_all([process for _, process in self._ending], protocol.GRACE_S)
        for _, process in self._ending:
            process.release()
        self._ending.clear()
        self._ends.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def status(self) -> dict[str, Any]:
        """Figures of the server, its workers and trainers; readings count up since a worker's start."""
        now = time.monotonic()
        return {
            "url": self.url,
            "server": self._id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": mpwds.__version__,
            "uptime_s": now - self._began,
            "time_s": now,
            "dataset": self._definition["description"],
            "fingerprint": self._definition["fingerprint"],
            "draining": self._draining,
            "capacity": self.workers,
            "cores": len(os.sched_getaffinity(0)),
            "workers": [
                self._slot_status(slot, party)
                for party in tuple(self._parties)  # other threads ask, too
                for slot in tuple(party.slots.values())
            ],
            "clients": [_client_status(session, now) for session in tuple(self._sessions.values())],
            "dropped": dict(self._router.dropped),
        }

    # One turn of the loop.

    def _turn(self, wait_s: float) -> None:
        poller = select.poll()
        router = self._router
        for each in (router, router.handshakes, self._stopping):
            poller.register(each, select.POLLIN)
        slots = [slot for party in tuple(self._parties) for slot in tuple(party.slots.values())]
        for slot in slots:
            if slot.listens and slot.worker is not None:
                slot.worker.register(poller, receives=True)
            elif slot.worker is not None and slot.worker.unsent:
                slot.worker.register(poller, receives=False)
        if self._is_busy:  # small batches pile up meanwhile, and travel together
            self._is_busy = False
            time.sleep(_PILE_UP_S)
        poller.poll(0 if router.has_news else wait_s * 1000)
        for _ in range(_COMMANDS_AT_ONCE):
            if not router.receive(self._handle):
                break
        for party in tuple(self._parties):
            for slot in tuple(party.slots.values()):
                self._relay(slot, party)
        router.drop_failed_handshakes()
        self._keep_house(time.monotonic())

    def _relay(self, slot: Slot, party: _Party) -> None:
        if self._peekers and slot.peeked is None:
            slot.peeked = self._show_peekers
        try:
            for data in slot.relay():
                if data.is_last:  # so that the trainer's statistics are whole when its epoch ends
                    self._tell_counters(data.client, party)
                self._send_data(data)
                self._is_busy |= data.parts is None and not data.is_last and data.batches > 1
        except (OSError, MpwdsError) as error:
            # Its machine has no memory or processes left: its trainers hear why, others are served on.
            logger.error("worker %d cannot run: %s", slot.number, error)
            for client in tuple(party.sessions):
                self._router.reply(client, wire.REFUSED, why=f"worker {slot.number} cannot run: {error}")
                self._forget(client)
            return
        while slot.notices:
            notice = slot.notices.popleft()
            logger.warning("%s", notice)
            for client in party.sessions:
                self._router.reply(client, wire.NOTICE, text=notice)

    def _handle(self, identity: bytes, fields: dict[str, Any], address: str) -> None:
        kind, session = fields["kind"], self._sessions.get(identity)
        if session is not None:
            session.heard = time.monotonic()
        if kind == wire.HELLO:
            self._welcome(identity, fields, address)
        elif kind == wire.STATUS:
            self._router.reply(identity, wire.STATUS_IS, request=fields["request"], status=self.status())
        elif kind == wire.PEEK:
            self._peeks = [peek for peek in self._peeks if not peek.done]
            if len(self._peeks) + len(self._peekers) >= _MOST_PEEKS:
                raise Malformed("peek: earlier ones are not answered, or not received, yet")
            self._peekers.append((identity, fields["request"]))
        elif session is None:
            if kind == wire.PING:
                unknown = {"known": False, "slots": [], "readings": {}}
                self._router.reply(identity, wire.PONG, server=self._id, number=fields["number"], **unknown)
            elif kind != wire.BYE:
                self._router.drop(
                    "unknown client", f"{kind} of a client that is not welcomed (from {address})"
                )
        elif kind == wire.BYE:
            self._forget(identity)
        elif kind == wire.COUNT:
            self._router.reply(identity, wire.COUNTED, request=fields["request"], count=self._count(fields))
        elif kind == wire.PING:
            self._answer_ping(identity, session.party, fields)
        elif kind == wire.START:
            self._start(identity, session, fields)
        else:
            slot = session.party.slots.get(fields["slot"])
            if slot is None:
                raise Malformed(f"{kind}: there is no slot {fields['slot']}")
            if kind == wire.STOP:
                slot.stop(identity, fields["attempt"])
            else:
                slot.acknowledge(identity, fields["attempt"], fields["nbytes"], fields["window"])

    # Trainers come and go.

    def _welcome(self, identity: bytes, hello: dict[str, Any], address: str) -> None:
        if wire.VERSION not in hello["versions"]:
            return self._router.refuse(
                identity,
                f"it speaks version {wire.VERSION} of the feed, this trainer {hello['versions']}: use the "
                "same mpwds on both sides",
            )
        own = self._definition["fingerprint"]
        if hello["fingerprint"] not in (None, own):
            return self._router.refuse(
                identity,
                f"it has another dataset, {' → '.join(self._definition['description'])} (fingerprint {own}), "
                f"than this trainer expects ({hello['fingerprint']}): use the same definition everywhere, "
                "with the same Python",
            )
        self._forget(identity)
        party = self._party(identity, hello)
        if party is None:
            return None
        now = time.monotonic()
        near = self._shares_memory and hello["host"] == wire.machine() and not party.group
        session = _Session(
            hello["name"], address, hello["rank"], hello["world_size"], party, near, began=now, heard=now
        )
        party.sessions[identity] = self._sessions[identity] = session
        if len(party.sessions) >= party.members:
            party.members = 1  # all have been here: from now on those that are left make an epoch
        if party not in self._parties:
            self._parties.append(party)
        return self._router.reply(
            identity,
            wire.WELCOME,
            version=wire.VERSION,
            server=self._id,
            host=socket.gethostname(),
            workers=party.workers,
            blocks=self._blocks,
            handover=self._giver.name if near else None,
            arrays_port=None if near or self._direct is None else self._direct.port,
            **self._definition,
        )

    def _party(self, identity: bytes, hello: dict[str, Any]) -> _Party | None:
        """The workers that a trainer joins or gets; ``None`` if it was told to wait, or why it cannot."""
        group = hello["group"] or ""
        for party in self._parties:
            if group and party.group == group:
                return party
        ranks = max(hello["world_size"], 1)
        wanted = hello["workers"] or self._workers_per_client
        free = self.workers - sum(party.workers for party in self._parties)
        if wanted is None:
            wanted = self.workers // ranks if ranks > 1 else max(free, 1)
        if not 1 <= wanted <= self.workers:
            self._router.refuse(
                identity,
                f"it has {self.workers} workers, but {wanted or ranks} are needed "
                f"({'one for each rank' if not wanted else 'workers='}): start it with more",
            )
            return None
        full = len(self._sessions) >= self._max_clients
        # Or a client that comes and goes would start processes faster than they end.
        busy = len(self._ending) >= 2 * self.workers
        if self._draining or full or busy or wanted > free:
            why = (
                "the server is ending" if self._draining else f"it has {free} of {self.workers} workers free"
            )
            why = "its workers of earlier clients are still ending" if busy else why
            why = f"it serves {len(self._sessions)} clients, its most" if full else why
            self._router.reply(identity, wire.WAIT, why=why)
            return None
        return _Party(wanted, group, max(hello["members"] or 1, 1), hello["max_lag"])

    def _start(self, identity: bytes, session: _Session, fields: dict[str, Any]) -> None:
        party, number = session.party, fields["slot"]
        if fields["direct"]:
            if self._direct is not None:
                self._direct.accept(self._sessions.keys())
            if self._direct is None or not self._direct.connected(identity):
                raise Malformed("start: direct without a connection for arrays")
        session.is_direct = fields["direct"]
        slot = party.slots.get(number)
        if slot is None:
            takes_over = number >= party.workers
            if takes_over and self._taken_over() >= _MOST_TAKEN_OVER * self.workers:
                why = f"it has taken over {self._taken_over()} workers of lost servers"
                self._router.refuse(identity, f"{why}, its most: start more servers")
                return self._forget(identity)
            hand_over: Callable[[int, int, int], None] | None = None
            if fields["shared_memory"]:
                self._giver.accept(self._sessions.keys())
                if not (session.shares_memory and self._giver.connected(identity)):
                    raise Malformed("start: shared_memory without a connection to hand it over")

                def hand_over(launch: int, segment: int, bell: int) -> None:
                    self._giver.give(identity, number, launch, segment, bell)

            slot = party.slots[number] = Slot(
                number,
                lambda: self._launcher,
                self._blocks,
                # Members may see the loss of a server at different times, so none waits for the others there.
                lambda: 1 if takes_over else max(party.members, len(party.sessions)),
                hand_over,
            )
        try:
            slot.start(identity, fields)
        except ValueError as error:
            self._router.refuse(identity, str(error))
            self._forget(identity)
        return None

    def _taken_over(self) -> int:
        return sum(number >= party.workers for party in self._parties for number in party.slots)

    def _forget(self, identity: bytes) -> None:
        session = self._sessions.pop(identity, None)
        if session is None:
            return
        party = session.party
        del party.sessions[identity]
        self._giver.forget(identity)
        if self._direct is not None:
            self._direct.forget(identity)
        for slot in party.slots.values():
            slot.leave(identity)
        if not party.sessions:
            self._parties.remove(party)
            for slot in party.slots.values():
                worker = slot.end()
                if worker is not None:
                    self._ending.append((time.monotonic() + protocol.GRACE_S, worker))

    def _keep_house(self, now: float) -> None:
        stood_still, self._looked = now - self._looked, now
        self._giver.accept(self._sessions.keys())
        if self._direct is not None:
            self._direct.accept(self._sessions.keys())
        for identity, session in tuple(self._sessions.items()):
            if stood_still > wire.PING_S:  # what is silent then is this process
                session.heard += stood_still
            if now - session.heard > self._client_timeout:
                logger.warning("%s (%s) is silent: its workers are free", session.name, session.address)
                self._forget(identity)
        for party in tuple(self._parties):
            if party.max_lag is not None:
                self._drop_laggards(party, party.max_lag, now)
        for entry in tuple(self._ending):
            deadline, worker = entry
            if not worker.wait(0):
                if now < deadline:
                    continue
                worker.kill()
                worker.wait(1)
            worker.release()
            self._ending.remove(entry)

    def _drop_laggards(self, party: _Party, max_lag: float, now: float) -> None:
        for slot in tuple(party.slots.values()):
            for identity, lag in slot.held_up_by(now, party.sessions.keys()).items():
                if lag > max_lag and len(party.sessions) > 1 and identity in party.sessions:
                    name = party.sessions[identity].name
                    self._router.refuse(
                        identity,
                        f"{name} held up its group {party.group!r} for more than {max_lag:g} s (max_lag), so "
                        "it fell out: give it more time, or make its steps faster",
                    )
                    self._forget(identity)

    def _drain(self) -> None:
        """Sends what the workers have sent, and tells the trainers that the server ends."""
        self._draining = True
        for party in self._parties:
            for slot in party.slots.values():
                self._relay(slot, party)
        for identity in tuple(self._sessions):
            self._router.reply(identity, wire.GOODBYE, server=self._id)
        # Until they have read it: ZeroMQ drops what a peer has not read when the connection ends.
        deadline = time.monotonic() + _GOODBYE_S
        while self._sessions and time.monotonic() < deadline:
            if not self._router.receive(self._handle):
                time.sleep(_GOODBYE_S / 100)

    # Answers.

    def _answer_ping(self, identity: bytes, party: _Party, ping: dict[str, Any]) -> None:
        for number, attempt, nbytes in ping["acknowledged"]:
            if number in party.slots:
                party.slots[number].acknowledge(identity, attempt, nbytes)
        there = [(slot.number, slot.members.get(identity)) for slot in party.slots.values()]
        sent = [[number, member.attempt, member.number] for number, member in there if member is not None]
        self._tell_counters(identity, party, ping["number"], sent)

    def _tell_counters(
        self, identity: bytes, party: _Party, number: int = 0, sent: Sequence[list[int]] = ()
    ) -> None:
        """Answers a ping, or tells the counters alone: ping 0 was never sent, so it asks for no messages."""
        readings = {}
        for slot in party.slots.values():
            pid = 0 if slot.worker is None else slot.worker.pid
            readings[slot.number] = [pid, slot.restarts, wire.plain_reading(slot.reading())]
        answer = {"known": True, "slots": list(sent), "readings": readings}
        self._router.reply(identity, wire.PONG, server=self._id, number=number, **answer)

    def _count(self, fields: dict[str, Any]) -> int | str:
        place = Place(*fields["place"])
        context = Context(
            fields["epoch"], place.seed, place.rank, place.world_size, place.worker, place.workers
        )
        try:
            return definition.count(self.dataset, context, fields["exact"])
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

    def _send_data(self, data: Data) -> None:
        session = self._sessions.get(data.client)
        if session is None:
            return
        direct = self._direct if session.is_direct else None
        in_parts = data.parts if direct is None else None
        if self._router.send(data.client, data.head, data.frames, in_parts):
            session.batches += data.batches
            if direct is not None and data.parts is not None:
                direct.send(data.client, data.head, data.parts)

    def _slot_status(self, slot: Slot, party: _Party) -> dict[str, Any]:
        members = slot.members.values()
        return {
            "worker": slot.number,
            "pid": 0 if slot.worker is None else slot.worker.pid,
            "client": ", ".join(session.name for session in party.sessions.values()),
            "state": "idle" if slot.epoch is None else "running",
            "epoch": slot.last_epoch,
            "batches": slot.batches,
            "restarts": slot.restarts,
            "unacknowledged_bytes": max((member.outstanding for member in members), default=0),
            "window_bytes": max((member.window for member in members), default=0),
            "shard": "" if slot.worker is None else slot.worker.shard,
            "reading": wire.plain_reading(slot.reading()),
        }


def _client_status(session: _Session, now: float) -> dict[str, Any]:
    return {
        "client": session.name,
        "address": session.address,
        "group": session.party.group,
        "rank": session.rank,
        "world_size": session.world_size,
        "workers": session.party.workers,
        "batches": session.batches,
        "nbytes": sum(slot.reading().nbytes for slot in tuple(session.party.slots.values())),
        "connected_s": now - session.began,
        "silent_s": now - session.heard,
    }
