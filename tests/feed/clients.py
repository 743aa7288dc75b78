"""A client of a server that says what a test likes."""

import os
import time

import zmq

from mpwds import nest
from mpwds.feed import wire
from mpwds.interrupts import uninterrupted
from tests.feed.messages import COMMANDS


class Client:
    def __init__(self, url, identity=None):
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        if identity != b"":
            self.socket.identity = identity or b"\1" + os.urandom(15)
        self.socket.linger = 0
        self._is_member = False
        self.socket.sndtimeo = 20_000
        self.socket.connect(url)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._is_member:  # a server that ends would wait for it
            self.say(wire.BYE)
        uninterrupted(self._context.destroy, 200)

    def say(self, kind, **changed):
        self.socket.send(wire.pack(kind, **{**COMMANDS[kind], **changed}))

    def hear(self, *kinds):
        """The next reply of one of these kinds, or messages of the next data message."""
        while True:
            assert self.socket.poll(600_000), f"no {kinds}"
            first, *frames = self.socket.recv_multipart()
            if frames:
                if "data" in kinds:
                    return frames[0]
            elif (reply := nest.unpack(first))["kind"] in kinds:
                return reply

    def welcomed(self, **hello):
        while True:
            self.say(wire.HELLO, **hello)
            if (reply := self.hear(wire.WELCOME, wire.WAIT))["kind"] == wire.WELCOME:
                self._is_member = True
                return reply
            time.sleep(0.05)

    def status(self):
        self.say(wire.STATUS)
        return self.hear(wire.STATUS_IS)["status"]
