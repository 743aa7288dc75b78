"""Statistics of a loader.

``collector.py`` collects counters, ``trainer_times.py`` is the trainer's clock, ``stats.py`` makes the report
and its diagnosis, and ``progress_bar.py`` draws the live line.
"""
