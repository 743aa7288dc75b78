"""Batches of another size and order, made in the trainer from rows of the workers' batches.

``rebatched.py`` is the stage, ``rows.py`` holds the pool, ``batch_schema.py`` describes columns.
``regrouped.py`` runs ``unbatched().shuffle(n).batched(m)`` the same way.
"""
