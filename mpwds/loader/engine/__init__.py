"""One epoch with any kind of workers.

Read ``protocol.py`` first, then ``worker_handle.py`` (what an epoch needs of a worker) and ``epoch.py`` (the
iterator). ``local_worker.py`` is a worker on this machine; ``channel.py`` and ``receiving.py`` are the way of
its batches. ``group.py`` keeps the workers of a loader.
"""
