"""Statistics: snapshots of counters, and the reports that are made of them.

``snapshot.py`` is what a worker has counted. ``collector.py`` times the consumer and adds up a loader's
epochs. ``report.py`` makes rates of that, ``diagnosis.py`` says what bounds the training, and
``progress_bar.py`` draws the live line. ``feed/report.py`` reports on servers, by the same means.
"""
