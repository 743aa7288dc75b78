"""Reading tar archives.

``header.py`` is the format. ``entries.py`` reads members in order, the hot path; ``headers.py`` finds members
without their data; ``scanning.py`` goes past damage. All three ask ``headers.py`` what a header states.
``input.py`` and ``streams.py`` open archives.
"""
