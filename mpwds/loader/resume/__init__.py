"""The position of a loader, and how it resumes.

``progress.py`` counts what an epoch delivered, ``position.py`` holds where the next epoch begins,
``state.py`` makes the dict that users save, and ``resumable_stream.py`` resumes stages in the trainer.
"""
