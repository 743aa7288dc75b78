"""Commands about servers: ``serve``, ``keygen``, ``monitor`` and ``stat``.

``sources.py`` opens the URLs that a command is given; ``tables.py`` draws what ``mpwds.feed.report`` says
about them.
"""
