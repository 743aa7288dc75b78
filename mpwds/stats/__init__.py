"""Statistics: counters of workers, their snapshots, and the reports that are made of these.

``profiler.py`` counts and times a worker's work in ``counters.py``, which is shared memory. ``snapshot.py``
is what these said at a moment. ``collector.py`` times the consumer and adds up a loader's epochs.
``measures.py`` makes times and rates of both, ``diagnosis.py`` says what bounds the training, ``report.py``
is the result of ``loader.stats()``, and ``progress_bar.py`` draws the live line. ``feed/report.py`` reports
on servers, by the same means.
"""
