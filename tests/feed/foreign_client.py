"""A client of the feed, written from docs/how-it-works/feed-protocol.md alone, without mpwds."""

import os
import struct

import msgpack
import numpy as np
import zmq


def epoch(url, workers, number=0):
    """Yields the batches of an epoch that the server at ``url`` makes with ``workers`` workers."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.identity, dealer.linger = b"\1" + os.urandom(15), 1000
        dealer.connect(url)
        nobody = dict.fromkeys(("fingerprint", "group", "members", "max_lag"))
        who = {"versions": [2], "name": "foreign", "host": "", "workers": workers, "rank": 0, "world_size": 1}
        welcome = {"kind": "wait"}
        while welcome["kind"] == "wait":
            dealer.poll(100)
            say(dealer, "hello", **who, **nobody)
            welcome = msgpack.unpackb(dealer.recv())
        at = {"first": 0, "state": None, "at": 0, "window": 1 << 20, "shared_memory": False}
        for slot in range(workers):
            place = [0, 1, slot, workers, welcome["seed"]]
            say(dealer, "start", slot=slot, attempt=slot + 1, epoch=number, place=place, **at)
        waiting, used, turns = [[] for _ in range(workers)], [0] * workers, list(range(workers))
        while turns:
            while not waiting[turns[0]]:
                receive(dealer, waiting, used)
            message = waiting[turns[0]].pop(0)
            if message["kind"] == "batch":
                turns.append(turns.pop(0))
                yield item(message["structure"], (array(message["memory"], at) for at in message["offsets"]))
            elif message["kind"] == "end":
                turns.pop(0)
            else:
                raise RuntimeError(f"{message['summary']} {message['notes']}")
        say(dealer, "bye")


def say(dealer, kind, **fields):
    dealer.send(msgpack.packb({"mpwds": 1, "kind": kind, **fields}))


def receive(dealer, waiting, used):
    """Receives a message; of data, puts what it has into the list of its slot, and acknowledges it."""
    if not dealer.poll(1000):
        return say(dealer, "ping", number=1, acknowledged=[])
    first, *frames = dealer.recv_multipart()
    if not frames:
        return None
    slot, attempt, _, nbytes = msgpack.unpackb(first)
    parts, start = b"".join(frames[1:]), 0
    while start < len(frames[0]):
        envelope_nbytes, payload_nbytes = struct.unpack_from("<II", frames[0], start)
        payload = start + 8 + envelope_nbytes
        message = msgpack.unpackb(frames[0][start + 8 : payload], strict_map_key=False)
        start = payload + payload_nbytes
        waiting[slot].append({"memory": parts if "block" in message else frames[0][payload:start], **message})
    used[slot] += len(frames[0]) + nbytes
    return say(dealer, "ack", slot=slot, attempt=attempt, nbytes=used[slot], window=1 << 20)


def array(memory, offset):
    header_nbytes, kind, _, ndim = struct.unpack_from("<8xq8s8sq", memory, offset)
    shape = struct.unpack_from(f"<{ndim}q", memory, offset + 40)
    data = offset + 16 + -(-header_nbytes // 64) * 64 + 16
    return np.frombuffer(memory, "<" + kind.rstrip(b"\0").decode(), int(np.prod(shape)), data).reshape(shape)


def item(node, arrays):
    if not isinstance(node, list):
        return node
    tag, *content = node
    if tag in (0, 1):
        return next(arrays)[()] if tag else next(arrays)
    content = [[item(each, arrays) for each in nodes] for nodes in content] if tag < 7 else content
    make = {2: list, 3: tuple, 4: dict, 5: dict, 7: list, 8: tuple}[tag]
    return make(zip(*content, strict=True) if make is dict else content[0])
