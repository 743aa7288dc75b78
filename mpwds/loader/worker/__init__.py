"""The code that runs in a worker.

``worker.py`` is its main loop, ``elements.py`` iterates the dataset, ``sending.py`` sends batches.
``stats/profiler.py`` counts and times. ``engine/in_process.py`` does the same work without a process.
"""
