"""What all workers of all ranks read."""

from mpwds.pipeline.context import Context


def read_everywhere(stream, world_size, workers, **context):
    """The elements that ``stream`` gives each worker of each rank, those of one after those of another."""
    return [
        element
        for rank in range(world_size)
        for worker in range(workers)
        for _, element in stream(
            Context(rank=rank, world_size=world_size, worker=worker, workers=workers, **context)
        )
    ]
