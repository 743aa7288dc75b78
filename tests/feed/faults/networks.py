"""Two network namespaces and a bad network between them. Needs root, iproute2 and tun devices."""

import contextlib
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time

import pytest

SERVER, TRAINER = "10.213.77.1", "10.213.77.2"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MTU = 9000


class BadNetwork:
    """Two network namespaces with a tun device each, and a thread that passes packets on between them.

    It drops, delays and reorders them. ``within[0]`` runs a command at the server's end, ``within[1]`` at the
    trainer's.
    """

    def __init__(self):
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        if shutil.which("ip") is None:
            pytest.skip("network namespaces need the command ip (iproute2)")
        self._names = [f"mpwds-{os.getpid()}-{end}" for end in ("server", "trainer")]
        self.within = [["ip", "netns", "exec", name] for name in self._names]
        self._ends = []
        self._dice = random.Random(1)
        self._closing = False
        self._thread = threading.Thread(target=self._run)
        self.disturb()
        try:
            for end in (0, 1):
                self._add(end)
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            pytest.skip(f"no network can be made here: {getattr(error, 'stderr', error)}")
        self._thread.start()

    def _add(self, end):
        """Makes a namespace, and a device in it."""
        name, device = self._names[end], f"mpwds{end}t{os.getpid() % 100_000}"
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        self._ends.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK))
        fcntl.ioctl(
            self._ends[end], _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI)
        )
        run("ip", "link", "set", device, "netns", name)
        run("ip", "-n", name, "address", "add", f"{(SERVER, TRAINER)[end]}/24", "dev", device)
        run("ip", "-n", name, "link", "set", device, "mtu", str(_MTU), "up")

    def disturb(self, delay_ms=0, jitter_ms=0, loss=0.0):
        self._rules = delay_ms / 1000, jitter_ms / 1000, loss

    def partition(self):
        self.disturb(loss=1.0)

    def _run(self):
        queue = []
        count = 0
        while not self._closing:
            now = time.monotonic()
            wait_s = min(max(queue[0][0] - now, 0), 0.1) if queue else 0.1
            for ready in select.select(self._ends, [], [], wait_s)[0]:
                with contextlib.suppress(OSError):
                    packet = os.read(ready, 65536)
                    delay_s, jitter_s, loss = self._rules
                    if self._dice.random() >= loss:
                        count += 1
                        due = time.monotonic() + delay_s + jitter_s * self._dice.uniform(-1, 1)
                        other = self._ends[ready == self._ends[0]]
                        heapq.heappush(queue, (due, count, other, packet))
            while queue and queue[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(queue)
                with contextlib.suppress(OSError):
                    os.write(end, packet)

    def close(self):
        self._closing = True
        if self._thread.is_alive():
            self._thread.join()
        for end in self._ends:
            os.close(end)
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)
