"""Batches of another size and order, made in the trainer from rows of the workers' batches.

``rebatched.py`` is the stage, ``row_pool.py`` the pool, ``rows.py`` and ``batch_schema.py`` describe rows.
``regrouped.py`` runs ``unbatched().shuffle(n).batched(m)`` the same way.
"""
