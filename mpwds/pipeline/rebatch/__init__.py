"""Batches of another size and order, made in the trainer from rows of the workers' batches.

``rebatched.py`` has the stage, and its other form, which runs ``unbatched().shuffle(n).batched(m)`` in the
same order. ``rows.py`` holds the pool. ``batch_schema.py`` describes columns. The method of loaders is in
``loader/rebatching.py``.
"""
