"""Epochs of equally many batches on several ranks.

``lengths.py`` counts what each rank delivers, ``even.py`` agrees on a number and
delivers it.
"""
