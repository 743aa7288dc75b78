"""Writing archives.

``tar_writer.py`` writes one archive, ``writers.py`` a series, ``encoders.py`` the fields. ``destinations.py``
publishes a file when it is complete.
"""
