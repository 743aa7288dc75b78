"""The position of a loader, and how it resumes.

``progress.py`` counts what an epoch delivered, ``position.py`` holds where the next one begins. ``state.py``,
which is imported when a state is saved or loaded, checks the facts that the state depends on. Among them is
the dataset, which ``description.py`` describes.
"""
