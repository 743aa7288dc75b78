"""A server's trainers: who may come, which workers each has, and when it is gone."""

from __future__ import annotations

import functools
import itertools
import logging
import socket
import time
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from mpwds.feed import wire
from mpwds.feed.definition import title
from mpwds.feed.fd_passing import FdSender
from mpwds.feed.server.router import Router
from mpwds.feed.server.worker_relay import WorkerRelay
from mpwds.loader.launching.launchers import Launcher
from mpwds.loader.messages import protocol
from mpwds.loader.processes import processes
from mpwds.stats.snapshot import NOTHING_COUNTED
from mpwds.viewing.wording import counted, duration

logger = logging.getLogger("mpwds.feed")

_MOST_TAKEN_OVER = 4  # parts of lost servers, for each worker


@dataclass
class ClientGroup:
    """The workers that one trainer has, or a group of trainers together."""

    workers: int
    group: str = ""
    members: int = 1  # that are expected before an epoch begins
    max_lag: float | None = None
    slots: dict[int, WorkerRelay] = field(default_factory=dict)
    sessions: dict[bytes, ClientSession] = field(default_factory=dict)


@dataclass
class ClientSession:
    """A trainer that the server has welcomed."""

    name: str
    address: str
    rank: int
    world_size: int
    party: ClientGroup
    shares_memory: bool
    began: float
    heard: float
    batches: int = 0
    epoch: int = -1  # that it began last
    asked: int = -1  # the last epoch of which it has asked for all parts that it wants here

    def status(self, now: float) -> dict[str, Any]:
        """Figures of the trainer."""
        return {
            "client": self.name,
            "address": self.address,
            "group": self.party.group,
            "rank": self.rank,
            "world_size": self.world_size,
            "workers": self.party.workers,
            "batches": self.batches,
            "nbytes": sum(slot.snapshot().nbytes for slot in tuple(self.party.slots.values())),
            "began_s": self.began,
            "connected_s": now - self.began,
            "silent_s": now - self.heard,
        }


@dataclass(eq=False)
class Clients:
    """The trainers of a server, and their workers.

    ``definition`` are the fields of a welcome that are the same for all. Up to ``most`` trainers or groups
    get ``workers_of_each`` workers, or as many as they ask for, until they are silent for ``timeout_s``.
    """

    definition: dict[str, Any]
    router: Router
    launcher: Launcher
    fd_sender: FdSender
    workers: int
    most: int
    workers_of_each: int | None
    timeout_s: float
    shared_memory: bool
    slots: dict[int, WorkerRelay] = field(default_factory=dict)  # the last of each number, also of the gone
    groups: list[ClientGroup] = field(default_factory=list)  # who has workers
    sessions: dict[bytes, ClientSession] = field(default_factory=dict)  # by identity
    are_turned_away: bool = False  # the server ends soon, so nobody else is welcomed
    _looked: float = field(default_factory=time.monotonic)
    _ending: list[tuple[float, Any]] = field(default_factory=list)

    def welcome(self, identity: bytes, hello: dict[str, Any], address: str) -> None:
        """Answers ``hello``: the trainer is welcomed, refused or told to wait."""
        if wire.VERSION not in hello["versions"]:
            return self.router.refuse(
                identity,
                f"it speaks version {wire.VERSION} of the feed, this trainer {hello['versions']}: use the "
                "same mpwds on both sides",
            )
        if hello["fingerprint"] not in (None, self.definition["fingerprint"]):
            return self.router.refuse(
                identity,
                f"it has another dataset, {title(self.definition)}, than this trainer expects "
                f"({hello['fingerprint']}): use the same definition everywhere, with the same Python",
            )
        self.forget(identity)
        party = self._join(identity, hello)
        if party is None:
            return None
        now = time.monotonic()
        near = self.shared_memory and hello["host"] == wire.machine() and not party.group
        session = ClientSession(
            hello["name"], address, hello["rank"], hello["world_size"], party, near, began=now, heard=now
        )
        party.sessions[identity] = self.sessions[identity] = session
        if len(party.sessions) >= party.members:
            party.members = 1  # all have been here: from now on those that are left make an epoch
        if party not in self.groups:
            self.groups.append(party)
        group = f", in group {party.group!r}" if party.group else ""
        rank = f"rank {session.rank} of {session.world_size}, " if session.world_size > 1 else ""
        workers = counted(party.workers, "worker")
        logger.info("%s (%s) comes: %s%s%s", session.name, address, rank, workers, group)
        return self.router.reply(
            identity,
            wire.WELCOME,
            workers=party.workers,
            handover=self.fd_sender.name if near else None,
            version=wire.VERSION,
            host=socket.gethostname(),
            **self.definition,
        )

    def _join(self, identity: bytes, hello: dict[str, Any]) -> ClientGroup | None:
        """The workers that a trainer joins or gets; ``None`` if it was told to wait, or why it cannot."""
        group = hello["group"] or ""
        for party in self.groups:
            if group and party.group == group:
                return party
        number, ranks = hello["share"] or (hello["rank"], max(hello["world_size"], 1))
        free = self.workers - sum(party.workers for party in self.groups)
        wanted = self._wanted(hello, number, ranks, free)
        if not 1 <= wanted <= self.workers:
            each = self.workers_of_each or 1
            for_whom = "workers=" if wanted else f"{'one' if each == 1 else each} for each rank"
            needed = f"{wanted or ranks * each} are needed ({for_whom}): start it with more"
            why = f"it has {counted(self.workers, 'worker')}, but {needed}"
            if hello.get("patient"):
                self.router.reply(identity, wire.WAIT, why=why)
            else:
                self.router.refuse(identity, why)
            return None
        if len(self.groups) >= self.most and wanted <= free:
            why = f"it serves {counted(len(self.groups), 'client')}, its most (--max-clients)"
        elif len(self._ending) >= 2 * self.workers:
            # Or a client that comes and goes would start processes faster than they end.
            why = "its workers of earlier clients are still ending"
        elif self.are_turned_away:
            why = "the server is ending"
        elif wanted > free:
            why = f"it has {free} of {self.workers} workers free"
            if hello.get("patient") and not (group or hello["workers"]):
                for other in [each for each, session in self.sessions.items() if not session.party.group]:
                    self.router.reply(other, wire.NEEDED, ranks=self._ranks_served)
        else:
            return ClientGroup(wanted, group, max(hello["members"] or 1, 1), hello["max_lag"])
        self.router.reply(identity, wire.WAIT, why=why)
        return None

    @property
    def _ranks_served(self) -> int:
        """Ranks of a job that have workers here, if more of them than that connect."""
        return max(1, self.workers // (self.workers_of_each or 1))

    def _wanted(self, hello: dict[str, Any], number: int, ranks: int, free: int) -> int:
        """The workers that trainer ``number`` of ``ranks`` is to have; 0 if there are too few for it."""
        wanted: int = hello["workers"] or self.workers_of_each or 0
        if ranks > self._ranks_served and hello.get("patient") and not hello["workers"]:
            # The others have workers elsewhere, or will.
            wanted = (wanted or 1) if number < self._ranks_served else 0
        elif not wanted and ranks <= self.workers:
            share = self.workers * (number + 1) // ranks - self.workers * number // ranks
            wanted = min(share, max(free, 1))  # fewer, if ranks that came before have more
        return min(wanted, self.workers) if hello.get("patient") else wanted  # other servers have the rest

    def start(self, identity: bytes, session: ClientSession, fields: dict[str, Any]) -> None:
        """Begins a part of an epoch, on a worker that is started if it is the first of its slot."""
        party, number = session.party, fields["slot"]
        if fields["epoch"] != session.epoch:
            session.epoch = fields["epoch"]
            logger.info("%s starts epoch %d", session.name, session.epoch)
        if number not in party.slots:
            if number >= party.workers and self._taken_over() >= _MOST_TAKEN_OVER * self.workers:
                why = f"it has taken over {self._taken_over()} workers of lost servers"
                self.router.refuse(identity, f"{why}, its most: start more servers")
                return self.forget(identity)
            party.slots[number] = self._slot(identity, session, number, fields["shared_memory"])
        try:
            party.slots[number].start(identity, fields)
        except ValueError as error:
            self.router.refuse(identity, str(error))
            self.forget(identity)
        return None

    def _slot(self, identity: bytes, session: ClientSession, number: int, shared_memory: bool) -> WorkerRelay:
        party = session.party

        def have_all_asked(epoch: int, clients: Set[bytes]) -> bool:
            if number >= party.workers:
                return True  # members may see the loss of a server at different times: none waits for others
            others = (session for client, session in party.sessions.items() if client not in clients)
            return len(party.sessions) >= party.members and all(each.asked >= epoch for each in others)

        if shared_memory:
            self.fd_sender.accept(self.sessions.keys())
            if not (session.shares_memory and self.fd_sender.connected(identity)):
                raise wire.Malformed("start: shared_memory without a connection to hand it over")
        taken = {slot.number_here for each in self.groups for slot in each.slots.values()}
        number_here = next(free for free in itertools.count() if free not in taken)
        hand_over = functools.partial(self.fd_sender.give, identity, number) if shared_memory else None
        before = self.slots[number_here].totals() if number_here in self.slots else NOTHING_COUNTED
        slot = WorkerRelay(
            number, number_here, self.launcher, self.definition["blocks"], have_all_asked, hand_over, before
        )
        self.slots[number_here] = slot
        return slot

    def _taken_over(self) -> int:
        return sum(number >= party.workers for party in self.groups for number in party.slots)

    def forget(self, identity: bytes) -> None:
        """Frees the workers of a trainer, if it is known."""
        session = self.sessions.pop(identity, None)
        if session is None:
            return
        stayed = duration(time.monotonic() - session.began)
        who = f"{session.name} ({session.address})"
        logger.info("%s goes after %s, %d batches", who, stayed, session.batches)
        party = session.party
        del party.sessions[identity]
        self.fd_sender.forget(identity)
        for slot in party.slots.values():
            slot.leave(identity)
        if not party.sessions:
            self.groups.remove(party)
            ended = [slot.end() for slot in party.slots.values()]
            deadline = time.monotonic() + protocol.GRACE_S
            self._ending += [(deadline, worker) for worker in ended if worker is not None]

    def status_of_workers(self) -> list[dict[str, Any]]:
        """Figures of the workers, by number: of all trainers since the server started."""
        names = {identity: session.name for identity, session in tuple(self.sessions.items())}
        return [_status(slot, names) for _, slot in sorted(self.slots.items())]

    def run_maintenance(self, now: float) -> None:
        """Accepts known clients. Disconnects clients that are silent or too slow, and ends their workers."""
        stood_still, self._looked = now - self._looked, now
        self.fd_sender.accept(self.sessions.keys())
        for identity, session in tuple(self.sessions.items()):
            if stood_still > wire.PING_S:  # what is silent then is this process
                session.heard += stood_still
            if now - session.heard > self.timeout_s:
                logger.warning("%s (%s) is silent: its workers are free", session.name, session.address)
                self.forget(identity)
        for party in tuple(self.groups):
            if party.max_lag is not None:
                self._reject_laggards(party, party.max_lag, now)
        for entry in tuple(self._ending):
            deadline, worker = entry
            if not worker.wait(0):
                if now < deadline:
                    continue
                worker.kill()
                worker.wait(1)
            worker.release()
            self._ending.remove(entry)

    def _reject_laggards(self, party: ClientGroup, max_lag: float, now: float) -> None:
        for slot in tuple(party.slots.values()):
            for identity, lag in slot.held_up_by(now, party.sessions.keys()).items():
                if lag > max_lag and len(party.sessions) > 1 and identity in party.sessions:
                    name = party.sessions[identity].name
                    self.router.refuse(
                        identity,
                        f"{name} held up its group {party.group!r} for more than {max_lag:g} s (max_lag), so "
                        "it fell out: give it more time, or make its steps faster",
                    )
                    self.forget(identity)

    def close(self) -> None:
        """Ends all workers."""
        for identity in tuple(self.sessions):
            self.forget(identity)
        processes.end_all([process for _, process in self._ending], protocol.GRACE_S)
        for _, process in self._ending:
            process.release()
        self._ending.clear()


def _status(slot: WorkerRelay, names: dict[bytes, str]) -> dict[str, Any]:
    members, totals, worker = tuple(slot.members.items()), slot.totals(), slot.worker
    state = "idle" if slot.epoch is None else "running"
    return {
        "worker": slot.number_here,
        "pid": 0 if worker is None else worker.pid,
        "client": ", ".join(names[identity] for identity, _ in members if identity in names),
        "state": state if slot.ended is None else "free",
        "epoch": slot.last_epoch,
        "unacknowledged_bytes": max((member.outstanding for _, member in members), default=0),
        "window_bytes": max((member.window for _, member in members), default=0),
        "counters": wire.pack_counters(totals),
    }
