"""Commands about servers: ``serve``, ``keygen``, ``monitor`` and ``stat``.

``watched.py`` opens the URLs that a command is given; ``tables.py`` draws what ``mpwds.feed.viewing`` says
about them.
"""
