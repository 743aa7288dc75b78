"""Shared memory that carries batches between processes.

Read ``segment.py`` (memory without a name), ``arena.py`` (a producer's blocks) and ``lease.py`` (the
consumer's) in this order. ``cuda.py`` pins memory for devices, and ``share.py`` shares a dataset's arrays.
Nothing here knows what a sample is.
"""
