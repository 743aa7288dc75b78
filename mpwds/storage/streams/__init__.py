"""Byte streams by URL.

``gopen.py`` chooses among ``http.py``, ``cloud.py``, ``pipes.py`` and users' own openers. ``resuming.py``
holds the retry policy and the streams that continue after a failure. ``patterns.py`` expands names,
``urls.py`` names and checks them.
"""
