"""What runs in a worker.

``worker.py`` is its main loop, ``elements.py`` iterates the dataset, ``sending.py`` sends batches,
``meter.py`` and ``counters.py`` count. ``in_process.py`` does the same work without a process.
"""
