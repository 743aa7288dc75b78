"""Byte streams by URL.

``gopen.py`` chooses among ``http.py``, ``cloud.py``, ``pipes.py`` and users' own openers. ``base.py`` has the
streams' bases, and asks those of other libraries. ``resuming.py`` holds the retry policy and the streams that
continue after a failure, which ``ranges.py`` opens and reads ahead. ``urls.py`` names and rewrites URLs,
``patterns.py`` expands and checks patterns of them, ``ahead.py`` has the threads of all look-ahead.
"""
