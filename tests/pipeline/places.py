"""What all workers of all ranks read, and the streams that loaders watch."""

from mpwds.pipeline.context import Context
from mpwds.pipeline.stream import WrappedStream


def read_everywhere(stream, world_size, workers, epoch=0, seed=None):
    """The elements that ``stream`` gives each worker of each rank, those of one after those of another."""
    places = [(rank, world_size, worker, workers) for rank in range(world_size) for worker in range(workers)]
    contexts = [Context(epoch, seed, *place) for place in places]
    return [element for context in contexts for _, element in stream(context)]


class _Watching(WrappedStream):
    def __init__(self, stream):
        super().__init__(stream)
        self.skip = stream.skip

    def __next__(self):
        return self._next()


def watched(part, stream, context):
    """The stream that a loader puts around that of each part (``Context.watch``)."""
    return _Watching(stream)
