"""One epoch with any kind of workers.

Read ``worker_handle.py`` first (what an epoch needs of a worker), then ``epoch.py`` (the iterator). A worker
is a process of this machine in ``local_worker.py``, this process itself in ``in_process.py``. ``group.py``
keeps the workers of a loader.
"""
