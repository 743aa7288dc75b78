"""Descriptions and pictures of samples, for ``mpwds info`` and ``mpwds show``.

``describing.py`` says what fields hold, ``figures.py`` counts, and ``sheet.py`` draws.
"""
