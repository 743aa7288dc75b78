"""What is asked of torch's CUDA, in which order, as a stand-in notes it; tests/gpu has the real one."""

import contextlib
import sys
from types import SimpleNamespace

import pytest

from mpwds.sharedmem.cuda import CopyStream, CudaAccess, PinningRefused, Runtime


class Stream:
    def __init__(self, torch, name):
        self.torch, self.name = torch, name

    def record_event(self, event=None):
        self.torch.calls.append(("record", self.name))
        return event or f"event of {self.name}"

    def wait_event(self, event):
        self.torch.calls.append(("wait", self.name, event))


class Event:
    def __init__(self, torch, blocking):
        assert blocking
        self.torch, self.reached = torch, False

    def query(self):
        return self.reached

    def synchronize(self):
        self.torch.calls.append("synchronize")
        self.reached = True


class Tensor:
    is_nested = False

    def __init__(self, torch, device="cpu", layout="strided"):
        self.torch, self.device, self.layout = torch, SimpleNamespace(type=device), layout

    def to(self, device, non_blocking=False):
        self.torch.calls.append(("to", str(device), self.torch.selected, non_blocking))
        return Tensor(self.torch, "cuda", self.layout)

    def record_stream(self, stream):
        self.torch.calls.append(("record_stream", stream.name))


class StandIn:
    """torch, as far as it is used: three devices, of which the first and the last are in use."""

    uint8 = "uint8"
    strided = "strided"

    def __init__(self):
        self.calls = []
        self.status = 0
        self.capturing = False
        self.current = 2
        self.selected = "current of 2"
        self.cuda = SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 3,
            current_device=lambda: self.current,
            is_current_stream_capturing=lambda: self.capturing,
            cudart=lambda: self.cudart,
            device=self._device,
            set_device=self._set_device,
            current_stream=lambda device: Stream(self, f"current of {getattr(device, 'index', device)}"),
            stream=self._stream,
            Stream=lambda device: Stream(self, f"side of {device.index}"),
            Event=lambda blocking: Event(self, blocking),
        )
        self.cudart = SimpleNamespace(
            cudaHostRegister=lambda *arguments: self._call("register", *arguments),
            cudaHostUnregister=lambda *arguments: self._call("unregister", *arguments),
            cudaGetErrorString=lambda status: f"error {status}",
        )
        self._C = SimpleNamespace(_cuda_hasPrimaryContext=lambda index: index != 1)

    def device(self, name, index=None):
        index = int(name.partition(":")[2]) if ":" in name else index
        return SimpleNamespace(index=index, __str__=lambda: name)

    def empty(self, nbytes, *, dtype, device, pin_memory):
        self.calls.append(("empty", nbytes, dtype, device, pin_memory))
        if self.status:
            raise RuntimeError("out of memory")
        return "pinned memory"

    def _call(self, *call):
        self.calls.append(call)
        return self.status

    @contextlib.contextmanager
    def _device(self, index):
        self.calls.append(("device", index))
        yield

    @contextlib.contextmanager
    def _stream(self, stream):
        outer, self.selected = self.selected, stream.name
        yield
        self.selected = outer

    def _set_device(self, index):
        self.calls.append(("set_device", index))
        raise RuntimeError("CUDA error: invalid device ordinal")


@pytest.fixture
def torch(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    return stand_in


def test_memory_is_registered_for_all_devices_on_the_one_that_was_current_at_first(torch):
    cuda = Runtime()
    torch.current = 0  # as in another thread
    cuda.register(4096, 8192)
    cuda.unregister(4096)
    assert torch.calls == [("device", 2), ("register", 4096, 8192, 1), ("device", 2), ("unregister", 4096)]


def test_an_error_is_told_and_taken_back_by_a_call_that_torch_checks(torch):
    torch.status = 2
    cuda = Runtime()
    with pytest.raises(PinningRefused, match="cudaHostRegister: error 2"):
        cuda.register(4096, 8192)
    assert torch.calls[-1] == ("set_device", 127)
    cuda.unregister(4096)
    assert torch.calls[-2:] == [("unregister", 4096), ("set_device", 127)]


def test_a_fence_stands_in_the_current_streams_of_the_devices_in_use(torch):
    fence = Runtime().fence()
    assert torch.calls == [("record", "current of 0"), ("record", "current of 2")]
    assert not fence.done()
    fence.wait()
    assert (fence.done(), torch.calls.count("synchronize")) == (True, 2)


def test_there_is_no_fence_while_a_graph_is_captured(torch):
    torch.capturing = True
    assert (Runtime().fence(), torch.calls) == (None, [])


def test_pinned_memory_is_torchs_and_on_the_cpu_whatever_the_default_device(torch):
    assert Runtime().pinned(100) == "pinned memory"
    assert torch.calls == [("empty", 100, "uint8", "cpu", True)]
    torch.status = 2
    with pytest.raises(PinningRefused, match="out of memory"):
        Runtime().pinned(100)


def test_dense_tensors_are_copied_on_the_side_stream_and_others_where_they_may_be_used(torch):
    stream = CopyStream("cuda")
    with stream.selected():
        dense = stream.copied(Tensor(torch))
        sparse = stream.copied(Tensor(torch, layout="sparse_coo"))
        stream.copied(Tensor(torch, device="cuda"))
        mark = stream.mark()
    assert [call[2:] for call in torch.calls if call[0] == "to"] == [
        ("side of 2", True),
        ("current of 2", False),
        ("current of 2", False),
    ]
    torch.calls.clear()
    stream.hand_over([dense, sparse, dense], mark)
    used = [("record_stream", "current of 2")] * 2
    assert torch.calls == [("wait", "current of 2", "event of side of 2"), *used]


def test_the_device_that_is_named_is_used(torch):
    stream = CopyStream("cuda:1")
    with stream.selected():
        stream.copied(Tensor(torch))
    assert torch.calls == [("to", torch.calls[0][1], "side of 1", True)]


def test_there_is_cuda_if_torch_says_so(torch):
    access = CudaAccess()
    assert (access.device_count(), isinstance(access.runtime(), Runtime)) == (3, True)
    torch.cuda.is_available = lambda: False
    assert access.runtime() is None
