"""Reading tar archives.

Read ``headers.py`` first: it decides what a header states, and finds members without data. ``entries.py``
reads members in order, the hot path; ``scanning.py`` goes past damage. ``input.py`` opens archives,
``compression.py`` decompresses them, ``names.py`` cuts a member's name into key and extension.
"""
