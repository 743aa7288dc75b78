"""Two network namespaces and a bad network between them. Needs root and iproute2."""

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


class Namespaces:
    """``within[0]`` runs a command at the server's end, ``within[1]`` at the trainer's."""

    def __init__(self):
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        if shutil.which("ip") is None:
            pytest.skip("network namespaces need the command ip (iproute2)")
        self.names = [f"mpwds-{os.getpid()}-{end}" for end in ("server", "trainer")]
        self.within = [["ip", "netns", "exec", name] for name in self.names]
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            self.close()
            pytest.skip(f"no network namespace can be made here: {error.stderr}")

    def configure(self, end, device):
        name, address = self.names[end], (SERVER, TRAINER)[end]
        run("ip", "link", "set", device, "netns", name)
        run("ip", "-n", name, "address", "add", f"{address}/24", "dev", device)
        run("ip", "-n", name, "link", "set", device, "mtu", str(_MTU), "up")

    def close(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


class Netem(Namespaces):
    """A pair of veth devices that ``tc netem`` disturbs, where the kernel has it."""

    def __init__(self):
        super().__init__()
        self.devices = [f"mpwds{end}{os.getpid() % 100_000}" for end in "st"]
        try:
            run("ip", "link", "add", self.devices[0], "type", "veth", "peer", "name", self.devices[1])
            for end in (0, 1):
                self.configure(end, self.devices[end])
            self.disturb()
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            self.close()
            pytest.skip(f"no netem here: {getattr(error, 'stderr', error)}")

    def disturb(self, delay_ms=0, jitter_ms=0, loss=0.0):
        for name, device in zip(self.names, self.devices, strict=True):
            rules = f"delay {delay_ms}ms {jitter_ms}ms loss {100 * loss}%"
            run("tc", "-n", name, "qdisc", "replace", "dev", device, "root", "netem", *rules.split())

    def partition(self):
        self.disturb(loss=1.0)


class Relay(Namespaces):
    """A pair of tun devices with a thread between them, which drops, delays and reorders packets.

    For kernels without netem.
    """

    def __init__(self):
        super().__init__()
        self.disturb()
        self._dice = random.Random(1)
        self._ends = []
        try:
            for end in (0, 1):
                self._ends.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK))
                device = f"mpwds{end}t{os.getpid() % 100_000}"
                request = struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI)
                fcntl.ioctl(self._ends[end], _TUNSETIFF, request)
                self.configure(end, device)
        except OSError as error:
            self.close()
            pytest.skip(f"no tun device can be made here: {error}")
        self._closing = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

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
        if hasattr(self, "_thread"):
            self._closing = True
            self._thread.join()
        for end in getattr(self, "_ends", []):
            os.close(end)
        super().close()


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)
