"""mosaicml-streaming, for processes of their own: it changes signal handlers and leaves shared memory behind.

``python peer.py write < REQUEST`` and ``python peer.py read FOLDERS`` serve the tests, with pickles; the
benchmark calls ``import_streaming``.
"""

import os
import pickle
import sys
import types
from importlib.machinery import ModuleSpec

_PEERS = os.path.join(os.path.dirname(sys.executable), os.pardir, "peers")

# What the package imports for classes that are not used here. torch takes seconds.
_UNUSED = ("torchvision", "transformers", "torch")


class _StandIns:
    """Finds modules of unused packages; whatever is asked of them is an empty class."""

    def __init__(self, packages):
        self._packages = packages

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self._packages else None

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        pass


class _StandIn(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def import_streaming(unused=_UNUSED):
    """The package ``streaming``; ``unused`` are packages that it imports and that are replaced."""
    sys.meta_path.insert(0, _StandIns(unused))
    sys.path.append(_PEERS)
    import streaming

    return streaming


def _write():
    """Writes datasets: for each request, the arguments of ``MDSWriter`` and the samples."""
    streaming = import_streaming()
    for arguments, samples in pickle.load(sys.stdin.buffer):
        with streaming.MDSWriter(**arguments) as sink:
            for sample in samples:
                sink.write(sample)


def _read(*folders):
    """Reads all samples of folders, after it has uncompressed their shards."""
    streaming = import_streaming()
    found = []
    for folder in folders:
        dataset = streaming.LocalDataset(folder)
        stream = streaming.Stream(local=folder, keep_zip=True, download_retry=0, download_timeout=60)
        for shard in dataset.shards:
            stream.prepare_shard(shard)
        found.append([dataset[number] for number in range(len(dataset))])
    pickle.dump(found, sys.stdout.buffer)


if __name__ == "__main__":
    {"write": _write, "read": _read}[sys.argv[1]](*sys.argv[2:])
