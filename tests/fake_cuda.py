"""A CUDA that needs no device: it does what was begun when it is told to, and notes what breaks the rules."""

import collections
import contextlib
import ctypes
import gc
import threading

import numpy as np
import torch

import mpwds
from mpwds.sharedmem.cuda import CudaAccess, PinningRefused


class FakeCuda:
    """Stands in for ``mpwds.sharedmem.cuda.Runtime``.

    Args:
        works: ``"when told"``: in :meth:`run` only. ``"when asked"``: also when a fence is asked whether it
            is done. ``"when awaited"``: also when a fence is waited for, which asking does not show.
        refuses: Why it pins no memory, if it does not.

    Attributes:
        events: What was asked of it: ``"register"``, ``"fence"``, ``"unregister"``, ``"pinned"``.
        fences: The stream of each fence.
        violations: What was asked and must not be.
        registered: Size of each registered memory, by address.
    """

    def __init__(self, works="when told", refuses=None):
        self.works = works
        self.refuses = refuses
        self.events = []
        self.fences = []
        self.violations = []
        self.registered = {}
        self.capturing = False
        self.failed = False
        self._pinned = []
        self._staged = []
        self._work = collections.defaultdict(collections.deque)
        self._begun = collections.Counter()
        self._thread = threading.local()

    # ------------------------------------------------------------------------- what a program does

    @property
    def stream(self):
        return getattr(self._thread, "stream", "default")

    @contextlib.contextmanager
    def selected(self, stream):
        outer, self._thread.stream = self.stream, stream
        try:
            yield
        finally:
            self._thread.stream = outer

    def copy(self, tensor):
        """Begins a copy of a tensor: the result has its content when the device has worked.

        What is not pinned is read now, as the driver does.
        """
        target = torch.full_like(tensor, -1)
        original = tensor if self.is_pinned(tensor) else tensor.clone()
        source, nbytes = original.data_ptr(), tensor.numel() * tensor.itemsize
        if original is not tensor:
            self._staged.append(original)

        def run():
            ctypes.memmove(target.data_ptr(), source, nbytes)

        self._begin(run, range(source, source + nbytes))
        return target

    def run(self):
        """The device does all that was begun."""
        while any(self._work.values()):
            for stream in list(self._work):
                self.run_stream(stream, self._begun[stream])

    def run_stream(self, stream, position):
        """It does what was begun in a stream, as far as a position."""
        work = self._work[stream]
        while work and work[0][0] < position:
            _, action, _ = work.popleft()
            action()

    def is_done(self, stream, position):
        work = self._work[stream]
        return not work or work[0][0] >= position

    def is_pinned(self, tensor):
        memory = [(pinned.data_ptr(), len(pinned)) for pinned in self._pinned]
        return any(
            address <= tensor.data_ptr() < address + nbytes
            for address, nbytes in (*self.registered.items(), *memory)
        )

    # -------------------------------------------------------------------------------- the runtime

    def register(self, address, nbytes):
        if self.refuses:
            raise PinningRefused(self.refuses)
        self.events.append("register")
        if not _mapped(address, nbytes):
            self.violations.append("registered what is not mapped")
        self.registered[address] = nbytes

    def unregister(self, address):
        self.events.append("unregister")
        nbytes = self.registered.pop(address, 0)
        if not nbytes:
            self.violations.append("unregistered what is not registered")
        if not _mapped(address, nbytes):
            self.violations.append("unregistered behind the end of the mapping")
        reads = [reads for work in self._work.values() for _, _, reads in work]
        if any(address <= read.start < address + nbytes for read in reads):
            self.violations.append("unregistered what a device is about to read")

    def fence(self):
        if self.failed:
            raise RuntimeError("CUDA error: device-side assert triggered")
        if self.capturing:
            return None
        self.events.append("fence")
        self.fences.append(self.stream)
        return _Fence(self, self.stream, self._begun[self.stream])

    def pinned(self, nbytes):
        if self.refuses:
            raise PinningRefused(self.refuses)
        self.events.append("pinned")
        self._pinned.append(torch.zeros(nbytes, dtype=torch.uint8))  # kept, as torch does while it is read
        return self._pinned[-1]

    def copy_stream(self, device):
        return FakeCopyStream(self, device)

    def _begin(self, action, reads=range(0)):
        stream = self.stream
        self._work[stream].append((self._begun[stream], action, reads))
        self._begun[stream] += 1


class _Fence:
    def __init__(self, cuda, stream, position):
        self._cuda, self._place = cuda, (stream, position)

    def done(self):
        if self._cuda.works == "when asked":
            self._cuda.run()
        return self._cuda.is_done(*self._place)

    def wait(self):
        if self._cuda.works == "when told":
            raise RuntimeError("this would wait for ever")
        self._cuda.events.append("wait")
        self._cuda.run()


class FakeCopyStream:
    """Stands in for ``mpwds.sharedmem.cuda.CopyStream``.

    Attributes:
        device: Where it copies to.
        begun: Number of copies.
        handed_over: Address of each tensor that was handed over.
    """

    def __init__(self, cuda, device):
        self.device = device
        self.begun = 0
        self.handed_over = []
        self._cuda = cuda
        cuda.copies = self

    def selected(self):
        return self._cuda.selected("copies")

    def copied(self, tensor):
        if self._cuda.stream != "copies":
            self._cuda.violations.append("copied on the stream that computes")
        self.begun += 1
        return self._cuda.copy(tensor)

    def mark(self):
        return self._cuda._begun["copies"]

    def hand_over(self, tensors, mark):
        if self._cuda.stream == "copies":
            self._cuda.violations.append("handed over to the stream of the copies")
        self.handed_over += [tensor.data_ptr() for tensor in tensors]
        self._cuda._begin(lambda: self._cuda.run_stream("copies", mark))


class FakeAccess(CudaAccess):
    """The way to a fake CUDA, or to none."""

    def __init__(self, cuda, devices=1):
        self._cuda = cuda
        self._devices = devices if cuda is not None else 0

    def device_count(self):
        return self._devices

    def runtime(self):
        return self._cuda


def numbers(count, nbytes=80_000):
    """Batches whose elements are all their number."""
    return [np.full(nbytes // 8, number, np.int64) for number in range(count)]


def loader_on(cuda, dataset, workers=1, **options):
    """A ``MultiLoader`` for which there is no CUDA but this one, or none at all."""
    kind = type("MultiLoader", (mpwds.MultiLoader,), {"_cuda": FakeAccess(cuda)})
    return kind(dataset, workers, **{"start_method": "fork", **options})


def _mapped(address, nbytes):
    """Whether memory of this process lies at an address."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
            if start <= address < end:
                return address + nbytes <= end
    return False


@contextlib.contextmanager
def kept_to_the_rules(works="when told"):
    """A fake CUDA; at the end nothing must be registered, and no rule have been broken."""
    from mpwds.sharedmem import cuda as pinning  # it registers what is done at exit: a test tells itself when

    fake = FakeCuda(works)
    yield fake
    fake.failed = fake.capturing = False
    fake.run()
    if fake.registered:
        gc.collect()
        pinning._unpin_late()
    assert fake.violations == []
    assert fake.registered == {}
