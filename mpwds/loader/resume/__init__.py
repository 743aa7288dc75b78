"""The position of a loader, and how it resumes.

``progress.py`` counts what an epoch delivered, ``position.py`` holds where the next one begins, and saves and
loads it as a state. A state depends on facts, among them the dataset, which ``description.py`` describes.
"""
