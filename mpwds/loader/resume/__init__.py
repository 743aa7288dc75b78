"""The position of a loader, and how it resumes.

``progress.py`` counts what an epoch delivered; ``state.py`` holds where the next epoch begins and makes the
dict that users save.
"""
