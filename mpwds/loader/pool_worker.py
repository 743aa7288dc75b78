"""A process of a pool: sessions of several loaders take turns in it."""

from __future__ import annotations

import gc
import select
import socket
import time
from dataclasses import dataclass

from mpwds.loader import handover, process_state, torch_worker
from mpwds.loader.channel import Channel
from mpwds.loader.session import MakeSteps, Session, SessionEnds
from mpwds.loader.setup import WorkerSetup

_TURN_S = 0.02
"""How long a session goes on while others could: changing over costs about 0.1 ms."""


@dataclass
class PoolSetup(WorkerSetup):
    """The setup of a pool's process: it has no dataset until a loader opens a session."""


class PoolWorker:
    """Runs sessions side by side, in this thread: one that must wait lets the others go on.

    Args:
        index: The process' index, and that of the worker it is in each session.
        channel: To the trainer, which closes it to end this process and sends nothing.
        handover_socket: Where the descriptors of new sessions come.
        make_steps: Makes what runs a session's epochs.
    """

    def __init__(
        self, index: int, channel: Channel, handover_socket: socket.socket, make_steps: MakeSteps
    ) -> None:
        self._index = index
        self._channel = channel
        self._handover = handover_socket
        self._make_steps = make_steps
        self._sessions: list[Session] = []
        self._current: Session | None = None

    def run(self) -> None:
        """Runs until the trainer closes the channel, which raises ``ChannelClosed``."""
        try:
            while True:
                for session in tuple(self._sessions):
                    if session.can_go_on:
                        self._enter(session)
                        if not session.turn(time.monotonic() + _TURN_S):
                            self._finish(session)
                self._look_around()
        finally:
            for session in tuple(self._sessions):
                self._end(session)

    def _look_around(self) -> None:
        """Sees what has come for whom; waits for it if no session can go on."""
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._handover, select.POLLIN)
        sessions = {number: session for session in self._sessions for number in session.watch(poller)}
        busy = any(session.can_go_on for session in self._sessions)
        for number, event in poller.poll(0 if busy else None):
            if number == self._channel.fileno():
                self._channel.receive()
            elif number == self._handover.fileno():
                self._open()
            elif sessions[number] in self._sessions and not sessions[number].wake(event):
                self._finish(sessions[number])

    def _open(self) -> None:
        descriptors = handover.take_all(self._handover, len(SessionEnds._fields))
        if descriptors:
            self._sessions.append(Session(self._index, SessionEnds(*descriptors), self._make_steps))

    def _enter(self, session: Session) -> None:
        """Gives a session the process in the state in which it left it."""
        if session is self._current:
            return
        if self._current is not None:
            self._current.state = process_state.capture()
        self._current = session
        if session.state is None:
            torch_worker.forget()
        else:
            process_state.restore(session.state)
            session.state = None

    def _finish(self, session: Session) -> None:
        self._end(session)
        session.tell_of_end()

    def _end(self, session: Session) -> None:
        self._enter(session)
        self._sessions.remove(session)
        self._current = None
        session.end()
        torch_worker.forget()
        gc.collect()  # a dataset may be part of cycles, and this process goes on
