"""Reading tar archives.

Read ``headers.py`` first: it decides what a header states, and finds members, the hot path. ``entries.py``
reads members in order, with their data; ``scanning.py`` goes past damage. ``input.py`` opens archives,
``compression.py`` decompresses them, ``names.py`` cuts a member's name into key and extension.
"""
