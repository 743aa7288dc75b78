"""Writing archives.

``tar_writer.py`` writes an archive or a series, ``tar_members.py`` makes headers, ``encoders.py`` encodes the
fields. ``destinations.py`` publishes a file when it is complete.
"""
