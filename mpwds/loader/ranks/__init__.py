"""Epochs of equally many batches on several ranks.

``lengths.py`` counts what each rank delivers, ``agreement.py`` agrees on a number, and ``even_iterator.py``
delivers it.
"""
