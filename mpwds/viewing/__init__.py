"""Pictures and statistics of batches and samples.

The page of a feed, the terminal, notebooks and contact sheets use the same ones: ``tensors.py`` counts,
``pictures.py`` draws, ``wording.py`` writes figures.
"""
